"""Join tokens: one text each, nothing of the secret kept, a store that refuses what it cannot trust."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError, SbctlError
from sbctl.base.fs import append_line
from sbctl.base.secret import Secret
from sbctl.trust import token_store
from sbctl.trust.join_token import JoinToken, is_token_id
from sbctl.trust.token_store import TokenRow, TokenStore

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PIN = "ab" * 32


def add(store: TokenStore, *, at: datetime = NOW, ttl_s: int = 900) -> JoinToken:
    token = JoinToken.mint(PIN)
    until = at + timedelta(seconds=ttl_s)
    store.add(token, roles=("worker",), labels={"zone": "a"}, node_id=None, now=at, not_after=until)
    return token


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.binary(min_size=8, max_size=8))
def test_a_token_is_read_back_from_its_text(pin: bytes, secret: bytes, token_id: bytes) -> None:
    token = JoinToken(pin.hex(), token_id.hex(), Secret(secret))
    assert JoinToken.parse(token.text().reveal().decode()) == token
    assert is_token_id(token.id)


_PARTS = JoinToken(PIN, "0123456789abcdef", Secret(b"s" * 32)).text().reveal().decode().split(".")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".".join(_PARTS[:3]),
        ".".join(["sbj2", *_PARTS[1:]]),
        ".".join([*_PARTS, "more"]),
        ".".join([*_PARTS[:3], _PARTS[3][:-1]]),
        ".".join([*_PARTS[:3], _PARTS[3] + "="]),
        ".".join([_PARTS[0], _PARTS[1][:-1] + "/", *_PARTS[2:]]),
        ".".join([*_PARTS[:2], "0123456789ABCDEF", _PARTS[3]]),
        ".".join([*_PARTS[:2], "../../../etc/pas", _PARTS[3]]),
        ".".join([*_PARTS[:3], _PARTS[3][:-1] + "B"]),
        "sbj1." + "é" * 40,
        "x" * 100_000,
        "\0",
    ],
)
def test_any_other_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InputError) as caught:
        JoinToken.parse(text)
    assert caught.value.code == "enroll.token_malformed"
    assert not text or text not in str(caught.value)


@given(st.text(max_size=80))
def test_no_text_makes_the_parser_stumble(text: str) -> None:
    try:
        assert JoinToken.parse(text).text().reveal().decode() == text
    except InputError as error:
        assert error.code == "enroll.token_malformed"


def test_a_token_goes_from_open_to_used_for_one_request_only(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens.db")
    token = add(store)
    row = store.authenticate(token.id, token.secret_sha256, NOW)
    assert isinstance(row, TokenRow)
    assert row.state(NOW) == "open"
    assert row.state(NOW + timedelta(seconds=900)) == "expired"
    words = {"key": "k", "node": "gpu-a", "now": NOW}
    bound = store.bind(token.id, token.secret_sha256, request="one", **words)  # type: ignore[arg-type]
    assert bound is not None
    assert bound.state(NOW) == "used"
    assert store.bind(token.id, token.secret_sha256, request="two", **words) is None  # type: ignore[arg-type]
    assert store.bind(token.id, "0" * 64, request="one", **words) is None  # type: ignore[arg-type]
    store.issued(token.id, "f" * 64)
    assert store.bind(token.id, token.secret_sha256, request="one", **words).issued == "f" * 64  # type: ignore[union-attr,arg-type]
    assert store.revoke(token.id, NOW).state(NOW) == "used"
    assert store.bind(token.id, token.secret_sha256, request="one", **words) is None  # type: ignore[arg-type]


def test_tokens_leave_the_list_a_week_after_they_are_void_and_there_is_a_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenStore(tmp_path / "tokens.db")
    assert store.rows() == ()
    old = add(store)
    later = NOW + timedelta(days=8)
    fresh = add(store, at=later)
    assert [row.id for row in store.rows()] == [fresh.id]
    assert store.authenticate(old.id, old.secret_sha256, later) == "unknown"
    monkeypatch.setattr(token_store, "JOIN_TOKENS_MAX", 1)
    with pytest.raises(SbctlError) as caught:
        add(store, at=later)
    assert caught.value.code == "enroll.too_many_tokens"


@pytest.mark.parametrize("case", ["damaged", "newer", "open to others", "link"])
def test_a_store_that_cannot_be_trusted_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "tokens.db"
    store = TokenStore(path)
    add(store)
    if case == "damaged":
        path.write_bytes(b"no database at all" * 100)
    elif case == "newer":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version=9")
        connection.close()
    elif case == "open to others":
        path.chmod(0o640)
    else:
        os.rename(path, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SbctlError) as caught:
        store.rows()
    expected = {"damaged": "enroll.store_damaged", "newer": "enroll.store_newer"}
    assert caught.value.code == expected.get(case, "authority.permissions")


def test_a_line_is_added_after_one_that_a_crash_cut(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append_line(path, b'{"a":1}')
    with path.open("ab") as out:
        out.write(b'{"cut')
    append_line(path, b'{"b":2}')
    assert path.read_bytes() == b'{"a":1}\n{"cut\n{"b":2}\n'
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(SbctlError):
        append_line(tmp_path / "link", b"x")
