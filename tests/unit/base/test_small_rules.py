"""Ids, strict JSON, safe display, secrets, exit codes, locks."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from sbctl.base import display, strict_json
from sbctl.base.digests import canonical_json, fingerprint, sha256_bytes, sha256_file
from sbctl.base.errors import (
    EXIT_PRECEDENCE,
    HTTP_STATUS,
    ExitCode,
    HostError,
    InputError,
    LockedError,
    SbctlError,
    error_from_wire,
    worst_exit,
)
from sbctl.base.flock import FileLock, held
from sbctl.base.ids import Address, is_digest, is_id
from sbctl.base.once import once_per_object
from sbctl.base.secret import Secret, keyed_fingerprint, redact


@pytest.mark.parametrize(
    "text", ["host.gpu-a", "engine.gpu-a/llama_cpp", "artifact.local/qwen3-8b:q4_k_m", "origin.local/*.ai.internal"]
)
def test_an_address_round_trips(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host.", "gpu.a/b", "Host.a", "host.a/", "host.a b", "host.a/b\nc"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "good"),
    [("chat", True), ("A.b_c-1", True), ("", False), (".", False), ("..", False), ("a/b", False), ("a\n", False), ("é", False),
     ("a" * 128, True), ("a" * 129, False), ("\u0430", False), ("a b", False)],
)  # fmt: skip
def test_A13_ids(text: str, good: bool) -> None:
    assert is_id(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [("a" * 64, True), ("A" * 64, False), ("a" * 63, False), ("a" * 64 + "\n", False), ("../" + "a" * 61, False)],
)
def test_F16_digests_are_64_lowercase_hex(text: str, good: bool) -> None:
    assert is_digest(text) is good


@pytest.mark.parametrize(
    "data",
    [b'{"a":1,"a":2}', b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b"9007199254740992", b"1" * 40, b"[" * 65 + b"]" * 65,
     b"\xff\xfe1\x00", b"{} {}", b"", b"\xef\xbb\xbf{}", b'["\\ud800"]', b'{"\\udfff": 1}', b'{"a":' * 200, b"[" * 100_000],
)  # fmt: skip
def test_A2_G10_strict_json_refuses(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        strict_json.loads(data, max_bytes=1 << 20)
    assert caught.value.code == "json.invalid"


def test_strict_json_bounds_size_and_accepts_the_rest() -> None:
    with pytest.raises(InputError) as caught:
        strict_json.loads(b" " * 11, max_bytes=10)
    assert caught.value.code == "json.too_large"
    deep = b'[{"a":"[[[[\\"' + b"[" * 100 + b'"}]'
    assert strict_json.loads(deep, max_bytes=1000)[0]["a"].startswith('[[[["')
    assert strict_json.loads(b"[9007199254740991, -1.5]", max_bytes=100) == [2**53 - 1, -1.5]
    assert strict_json.loads(b'"\\ud83d\\ude00"', max_bytes=100) == "\U0001f600"


@given(st.binary(max_size=300))
def test_A19_strict_json_never_raises_anything_else(data: bytes) -> None:
    try:
        strict_json.loads(data, max_bytes=1000)
    except InputError:
        pass


_PIECES = st.sampled_from(
    ["{", "}", "[", "]", '"', '"a"', '"b"', ":", ",", "1", "1.5", "null", "tru", " ", "\n", "\\", "NaN", "\ufeff"]
)


@given(st.lists(_PIECES, max_size=24).map("".join))
@example('{"a": 1 , "b":[{"c":"d"}] }\n')
@example('{"a":1,"a":2}')
@example('{"a":1,}')
@example('{"a":1}x')
def test_members_read_what_loads_reads_and_say_where_it_stands(text: str) -> None:
    try:
        whole = strict_json.loads(text.encode(), max_bytes=1000)
    except InputError:
        whole = None
    try:
        read, members = strict_json.members(text.encode(), max_bytes=1000)
    except InputError:
        assert not isinstance(whole, dict)
        return
    assert {name: member.value for name, member in members.items()} == whole
    assert all(json.loads(read[member.start : member.end]) == member.value for member in members.values())


def test_strict_json_reads_an_unfinished_text_once() -> None:
    with pytest.raises(InputError):
        strict_json.loads(b"[" * 70 + b'"' + b'\\"' * 200_000, max_bytes=1 << 20)


def test_fingerprints_ignore_key_order_only() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": True})
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()


_PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.recursive(_PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))
@example({"\U0001f600": 1, "\ufb33": 2, "a": '\x00\x1f\x7f"\\/\u2028', "b": [True, None, 0, -1]})
@example({"tuple": ({"x": ()},), "1": {}, "": [[]]})
def test_canonical_json_is_that_of_the_standard_whichever_way_it_is_made(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [2**53, [-(2**53)], {"a": float("nan")}, {1: "a"}, {"a": {None: 1}}, "\ud800", {"a": object()}]
)
def test_what_has_no_canonical_json_is_refused(value: object) -> None:
    with pytest.raises((rfc8785.CanonicalizationError, UnicodeEncodeError)):
        canonical_json(value)


class _Thing:
    """Equal to all others, and without a hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


