"""Accounts and sessions of the admin API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sbctl.base.scrypt import scrypt_hash, scrypt_matches
from sbctl.base.secret import Secret, redact
from sbctl.node.messages import AdminOperator
from sbctl.runtime.admin_access import Accounts, Principal, Sessions


class _Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 11, 30, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None: ...


def test_a_hash_is_salted_matches_its_password_alone_and_is_never_shown() -> None:
    one, other = scrypt_hash(b"correct", log_n=10), scrypt_hash(b"correct", log_n=10)
    assert one != other
    assert scrypt_matches(one, b"correct")
    assert scrypt_matches(other, b"correct")
    assert not scrypt_matches(one, b"Correct")
    assert one[20:] not in redact(f"password_hash {one}")


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "correct",
        "$scrypt$ln=99,r=8,p=1$" + "A" * 22 + "$" + "B" * 43,
        "$scrypt$ln=20,r=32,p=16$" + "A" * 22 + "$" + "B" * 43,
        "$scrypt$ln=1,r=8,p=1$" + "A" * 22 + "$" + "B" * 43,
        "$scrypt$ln=10,r=8,p=1$" + "A" * 17 + "$" + "B" * 41,
    ],
)
def test_a_hash_of_another_kind_or_too_dear_matches_nothing(stored: str) -> None:
    assert not scrypt_matches(stored, b"correct")


def test_operators_log_in_and_the_main_account_also_by_basic() -> None:
    ops = AdminOperator(username="ops", password_hash=scrypt_hash(b"pw", log_n=10), role="read_only")
    accounts = Accounts("admin", Secret(b"main"), (ops,))
    assert accounts.basic("admin", b"main") == accounts.login("admin", b"main") == Principal("admin", "admin")
    assert accounts.login("ops", b"pw") == Principal("ops", "read_only")
    assert accounts.basic("ops", b"pw") is None
    for name, password in (("ops", b"main"), ("admin", b"pw"), ("nobody", b"pw"), ("", b"")):
        assert accounts.login(name, password) is None


def test_a_session_is_of_this_process_ends_after_eight_hours_and_by_logout() -> None:
    clock = _Clock()
    sessions = Sessions(clock)
    token, nonce = sessions.open(Principal("ops|admin", "read_only"))
    assert sessions.of(token) == Principal("ops|admin", "read_only", nonce)
    assert Sessions(clock).of(token) is None
    assert sessions.of(token[:-2]) is None
    clock.at += timedelta(hours=8)
    assert sessions.of(token) is None
    again, nonce = sessions.open(Principal("ops", "admin"))
    sessions.end(nonce)
    assert sessions.of(again) is None
