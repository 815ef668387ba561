"""Jobs: durable before they begin, followed as they go, found afterwards, each with its entry in the audit."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import EngineError, SbctlError
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.audit import verify_audit
from sbctl.runtime.job_rows import JobRow
from sbctl.runtime.jobs import Jobs, job_document, new_ulid
from sbctl.runtime.provision import Progress
from sbctl.runtime.store import RuntimeStore
from tests.simulators.engine_world import in_virtual_time


@pytest.fixture
def store(tmp_path: Path) -> RuntimeStore:
    return RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")


def test_job_ids_sort_by_time() -> None:
    early, late = new_ulid(1), new_ulid(2)
    assert re.fullmatch("[0-9A-HJKMNP-TV-Z]{26}", early)
    assert early < late
    assert new_ulid(1) != early


def test_a_job_records_how_it_ended_and_who_asked(store: RuntimeStore, tmp_path: Path) -> None:
    async def fails(_progress: Progress) -> None:
        raise EngineError("engine_missing", "there is no engine")

    async def works(_progress: Progress) -> str:
        return "well"

    async def work() -> None:
        jobs = Jobs(store, SYSTEM_CLOCK)
        ACTING.set(Actor("ops", "admin", "admin 127.0.0.1"))
        failing = await jobs.begin("load", "q", fails)
        assert store.job(failing.id) is not None, "it is durable before anybody hears of it"
        with pytest.raises(EngineError):
            await failing.done
        assert await (await jobs.begin("load", "q", works)).done == "well"

    in_virtual_time(work)
    assert sorted((row.state, row.error) for row in store.jobs()) == [
        ("failed", "engine_missing: there is no engine"),
        ("ready", None),
    ]
    store.close()
    with sqlite3.connect(tmp_path / "runtime.db") as raw:
        told = raw.execute("SELECT actor, action, subject, source FROM audit ORDER BY seq").fetchall()
    assert told == [("ops", "job.load", "q", "admin 127.0.0.1")] * 2
    assert verify_audit(tmp_path / "runtime.db").broken_at is None


def test_progress_only_grows_a_total_stays_and_a_reader_goes_on_where_it_was(store: RuntimeStore) -> None:
    told = [(0, None, "looking"), (10, 100, "x.gguf"), (5, 90, "x.gguf"), (100, 100, "verifying"), (3, 9, "y.gguf")]

    async def pulls(progress: Progress) -> None:
        for step in told:
            progress(*step)
            await asyncio.sleep(1)

    async def work() -> None:
        jobs = Jobs(store, SYSTEM_CLOCK)
        job = await jobs.begin("pull", "q", pulls)
        seen = [step async for step in jobs.follow(job.id)]
        rows = [(one.row.state, one.row.completed_bytes, one.row.total_bytes) for one in seen]
        assert rows == [
            ("queued", 0, None),
            ("queued", 0, None),
            ("downloading", 10, 100),
            ("verifying", 100, 100),
            ("verifying", 100, 100),
            ("ready", 100, 100),
        ]
        later = [step.number async for step in jobs.follow(job.id, after=seen[3].number)]
        assert later == [step.number for step in seen[4:]]
        assert job_document(seen[-1].row)["progress"]["current_file"] == "y.gguf"
        assert [step.row.state async for step in Jobs(store, SYSTEM_CLOCK).follow(job.id)] == ["ready"]

    in_virtual_time(work)
    assert store.jobs()[0].total_bytes == 100
    store.close()


def test_what_ran_when_the_daemon_died_has_failed_and_old_rows_read_as_today(
    store: RuntimeStore, tmp_path: Path
) -> None:
    store.put_job(JobRow("B", "pull", "q", "downloading", 1, 1, None, 5, 10, "x"))
    store.put_job(JobRow("A", "load", "q", "succeeded", 1, 1))
    store.close()
    again = RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")
    assert [(row.id, row.state, row.completed_bytes) for row in again.jobs()] == [("B", "failed", 5), ("A", "ready", 0)]
    again.close()


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(*_args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        for module in ("store", "owed_writes"):
            for write in ("append_audit", "insert_job"):
                patched.setattr(f"sbctl.runtime.{module}.{write}", full)
        yield


async def nothing(_progress: Progress) -> None:
    """Work that takes no time."""


def test_a_job_that_cannot_be_written_down_does_not_begin(store: RuntimeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    async def works(_progress: Progress) -> None:
        begun.append(1)

    async def work() -> None:
        with full_disk(monkeypatch), pytest.raises(SbctlError) as caught:
            await Jobs(store, SYSTEM_CLOCK).begin("load", "q", works)
        assert caught.value.code == "store_failed"

    in_virtual_time(work)
    assert not begun
    assert store.jobs() == ()


@pytest.mark.parametrize("kind", ["stop", "drain", "evict", "delete"])
def test_H10_what_frees_memory_or_disk_works_on_a_full_disk_and_is_written_later(
    kind: str, store: RuntimeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        jobs = Jobs(store, SYSTEM_CLOCK)
        ACTING.set(Actor("ops", "admin", "admin 127.0.0.1"))
        with full_disk(monkeypatch):
            job = await jobs.begin(kind, "q", nothing)
            await job.done
            assert not job.is_durable
            assert [row.id for row in await jobs.rows()] == [job.id], "it is found by its id meanwhile"
            assert not store.settle()
        task = asyncio.create_task(jobs.settle())
        await asyncio.sleep(11)
        task.cancel()

    in_virtual_time(work)
    store.close()
    with sqlite3.connect(tmp_path / "runtime.db") as raw:
        told = raw.execute("SELECT actor, action, subject, source FROM audit").fetchall()
        rows = raw.execute("SELECT kind, state FROM job").fetchall()
    assert told == [("ops", f"job.{kind}", "q", "admin 127.0.0.1")]
    assert rows == [(kind, "deleted" if kind == "delete" else "ready")]
    assert verify_audit(tmp_path / "runtime.db").broken_at is None


def test_a_stop_on_a_full_disk_holds_and_is_durable_as_soon_as_there_is_room(
    store: RuntimeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch):
        assert store.set_stopped("q", True, may_owe=True) is False
        assert store.owes_stop("q")
        with pytest.raises(SbctlError):
            store.set_stopped("q", False)
        assert store.owes_stop("q"), "a release that was refused released nothing"
    store.set_stopped("other", True)
    assert not store.owes_stop("q")
    assert store.stopped() == {"q", "other"}


def test_what_is_owed_is_bounded_and_says_what_was_lost(
    store: RuntimeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(monkeypatch):
        for number in range(600):
            store.note("login", f"ops-{number}", {})
    store.close()
    with sqlite3.connect(tmp_path / "runtime.db") as raw:
        told = raw.execute("SELECT action, subject, detail FROM audit ORDER BY seq").fetchall()
    assert len(told) == 513
    assert told[0][1] == "ops-88"
    assert told[-1] == ("audit.lost", "audit", '{"entries":88}')


def test_a_caller_that_leaves_while_its_job_is_written_leaves_no_job_that_never_begins(store: RuntimeStore) -> None:
    async def work() -> None:
        jobs = Jobs(store, SYSTEM_CLOCK)
        asking = asyncio.create_task(jobs.begin("load", "q", nothing))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(1)
        assert [row.state for row in await jobs.rows()] == ["ready"]

    in_virtual_time(work)
