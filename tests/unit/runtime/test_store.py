"""The runtime's durable memory: fence and bundle together, stops and jobs, damage by name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import StateError
from sbctl.runtime.job_rows import JobRow
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.verifier import verify_bundle
from tests.simulators.runtime_world import SCOPE, Operator, content


@pytest.fixture
def operator() -> Operator:
    return Operator()


def _open(folder: Path) -> RuntimeStore:
    return RuntimeStore(folder / "runtime.db", folder / "bundle.json")


def _accept(store: RuntimeStore, operator: Operator, member: DeploymentMember, revision: int) -> str:
    envelope = operator.bundle(content({"q": member}), revision)
    verified = verify_bundle(envelope, trust=operator.trust, scope=SCOPE, fence=store.fence(), now=SYSTEM_CLOCK.now())
    store.accept(verified, envelope)
    return envelope


def test_an_accepted_bundle_and_its_fence_survive(
    tmp_path: Path, operator: Operator, make_member: Callable[..., DeploymentMember]
) -> None:
    store = _open(tmp_path)
    assert (store.fence(), store.accepted(), store.stopped()) == (None, None, frozenset())
    store.set_stopped("q", stopped=True)
    envelope = _accept(store, operator, make_member(), 4)
    assert store.stopped() == frozenset(), "a bundle ends explicit stops"
    store.set_stopped("q", stopped=True)
    store.close()
    again = _open(tmp_path)
    accepted = again.accepted()
    assert accepted is not None
    assert (accepted.payload.revision, accepted.signer) == (4, "ops")
    assert again.stopped() == {"q"}
    assert (tmp_path / "bundle.json").read_text() == envelope
    again.forget_bundle()
    assert again.accepted() is None
    assert not (tmp_path / "bundle.json").exists()
    assert again.fence().revision == 4  # type: ignore[union-attr]
    again.close()


def test_a_lost_or_changed_copy_is_written_again(
    tmp_path: Path, operator: Operator, make_member: Callable[..., DeploymentMember]
) -> None:
    store = _open(tmp_path)
    envelope = _accept(store, operator, make_member(), 1)
    for damage in ("", "{}"):
        (tmp_path / "bundle.json").write_text(damage)
        assert store.accepted() is not None
        assert (tmp_path / "bundle.json").read_text() == envelope
    (tmp_path / "bundle.json").unlink()
    (tmp_path / "bundle.json").mkdir()
    assert store.accepted() is not None, "the copy is a convenience; what is accepted is in the database"
    store.close()


@pytest.mark.parametrize(
    "sql", ["UPDATE accepted SET envelope = envelope || ' '", "UPDATE accepted SET envelope_sha256 = 'x'"]
)
def test_a_changed_accepted_bundle_is_refused_by_name(
    tmp_path: Path, operator: Operator, make_member: Callable[..., DeploymentMember], sql: str
) -> None:
    store = _open(tmp_path)
    _accept(store, operator, make_member(), 1)
    store.close()
    with sqlite3.connect(tmp_path / "runtime.db") as raw:
        raw.execute(sql)
    raw.close()
    store = _open(tmp_path)
    with pytest.raises(StateError, match="does not have its digest") as caught:
        store.accepted()
    assert caught.value.code == "runtime.state_damaged"
    store.close()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (b"not a database at all, but long enough to be read as one" * 20, "runtime.state_damaged"),
        (None, "runtime.state_too_new"),
    ],
)
def test_a_foreign_or_newer_database_is_refused_by_name(tmp_path: Path, damage: bytes | None, code: str) -> None:
    if damage is not None:
        (tmp_path / "runtime.db").write_bytes(damage)
    else:
        with sqlite3.connect(tmp_path / "runtime.db") as raw:
            raw.execute("PRAGMA user_version=99")
        raw.close()
    with pytest.raises(StateError) as caught:
        _open(tmp_path)
    assert caught.value.code == code


@pytest.mark.flow
def test_jobs_are_kept_newest_first_and_a_restart_ends_what_ran(tmp_path: Path) -> None:
    store = _open(tmp_path)
    for number in range(513):
        store.put_job(JobRow(f"{number:05}", "load", "deployment:q", "ready", number, number))
    store.put_job(JobRow("00513", "load", "deployment:q", "downloading", 513, 513))
    rows = store.jobs()
    assert (len(rows), rows[0].id, rows[-1].id) == (512, "00513", "00002")
    store.close()
    again = _open(tmp_path)
    assert [row.state for row in again.jobs()] == ["failed"] + 511 * ["ready"]
    assert again.jobs()[0].error == "the runtime was restarted"
    again.close()


@pytest.mark.flow
def test_a_job_that_runs_is_not_forgotten_however_many_end_meanwhile(tmp_path: Path) -> None:
    store = _open(tmp_path)
    store.put_job(JobRow("00000", "pull", "deployment:big", "downloading", 0, 0))
    for number in range(1, 600):
        store.put_job(JobRow(f"{number:05}", "load", "deployment:q", "ready", number, number))
    found = store.job("00000")
    assert found is not None
    assert found.state == "downloading"
    store.close()


@pytest.mark.flow
def test_a_job_that_was_asked_for_after_the_clock_was_put_back_is_found_as_any_other(tmp_path: Path) -> None:
    store = _open(tmp_path)
    for number in range(512):
        store.put_job(JobRow(f"2{number:05}", "load", "deployment:q", "ready", number, number))
    store.put_job(JobRow("100000", "load", "deployment:q", "ready", 1, 1))
    assert store.job("100000") is not None
    assert len(store.jobs()) == 512
    store.close()
