"""One table of attacks on signed envelopes (C1–C5, C13, C14, C18 of docs/threats.md), held to two implementations: ours, and
securesystemslib's DSSE. On every row of `ENVELOPES` both give the same verdict and the same payload. `STRICTER` are rows where ours refuses a
form that the protocol leaves open; nothing is ever accepted here that the other one refuses.

securesystemslib pairs keys and signatures by their key ids, which the protocol does not; so it is asked with each trusted key under each id.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib import exceptions
from securesystemslib.dsse import Envelope
from securesystemslib.signer import Key, SSlibKey  # type: ignore[attr-defined]

from sbctl.base.errors import SbctlError
from sbctl.trust.envelope import open_signed, pae, sign_with
from sbctl.trust.keys import SigningKey, parse_public_key
from sbctl.trust.node_keys import node_signs, node_verifies
from tests.simulators.cluster_trust import ClusterAuthority

KIND = "application/vnd.sbctl.bundle.v1+json"
OTHER_KIND = "application/vnd.sbctl.trust.v1+json"
BODY = b'{"revision":7,"name":"\xc3\xa4"}'
MOST = 64 * 1024
ED_ORDER = 2**252 + 27742317777372353535851937790883648493
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

Sign = Callable[[bytes], bytes]
Genuine = Callable[[bytes, bytes], bool]


class Scheme:
    """Two trusted signers and a stranger of one kind of key."""

    def __init__(self, name: str, make: Callable[[str], tuple[Sign, Genuine, SSlibKey]]) -> None:
        self.name = name
        self.ops, self.ci, self.mallory = make("ops"), make("ci"), make("mallory")
        self.good = sign_with(KIND, BODY, {"ops": self.ops[0]})

    def ours(self, text: str) -> bytes | None:
        try:
            trusted = {"ops": self.ops[1], "ci": self.ci[1]}
            return open_signed(text, KIND, trusted, max_bytes=MOST).payload
        except SbctlError as error:
            assert error.message
            return None

    def theirs(self, text: str) -> bytes | None:
        try:
            document = json.loads(text)
            keyids = {one.get("keyid", "") for one in document["signatures"]}
            envelope = Envelope.from_dict(
                {**document, "signatures": [{"keyid": "", **s} for s in document["signatures"]]}
            )
            trusted: list[Key] = [renamed(key, keyid) for keyid in keyids for key in (self.ops[2], self.ci[2])]
            envelope.verify(trusted, 1)
        except (ValueError, KeyError, TypeError, AttributeError, exceptions.Error):
            return None
        return envelope.payload if envelope.payload_type == KIND else None


def renamed(key: SSlibKey, keyid: str) -> SSlibKey:
    return SSlibKey(keyid, key.keytype, key.scheme, dict(key.keyval))


def ed25519(name: str) -> tuple[Sign, Genuine, SSlibKey]:
    key = SigningKey.generate()
    public = base64.b64decode(key.public_text.removeprefix("ed25519:")).hex()
    return (
        key.sign,
        parse_public_key(key.public_text).verifies,
        SSlibKey(name, "ed25519", "ed25519", {"public": public}),
    )


AUTHORITY = ClusterAuthority()


def p256(name: str) -> tuple[Sign, Genuine, SSlibKey]:
    kit = AUTHORITY.node(name, "worker")
    certificate = x509.load_pem_x509_certificate(kit.files.certificate.encode())
    pem = certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    key = SSlibKey(name, "ecdsa", "ecdsa-sha2-nistp256", {"public": pem})
    return node_signs(kit.key), node_verifies(kit.files.certificate), key


SCHEMES = [Scheme("ed25519", ed25519), Scheme("p256", p256)]


def changed(text: str, **changes: Any) -> str:
    return json.dumps(json.loads(text) | changes)


def signature(raw: bytes, keyid: str = "ops") -> list[dict[str, str]]:
    return [{"keyid": keyid, "sig": base64.b64encode(raw).decode()}]


def raw_signature(text: str) -> bytes:
    return base64.b64decode(json.loads(text)["signatures"][0]["sig"])


def beyond_the_order(scheme: Scheme) -> str:
    """The same signature with its scalar moved by the order of the group: another text, and in a lax verifier as good."""
    raw = raw_signature(scheme.good)
    if scheme.name == "ed25519":
        scalar = int.from_bytes(raw[32:], "little") + ED_ORDER
        return changed(scheme.good, signatures=signature(raw[:32] + scalar.to_bytes(32, "little")))
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    r, s = decode_dss_signature(raw)
    return changed(scheme.good, signatures=signature(encode_dss_signature(r, s + P256_ORDER)))


def other_encoding(raw: bytes) -> bytes:
    """An ECDSA signature in DER with a length that is longer than need be; for Ed25519, a byte too many."""
    return raw[:1] + b"\x81" + raw[1:] if raw[0] == 0x30 and len(raw) != 64 else raw + b"\0"


def without_keyid(text: str) -> str:
    document = json.loads(text)
    return json.dumps(document | {"signatures": [{"sig": document["signatures"][0]["sig"]}]})


Row = Callable[[Scheme], str]

ENVELOPES: Mapping[str, tuple[Row, bool]] = {
    "as signed": (lambda s: s.good, True),
    "by the second signer": (lambda s: sign_with(KIND, BODY, {"ci": s.ci[0]}), True),
    "with spaces and another order of fields": (
        lambda s: json.dumps(dict(reversed(list(json.loads(s.good).items()))), indent=3),
        True,
    ),
    "C1 by a stranger": (lambda s: sign_with(KIND, BODY, {"mallory": s.mallory[0]}), False),
    "C1 no signature": (lambda s: changed(s.good, signatures=[]), False),
    "C1 an empty signature": (lambda s: changed(s.good, signatures=signature(b"")), False),
    "C1 a signature of zeros": (lambda s: changed(s.good, signatures=signature(bytes(64))), False),
    "C1 a signature cut short": (lambda s: changed(s.good, signatures=signature(raw_signature(s.good)[:-1])), False),
    "C1 no payload": (lambda s: changed(s.good, payload=""), False),
    "C1 one bit of the payload": (
        lambda s: changed(s.good, payload=base64.b64encode(BODY.replace(b"7", b"6")).decode()),
        False,
    ),
    "C1 truncated text": (lambda s: s.good[:-9], False),
    "C1 nothing": (lambda s: "", False),
    "C1 a list": (lambda s: "[]", False),
    "C1 the payload signed bare": (lambda s: changed(s.good, signatures=signature(s.ops[0](BODY))), False),
    "C1 a signature as a number": (lambda s: changed(s.good, signatures=[{"keyid": "ops", "sig": 7}]), False),
    "C1 signatures as a map": (lambda s: changed(s.good, signatures={}), False),
    "C2 signed as another type": (lambda s: sign_with(OTHER_KIND, BODY, {"ops": s.ops[0]}), False),
    "C2 signed as another type, renamed": (
        lambda s: changed(sign_with(OTHER_KIND, BODY, {"ops": s.ops[0]}), payloadType=KIND),
        False,
    ),
    "C2 a type of the same length": (lambda s: changed(s.good, payloadType=KIND[:-1] + "m"), False),
    "C2 part of the type moved into the payload": (
        lambda s: changed(s.good, payloadType=KIND[:-1], payload=base64.b64encode(b"n" + BODY).decode()),
        False,
    ),
    "C3 no key id": (lambda s: without_keyid(s.good), True),
    "C3 a stranger's key id": (lambda s: changed(s.good, signatures=signature(raw_signature(s.good), "mallory")), True),
    "C3 a stranger under a known key id": (lambda s: sign_with(KIND, BODY, {"ops": s.mallory[0]}), False),
    "C3 a stranger beside a signer": (
        lambda s: sign_with(KIND, BODY, {"mallory": s.mallory[0], "ops": s.ops[0]}),
        True,
    ),
    "C4 a scalar beyond the order": (beyond_the_order, False),
    "C4 another encoding of the signature": (
        lambda s: changed(s.good, signatures=signature(other_encoding(raw_signature(s.good)))),
        False,
    ),
    "C5 one key id twice": (lambda s: changed(s.good, signatures=json.loads(s.good)["signatures"] * 2), False),
    "C14 no base64": (lambda s: changed(s.good, payload="*" + json.loads(s.good)["payload"]), False),
    "C14 spaces in base64": (lambda s: changed(s.good, payload=json.loads(s.good)["payload"] + "\n"), False),
    "C14 the payload encoded twice": (
        lambda s: changed(s.good, payload=base64.b64encode(json.loads(s.good)["payload"].encode()).decode()),
        False,
    ),
}

STRICTER: Mapping[str, tuple[Row, str]] = {
    "C14 bits behind the end": (
        lambda s: changed(s.good, payload=not_canonical(json.loads(s.good)["payload"])),
        "one payload has one text",
    ),
    "an unknown field": (lambda s: changed(s.good, note="x"), "nothing unsigned rides along"),
    "a field named twice": (lambda s: f'{s.good[:-1]},"payloadType":"{KIND}"}}', "no text with two readings"),
    "nine signatures": (
        lambda s: sign_with(KIND, BODY, {f"k{number}": s.ops[0] for number in range(9)}),
        "bounded work for whoever checks",
    ),
    "C15 a payload beyond the limit": (
        lambda s: sign_with(KIND, b"x" * (MOST + 1), {"ops": s.ops[0]}),
        "bounded memory for whoever checks",
    ),
}


def not_canonical(text: str) -> str:
    """The same bytes: the last sign before the padding has bits that no byte has."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    body = text.rstrip("=")
    assert body != text, "the body must end with padding"
    return body[:-1] + alphabet[alphabet.index(body[-1]) + 1] + text[len(body) :]


