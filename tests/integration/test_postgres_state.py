"""The `postgres` backend against a real server: a cluster of its own in a directory of its own, as the user postgres, on a UNIX socket."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import LockedError, RefusedError, SbctlError, StateError, UnreachableError
from sbctl.state.model import LockInfo
from sbctl.state.settings import StateSettings
from sbctl.state_backends.port import Ticket
from sbctl.state_backends.postgres import PostgresBackend
from tests.simulators.fleet import ManualClock
from tests.simulators.postgres_cluster import Cluster, postgres_cluster
from tests.simulators.shared_world import Checkout
from tests.simulators.state_world import APPLY, desired, fast_directory, recorded

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"lineage": "L", "serial": 1}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with postgres_cluster() as running:
        running.sql("CREATE ROLE reader LOGIN NOSUPERUSER", "postgres")
        yield running


@pytest.fixture
def fresh(cluster: Cluster) -> Cluster:
    cluster.sql("DROP SCHEMA IF EXISTS sbctl CASCADE")
    return cluster


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


def ticket(who: str = "ops@desk") -> Ticket:
    clock = ManualClock()
    return Ticket.issue(LockInfo(who, 1, "sbctl apply", clock.now()), "there", clock)


def test_two_operators_take_turns_without_a_superuser(fresh: Cluster, tmp_path: Path) -> None:
    a, b = Checkout(tmp_path / "a", fresh.settings()), Checkout(tmp_path / "b", fresh.settings())
    assert a.plan() == {}
    assert (a.apply(1, 2), b.apply(3), a.apply(1, content="new")) == (1, 2, 3)
    assert b.plan() == a.plan()
    assert fresh.sql("SELECT id, holder FROM sbctl.state") == [(1, None)]
    for checkout in (a, b):
        checkout.world.store().verify()


def test_who_holds_the_lock_is_named_and_only_his_id_frees_it(fresh: Cluster) -> None:
    one, other = PostgresBackend(fresh.settings(), None), PostgresBackend(fresh.settings(), None)
    held = ticket("amy@ci")
    one.lock(held)
    with pytest.raises(LockedError, match=r"amy@ci \(sbctl apply\)") as refused:
        other.lock(ticket())
    assert refused.value.detail["ID"] == held.id
    with pytest.raises(LockedError) as mismatch:
        other.unlock("another")
    assert mismatch.value.code == "state.lock_mismatch"
    other.unlock(held.id)
    theirs = ticket("bob@desk")
    other.lock(theirs)
    with pytest.raises(LockedError) as lost:
        one.store(b"x", head=HEAD, expected_sha256="")
    assert lost.value.code == "state.lock_lost"
    assert other.fetch() is None
    for backend in (one, other):
        backend.close()


def test_B3_a_lock_is_free_the_moment_its_connection_ends(fresh: Cluster) -> None:
    one, other = PostgresBackend(fresh.settings(), None), PostgresBackend(fresh.settings(), None)
    mine = ticket()
    one.lock(ticket())
    one.close()
    _soon(lambda: other.lock(mine))
    other.unlock(mine.id)
    other.close()


def _soon(act: Any) -> None:
    for _ in range(300):
        try:
            act()
            return
        except LockedError:
            time.sleep(0.1)
    raise AssertionError("the lock did not become free")


def test_a_write_compares_what_it_replaces(fresh: Cluster) -> None:
    one = PostgresBackend(fresh.settings(), None)
    mine = ticket()
    one.lock(mine)
    one.store(b"first", head=HEAD, expected_sha256="")
    assert one.fetch() == b"first"
    with pytest.raises(StateError) as refused:
        one.store(b"second", head=HEAD, expected_sha256="")
    assert refused.value.code == "state.conflict"
    fresh.sql("UPDATE sbctl.state SET document = 'edited'")
    with pytest.raises(StateError) as corrupt:
        one.fetch()
    assert corrupt.value.code == "state.document_corrupt"
    one.unlock(mine.id)
    one.close()


def test_a_write_without_the_lock_is_refused(fresh: Cluster) -> None:
    one = PostgresBackend(fresh.settings(), None)
    mine = ticket()
    one.lock(mine)
    one.unlock(mine.id)
    with pytest.raises(LockedError) as refused:
        one.store(b"x", head=HEAD, expected_sha256="")
    assert refused.value.code == "state.lock_lost"
    one.close()


def test_a_role_without_rights_is_told_what_the_owner_must_run(fresh: Cluster) -> None:
    with contextlib.closing(PostgresBackend(fresh.settings(username="reader"), None)) as backend:
        assert backend.fetch() is None
        with pytest.raises(RefusedError) as refused:
            backend.lock(ticket())
        assert 'CREATE SCHEMA IF NOT EXISTS "sbctl" AUTHORIZATION "reader"' in str(refused.value.next_step)
    owner = PostgresBackend(fresh.settings(), None)
    mine = ticket()
    owner.lock(mine)
    owner.unlock(mine.id)
    owner.close()
    with contextlib.closing(PostgresBackend(fresh.settings(username="reader"), None)) as backend:
        with pytest.raises(RefusedError) as refused:
            backend.fetch()
        assert refused.value.code == "state.denied"


def test_a_server_that_is_not_there_is_unreachable(fresh: Cluster, tmp_path: Path) -> None:
    settings = StateSettings("postgres", f"postgresql:///sbctl?host={tmp_path}", "ops")
    with pytest.raises(UnreachableError):
        PostgresBackend(settings, None).fetch()
    with pytest.raises(SbctlError) as unknown:
        PostgresBackend(StateSettings("postgres", fresh.address("nowhere"), "ops"), None).fetch()
    assert unknown.value.code == "state.no_database"
    with pytest.raises(RefusedError) as refused:
        PostgresBackend(fresh.settings(username="nobody_here"), None).fetch()
    assert refused.value.code == "state.denied"


def test_B2_a_run_whose_connection_is_cut_stops_writing_and_is_kept(fresh: Cluster, tmp_path: Path) -> None:
    a, b = Checkout(tmp_path / "a", fresh.settings()), Checkout(tmp_path / "b", fresh.settings())
    a.apply(1)

    def run() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(2)])
            run.record(recorded(2))
            fresh.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sbctl'")
            _soon(lambda: b.apply(9))
            run.finish("applied")

    with pytest.raises(SbctlError, match="no longer ours") as refused:
        run()
    assert refused.value.code == "state.not_shared"
    assert a.world.paths.errored.exists()
    assert sorted(b.plan()) == ["engine.gpu-1/llama_cpp", "engine.gpu-9/llama_cpp"]


VICTIM = """
import sys
from pathlib import Path
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.state.settings import StateSettings
from tests.simulators.shared_world import Checkout
from tests.simulators.state_world import APPLY, desired, recorded
root, address, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
checkout = Checkout(root, StateSettings("postgres", address, "ops"), clock=SYSTEM_CLOCK)
with checkout.writing(timeout_s=60, write_every_s=0.01) as (store, session):
    run = store.begin_run(APPLY, [desired(n) for n in range(number, number + 5)])
    print("begun", flush=True)
    for n in range(number, number + 5):
        run.record(recorded(n))
        session.wake()
    print("recorded", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("after", ["begun", "recorded"])
def test_B1_a_killed_writer_leaves_a_free_lock_and_a_whole_document(fresh: Cluster, tmp_path: Path, after: str) -> None:
    Checkout(tmp_path / "first", fresh.settings()).apply(1)
    for round_ in range(3):
        root = tmp_path / f"victim{round_}"
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(root), fresh.address(), str(10 * round_ + 10)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert victim.stdout is not None
        for line in victim.stdout:
            if line.strip() == after.encode():
                break
        victim.send_signal(signal.SIGKILL)
        victim.wait(60)
        victim.stdout.close()
        assert victim.stdin is not None
        victim.stdin.close()
        survivor = Checkout(tmp_path / f"survivor{round_}", fresh.settings())
        _soon(lambda survivor=survivor, round_=round_: survivor.apply(2))
        survivor.world.store().verify()
        statuses = [run.status for run in survivor.world.store().history()]
        assert statuses.count("interrupted") == round_ + 1
        assert "engine.gpu-1/llama_cpp" in survivor.plan()


def test_operators_racing_lose_nothing(fresh: Cluster, tmp_path: Path) -> None:
    script = VICTIM.replace("    sys.stdin.read()\n", "    run.finish('applied')\n")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / f"r{number}"), fresh.address(), str(number * 10)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for number in range(1, 5)
    ]  # fmt: skip
    assert [racer.wait(120) for racer in racers] == [0] * 4
    judge = Checkout(tmp_path / "judge", fresh.settings())
    assert len(judge.plan()) == 20
    assert [run.serial for run in judge.world.store().history()] == [1, 2, 3, 4]


def test_many_first_users_at_once_find_one_table(fresh: Cluster) -> None:
    """Schema and table are made by whoever comes first; each statement may lose its race on its own."""
    crowd = 8
    start = threading.Barrier(crowd)

    def first_use(number: int) -> str:
        backend = PostgresBackend(fresh.settings(), None)
        try:
            start.wait(30)
            backend.lock(ticket(f"racer{number}"))
        except LockedError as error:
            return error.code
        finally:
            backend.close()
        return "locked"

    with ThreadPoolExecutor(crowd) as threads:
        outcomes = sorted(threads.map(first_use, range(crowd)))
    assert set(outcomes) <= {"locked", "state.locked"}
    assert "locked" in outcomes
