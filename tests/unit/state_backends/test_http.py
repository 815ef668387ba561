"""The `http` backend against a server with the faults of real ones: each request arrives, or the reason is named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from sbctl.base.errors import InputError, LockedError, RefusedError, SbctlError, StateError, UnreachableError
from sbctl.base.secret import Secret
from sbctl.state.model import LockInfo
from sbctl.state.settings import StateSettings
from sbctl.state_backends.http import HttpBackend
from sbctl.state_backends.port import Ticket
from tests.simulators.fleet import ManualClock
from tests.simulators.state_server import StateServer, serving

HEAD = {"lineage": "L", "serial": 1}
DATA = b'{"lineage":"L","serial":1}'
CANARY = "canary-19d4"


@pytest.fixture
def server() -> Iterator[StateServer]:
    with serving() as running:
        yield running


def backend(server: StateServer, **fields: Any) -> HttpBackend:
    password = fields.pop("secret", None)
    settings = StateSettings("http", fields.pop("address", server.url()), **fields)
    return HttpBackend(settings, password, ManualClock())


def ticket(who: str = "ops@desk") -> Ticket:
    clock = ManualClock()
    return Ticket.issue(LockInfo(who, 1, "sbctl apply", clock.now()), "there", clock)


def test_there_and_back(server: StateServer) -> None:
    one = backend(server)
    assert one.fetch() is None
    mine = ticket()
    one.lock(mine)
    one.store(DATA, head=HEAD, expected_sha256="")
    assert one.fetch() == DATA
    assert server.place().holder == mine.to_json()
    one.unlock(mine.id)
    assert server.place().holder is None
    one.close()


def test_who_holds_the_lock_is_named_with_what_to_do(server: StateServer) -> None:
    held = ticket("amy@ci")
    backend(server).lock(held)
    with pytest.raises(LockedError, match=r"amy@ci \(sbctl apply\)") as refused:
        backend(server).lock(ticket())
    assert f"sbctl state unlock {held.id}" in str(refused.value.next_step)
    assert refused.value.detail["ID"] == held.id
    server.place().holder = {"Who": "\x1b[31mred"}
    with pytest.raises(LockedError, match="does not name"):
        backend(server).lock(ticket())


def test_only_the_id_of_the_holder_unlocks(server: StateServer) -> None:
    held = ticket("amy@ci")
    backend(server).lock(held)
    with pytest.raises(LockedError, match=held.id) as refused:
        backend(server).unlock("another")
    assert refused.value.code == "state.lock_mismatch"
    backend(server).unlock(held.id)
    assert server.place().holder is None


def test_a_lock_that_was_taken_from_us_is_noticed_at_the_next_write(server: StateServer) -> None:
    one, other = backend(server), backend(server)
    mine, theirs = ticket(), ticket("bob@desk")
    one.lock(mine)
    other.unlock(mine.id)
    other.lock(theirs)
    with pytest.raises(LockedError, match="bob@desk") as refused:
        one.store(DATA, head=HEAD, expected_sha256="")
    assert refused.value.code == "state.lock_lost"
    assert server.place().document is None


@pytest.mark.parametrize(
    ("method", "fault"),
    [*itertools.product(["GET", "POST", "LOCK", "UNLOCK"], ["500", "429", "lost"]), ("GET", "cut")],
)
def test_every_request_survives_a_fault_of_the_server(server: StateServer, method: str, fault: str) -> None:
    server.place().documents.append(b'{"lineage":"L","serial":0}')
    one, mine = backend(server), ticket()
    server.fail((method, fault), (method, fault))
    one.lock(mine)
    one.store(DATA, head=HEAD, expected_sha256="")
    assert one.fetch() == DATA
    one.unlock(mine.id)
    assert server.place().holder is None
    assert server.faults == []


@pytest.mark.parametrize("fault", ["500", "lost"])
def test_a_server_that_stays_broken_is_unreachable(server: StateServer, fault: str) -> None:
    server.fail(*[("GET", fault)] * 9)
    with pytest.raises(UnreachableError) as refused:
        backend(server).fetch()
    assert refused.value.code == "state.unreachable"
    assert refused.value.retryable


def test_nobody_there_is_unreachable(server: StateServer) -> None:
    with pytest.raises(UnreachableError, match="no connection"):
        backend(server, address="http://127.0.0.1:1/state").fetch()


@pytest.mark.parametrize(
    ("method", "fault", "code"),
    [
        ("GET", "401", "state.denied"),
        ("GET", "redirect", "state.unexpected_answer"),
        ("POST", "redirect", "state.unexpected_answer"),
        ("POST", "412", "state.conflict"),
        ("LOCK", "redirect", "state.unexpected_answer"),
        ("UNLOCK", "redirect", "state.unexpected_answer"),
    ],
)
def test_other_answers_are_named(server: StateServer, method: str, fault: str, code: str) -> None:
    one, mine = backend(server), ticket()
    server.fail((method, fault))

    def all_of_it() -> None:
        one.lock(mine)
        one.store(DATA, head=HEAD, expected_sha256="")
        one.fetch()
        one.unlock(mine.id)

    with pytest.raises(SbctlError) as refused:
        all_of_it()
    assert refused.value.code == code
    assert refused.value.next_step or code == "state.conflict"


def test_a_server_without_locks_is_not_written(server: StateServer) -> None:
    with pytest.raises(RefusedError, match="answered 501") as refused:
        backend(server, lock_method="PATCH").lock(ticket())
    assert refused.value.code == "state.no_lock"


def test_the_ways_of_gitlab() -> None:
    with serving(gitlab=True, user="ops", password=CANARY) as server:
        lock = server.url("/state/lock")
        fields = {
            "username": "ops",
            "lock_address": lock,
            "unlock_address": lock,
            "lock_method": "POST",
            "unlock_method": "DELETE",
        }
        one = backend(server, secret=Secret(CANARY.encode()), **fields)
        mine = ticket()
        one.lock(mine)
        one.store(DATA, head=HEAD, expected_sha256="")
        with pytest.raises(LockedError):
            backend(server, secret=Secret(CANARY.encode()), **fields).lock(ticket())
        one.unlock(mine.id)
        assert server.place().holder is None
        with pytest.raises(RefusedError) as refused:
            backend(server, secret=Secret(b"wrong"), **fields).fetch()
        assert CANARY not in str(refused.value)


def test_a_document_that_was_changed_on_its_way_is_refused(
    server: StateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sbctl.state_backends import http

    server.place().documents.append(DATA)
    monkeypatch.setattr(http, "_md5_texts", lambda _data: ("other", "other"))
    with pytest.raises(StateError) as refused:
        backend(server).fetch()
    assert refused.value.code == "state.document_corrupt"


def test_an_endless_document_is_not_read(server: StateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from sbctl.state_backends import http

    server.place().documents.append(b" " * 70_000)
    monkeypatch.setattr(http, "STATE_DOCUMENT_MAX_BYTES", 66_000)
    with pytest.raises(StateError) as refused:
        backend(server).fetch()
    assert refused.value.code == "state.too_large"


def test_certificates_must_be_some(server: StateServer, tmp_path: Any) -> None:
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(InputError) as refused:
        backend(server, ca_file=str(tmp_path / "ca.pem"))
    assert refused.value.code == "state.ca_file"
    assert Ticket.parse(b"[" * 100_000) is None