@pytest.mark.parametrize("row", ENVELOPES)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_C1_to_C14_both_implementations_give_the_same_verdict(scheme: Scheme, row: str) -> None:
    build, genuine = ENVELOPES[row]
    text = build(scheme)
    expected = BODY if genuine else None
    assert (scheme.ours(text), scheme.theirs(text)) == (expected, expected)


@pytest.mark.parametrize("row", STRICTER)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_where_the_protocol_leaves_a_choice_ours_has_one_form(scheme: Scheme, row: str) -> None:
    build, why = STRICTER[row]
    assert scheme.ours(build(scheme)) is None, why
    assert scheme.theirs(build(scheme)) is not None, "this row belongs into the other table"


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_both_sign_the_same_bytes(scheme: Scheme) -> None:
    for kind, body in ((KIND, BODY), ("", b""), ("tÿpe", b"\0" * 9), (KIND, KIND.encode())):
        assert Envelope(body, kind, {}).pae() == pae(kind, body)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(SCHEMES),
    st.lists(st.tuples(st.integers(0, 600), st.binary(min_size=0, max_size=3)), min_size=1, max_size=4),
)
def test_C18_what_ours_accepts_of_damaged_envelopes_the_other_accepts_too(
    scheme: Scheme, edits: list[tuple[int, bytes]]
) -> None:
    text = scheme.good
    for position, piece in edits:
        at = position % len(text)
        text = text[:at] + piece.decode("latin-1") + text[at + 1 :]
    ours = scheme.ours(text)
    assert ours in (None, BODY)
    if ours is not None:
        assert scheme.theirs(text) == BODY