def test_what_is_computed_of_an_object_is_computed_once_and_forgotten_with_it() -> None:
    asked: list[int] = []

    @once_per_object
    def number(of: _Thing) -> int:
        asked.append(id(of))
        return len(asked)

    first, second = _Thing(), _Thing()
    assert [number(first), number(second), number(first), number(second)] == [1, 2, 1, 2]
    for _ in range(50):
        assert number(_Thing()) == len(asked), "another object in the same place is another one"
    assert number(first) == 1


def test_file_and_bytes_have_one_digest(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"demo weights\n")
    assert sha256_file(tmp_path / "f") == sha256_bytes(b"demo weights\n")
    assert sha256_bytes(b"demo weights\n").startswith("729590a4")


@pytest.mark.parametrize(
    "hostile", ["\x1b[31mred", "a\u202eb", "x\x9by", "zero\u200bwidth", "\ud800", "nul\0", "line\nline"]
)
def test_H3_foreign_text_is_escaped(hostile: str) -> None:
    safe = display.display_safe(hostile)
    assert all(char.isprintable() for char in safe)
    safe.encode()


def test_long_text_is_cut_with_a_count() -> None:
    assert display.display_safe("x" * 30, max_chars=10) == "x" * 10 + "… (20 more characters)"
    assert display.display_safe("a\nb", keep_newlines=True) == "a\nb"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (98_362_432, "93.8 MiB"), (5_027_783_488, "4.7 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_as_people_read_them(count: int, text: str) -> None:
    assert display.format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (12.2, "12 s"), (185, "3 m 05 s"), (7800, "2 h 10 m")])
def test_durations_as_people_read_them(seconds: float, text: str) -> None:
    assert display.format_duration_s(seconds) == text


def test_plurals() -> None:
    assert [display.plural(1, "host"), display.plural(2, "host"), display.plural(0, "entry", "entries")] == [
        "1 host",
        "2 hosts",
        "0 entries",
    ]


def test_a_secret_never_shows() -> None:
    secret = Secret(b"canary-4711")
    assert "canary" not in f"{secret} {secret!r} {[secret]} {vars} "
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret == Secret(b"canary-4711") != Secret(b"other")
    assert secret != "canary-4711"
    assert hash(secret) == hash(Secret(b"x"))
    assert keyed_fingerprint(b"k", secret) != keyed_fingerprint(b"l", secret)
    assert len(keyed_fingerprint(b"k", secret)) == 16


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer canary4711",
        "--api-key canary4711",
        "--token=canary4711",
        'password: "canary4711"',
        "sk-canary4711canary",
        "hf_canary4711x",
    ],
)
def test_F26_credentials_in_foreign_text_are_masked(text: str) -> None:
    assert "canary4711" not in redact(text)


def test_exit_codes_have_one_order() -> None:
    assert set(EXIT_PRECEDENCE) == set(ExitCode)
    assert worst_exit([]) is ExitCode.DONE
    assert worst_exit([ExitCode.CHANGES, ExitCode.UNREACHABLE]) is ExitCode.UNREACHABLE
    assert worst_exit([ExitCode.FAILED, ExitCode.REFUSED, ExitCode.DEGRADED]) is ExitCode.REFUSED
    assert HTTP_STATUS.status("queue_full") == 503
    assert HTTP_STATUS.status("never heard of") == 500


@pytest.mark.parametrize(
    ("wire", "family", "code"),
    [
        (LockedError("state.locked", "held", place="p", next_step="n", retryable=True, detail={"pid": 1}).to_wire(), LockedError, "state.locked"),
        ({}, HostError, "host.unknown_error"),
        ({"family": "os.system", "code": "x", "message": "m", "detail": 3}, HostError, "x"),
    ],
)  # fmt: skip
def test_errors_cross_the_wire(wire: dict[str, Any], family: type[SbctlError], code: str) -> None:
    error = error_from_wire(wire)
    assert type(error) is family
    assert error.code == code
    assert str(error).startswith(code)


def test_B2_B3_a_lock_has_one_holder_and_dies_with_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    with held(tmp_path / "lock") as second:
        assert not second
    lock.release()
    with held(tmp_path / "lock") as third:
        assert third
    with held(tmp_path / "lock", shared=True) as one, held(tmp_path / "lock", shared=True) as two:
        assert one
        assert two


def test_B4_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    say_and_wait = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", say_and_wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        lock.release()
        # Another process of this test run may stand between fork and exec just now; the child stays alive all the while.
        deadline = time.monotonic() + 10
        got = False
        while not got and time.monotonic() < deadline:
            with held(tmp_path / "lock") as got:
                pass
        assert got
        child.communicate(b"\n")


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(SbctlError) as caught:
        FileLock(tmp_path / "lock").try_acquire()
    assert caught.value.code == "disk.symlink_refused"
    assert not os.path.exists(tmp_path / "elsewhere")
