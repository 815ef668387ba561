"""Sealed documents: every recipient opens them, nobody else does, and no bit of them can change unnoticed."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, RefusedError, SbctlError, StateError
from sbctl.base.secret import Secret
from sbctl.base.strict_json import loads
from sbctl.trust.sealing import Identity, Opener, is_sealed, parse_recipient

ALICE, BOB, EVE = Identity.generate(), Identity.generate(), Identity.generate()
PHRASE = Secret(b"correct horse battery staple")
CONTENT = b'{"a":1}'


def opener(*identities: Identity, phrase: Secret | None = None) -> Opener:
    return Opener(identities, phrase, log_n=4)


def sealed(*, phrase: bool = True) -> dict[str, Any]:
    return (
        opener(ALICE, phrase=PHRASE if phrase else None)
        .sealer([ALICE.recipient, BOB.recipient], with_passphrase=phrase)
        .seal(CONTENT, kind="state", lineage="L", serial=7)
    )


SEALED = sealed()


@pytest.mark.parametrize("who", [opener(ALICE), opener(BOB), opener(phrase=PHRASE), opener(EVE, BOB)])
def test_each_recipient_opens_it(who: Opener) -> None:
    assert is_sealed(SEALED)
    assert who.open(SEALED, kind="state", place="x") == CONTENT


def test_nobody_else_opens_it() -> None:
    with pytest.raises(RefusedError) as refused:
        opener(EVE).open(SEALED, kind="state", place="x")
    assert refused.value.code == "sealed.no_key"
    assert refused.value.detail["recipients"] == [ALICE.recipient, BOB.recipient, "passphrase"]
    with pytest.raises(StateError, match="another one") as wrong:
        opener(phrase=Secret(b"another one, long enough")).open(SEALED, kind="state", place="x")
    assert wrong.value.code == "sealed.damaged"


def test_a_wrong_passphrase_does_not_hide_a_key_that_fits() -> None:
    reordered = {**SEALED}
    wrong = opener(BOB, phrase=Secret(b"another one, long enough"))
    assert wrong.open(reordered, kind="state", place="x") == CONTENT


def test_every_document_has_a_key_and_nonces_of_its_own() -> None:
    first, second = sealed(), sealed()
    assert first["nonce"] != second["nonce"]
    assert {entry["wrapped"] for entry in first["recipients"]}.isdisjoint(
        {entry["wrapped"] for entry in second["recipients"]}
    )


def test_a_passphrase_is_derived_once_and_its_salt_used_again() -> None:
    who = opener(phrase=PHRASE)
    assert who.open(SEALED, kind="state", place="x") == CONTENT
    again = who.sealer([], with_passphrase=True).seal(CONTENT, kind="state", lineage="L", serial=8)
    assert again["recipients"][-1]["salt"] == SEALED["recipients"][-1]["salt"]


def test_a_cheaper_document_does_not_cheapen_the_next() -> None:
    who = Opener((), PHRASE, log_n=6)
    assert who.open(SEALED, kind="state", place="x") == CONTENT
    again = who.sealer([], with_passphrase=True).seal(CONTENT, kind="state", lineage="L", serial=8)
    assert again["recipients"][0]["log_n"] == 6


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: opener(EVE).sealer([BOB.recipient], with_passphrase=False), "seal.not_for_us"),
        (lambda: opener().sealer([], with_passphrase=False), "seal.not_for_us"),
        (lambda: opener().sealer([], with_passphrase=True), "seal.nobody"),
        (lambda: opener(phrase=Secret(b"too short")), "passphrase.short"),
        (lambda: parse_recipient("sbx1"), "recipient.invalid"),
        (lambda: parse_recipient(ALICE.recipient.upper()), "recipient.invalid"),
        (
            lambda: parse_recipient(ALICE.recipient[:-1] + ("a" if ALICE.recipient[-1] != "a" else "b")),
            "recipient.invalid",
        ),
        (lambda: parse_recipient("age1" + ALICE.recipient[4:]), "recipient.invalid"),
        (lambda: Identity.parse(Secret(b"SBX-SECRET-1AAAA")), "identity.invalid"),
        (lambda: Identity.parse(Secret(b"\xff\xfe")), "identity.invalid"),
        (lambda: Identity.parse(Secret(b"SBX-SECRET-1!!")), "identity.invalid"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(make: Callable[[], object], code: str) -> None:
    with pytest.raises(SbctlError) as refused:
        make()
    assert refused.value.code == code


def test_a_recipient_of_small_order_is_refused() -> None:
    import hashlib

    raw = bytes(32)
    text = "sbx1" + base64.b32encode(raw + hashlib.sha256(b"sbx1" + raw).digest()[:4]).decode().rstrip("=").lower()
    with pytest.raises(InputError, match="small order"):
        opener(phrase=PHRASE).sealer([text], with_passphrase=True).seal(CONTENT, kind="state", lineage="L", serial=1)


def test_keys_survive_their_text() -> None:
    assert Identity.parse(ALICE.to_text()).recipient == ALICE.recipient
    assert "SBX-SECRET" not in f"{ALICE.to_text()!r}"


def _set(path: tuple[Any, ...], value: object) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        for part in path[:-1]:
            raw = raw[part]
        raw[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set(("extra",), 1), "sealed.invalid"),
        (_set(("format",), "other"), "sealed.invalid"),
        (_set(("version",), 2), "state.too_new"),
        (_set(("version",), 0), "sealed.invalid"),
        (_set(("kind",), "plan"), "sealed.invalid"),
        (_set(("serial",), True), "sealed.invalid"),
        (_set(("serial",), 8), "sealed.damaged"),
        (_set(("lineage",), "M"), "sealed.damaged"),
        (_set(("lineage",), 3), "sealed.invalid"),
        (_set(("recipients",), []), "sealed.invalid"),
        (_set(("recipients",), [SEALED["recipients"][0]] * 65), "sealed.invalid"),
        (_set(("recipients",), [SEALED["recipients"][0]]), "sealed.damaged"),
        (_set(("recipients", 0), "x"), "sealed.invalid"),
        (_set(("recipients", 0, "type"), "rot13"), "sealed.invalid"),
        (_set(("recipients", 0, "recipient"), ["x"]), "sealed.invalid"),
        (_set(("recipients", 2, "log_n"), 21), "sealed.invalid"),
        (_set(("recipients", 2, "log_n"), "4"), "sealed.invalid"),
        (_set(("recipients", 0, "ephemeral"), base64.b64encode(bytes(32)).decode()), "sealed.damaged"),
        (_set(("recipients", 0, "ephemeral"), "AAA"), "sealed.damaged"),
        (_set(("nonce",), "not base64"), "sealed.invalid"),
        (_set(("nonce",), ""), "sealed.damaged"),
        (_set(("ciphertext",), ""), "sealed.damaged"),
    ],
)
def test_a_changed_envelope_is_refused_by_name(change: Callable[[dict[str, Any]], None], code: str) -> None:
    raw = copy.deepcopy(SEALED)
    change(raw)
    with pytest.raises(StateError) as refused:
        opener(ALICE).open(raw, kind="state", place="there")
    assert refused.value.code == code
    assert refused.value.place == "there"


TEXT = canonical_json(SEALED)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(TEXT) * 8 - 1))
def test_no_bit_changes_unnoticed(bit: int) -> None:
    changed = bytearray(TEXT)
    changed[bit // 8] ^= 1 << bit % 8

    def read() -> bytes:
        raw = loads(bytes(changed), max_bytes=1 << 20)
        return opener(ALICE, phrase=PHRASE).open(raw, kind="state", place="x")

    with pytest.raises(SbctlError) as refused:
        read()
    assert refused.value.code.split(".")[0] in ("sealed", "json", "state")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(TEXT) - 1))
def test_a_cut_document_is_refused(length: int) -> None:
    with pytest.raises(SbctlError):
        opener(ALICE).open(loads(TEXT[:length], max_bytes=1 << 20), kind="state", place="x")


def test_the_content_is_not_in_the_envelope() -> None:
    canary = b"canary-7f3a"
    raw = (
        opener(ALICE).sealer([ALICE.recipient], with_passphrase=False).seal(canary, kind="state", lineage="L", serial=1)
    )
    assert canary not in json.dumps(raw).encode()
    assert base64.b64encode(canary)[:8] not in json.dumps(raw).encode()
