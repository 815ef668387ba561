"""A host that was given up as lost: nothing of it is recorded any more, and it is remembered that it was."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from sbctl.base.connection import Connection
from sbctl.base.errors import StateError
from sbctl.base.ids import Address
from sbctl.base.truths import Recorded
from sbctl.state.model import LockInfo, RunInfo, Tombstone
from sbctl.state.store import StateStore
from tests.simulators.fleet import ManualClock

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
INFO = RunInfo("host forget", "ops@laptop")
LOCK = LockInfo("ops@laptop", 1, "sbctl", AT)


def _recorded(host: str, kind: str = "host", name: str | None = None) -> Recorded:
    connection = Connection("ssh", "10.0.0.1", host_keys=("SHA256:x",))
    return Recorded(Address(kind, host, name), {}, 1, "f" * 16, {}, host, connection)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    found = StateStore(tmp_path / ".sbctl", ManualClock(), allow_network_fs=True)
    with found.lock(LOCK, 0):
        found.create("fleet")
        run = found.begin_run(RunInfo("apply", "ops"), ())
        for recorded in (_recorded("a"), _recorded("a", "engine", "llama_cpp"), _recorded("b")):
            run.record(recorded)
        run.finish("applied")
    return found


def _bury(store: StateStore, host: str = "a") -> None:
    lineage = store.read().lineage
    with store.lock(LOCK, 0):
        store.bury(Tombstone(host, lineage, 0, AT, "burnt", "5f" * 16, "10.0.0.1", (f"host.{host}",)), INFO)


def test_its_resources_go_and_a_tombstone_stays(store: StateStore) -> None:
    _bury(store)
    view = store.read()
    assert [str(address) for address in view.resources] == ["host.b"]
    tombstone = view.tombstones["a"]
    assert (tombstone.serial, tombstone.why, tombstone.machine_id, tombstone.readmitted) == (
        view.serial,
        "burnt",
        "5f" * 16,
        False,
    )
    assert store.history()[-1].info.command == "host forget"


def test_it_may_be_taken_in_again(store: StateStore) -> None:
    _bury(store)
    with store.lock(LOCK, 0):
        store.readmit("a", INFO)
    assert store.read().tombstones["a"].readmitted


def test_it_travels_with_the_document(store: StateStore, tmp_path: Path) -> None:
    _bury(store)
    other = StateStore(tmp_path / "elsewhere", ManualClock(), allow_network_fs=True)
    with other.lock(LOCK, 0):
        other.import_document(store.export())
    assert other.read().tombstones == store.read().tombstones


def test_a_state_without_tombstones_has_the_document_it_always_had(store: StateStore) -> None:
    assert b"tombstones" not in store.export()


def test_what_is_not_there_is_said(store: StateStore) -> None:
    unknown = Tombstone("x", store.read().lineage, 0, AT)
    with store.lock(LOCK, 0):
        with pytest.raises(StateError, match="nothing is recorded on a host x"):
            store.bury(unknown, INFO)
        with pytest.raises(StateError, match="was not given up"):
            store.readmit("x", INFO)
