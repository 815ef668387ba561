"""E13: one host has one who changes it. The lease ends with its holder's process, connection or time to live, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError, LockedError
from sbctl.node import lease_file
from sbctl.node.lease import LeaseClaim
from sbctl.node.lease_file import read_lease
from sbctl.node.lease_holder import LeaseHolder, _started
from sbctl.node.paths import NodePaths, node_paths
from sbctl.remote.host_lease import HostLease, open_lease
from sbctl.remote.local import LocalTransport

pytestmark = pytest.mark.waits

DEADLINE_S = 60.0
OURS = LeaseClaim("ops@laptop", "apply serial 12", "lineage", "12-a")
THEIRS = LeaseClaim("ci@runner", "apply serial 13", "lineage", "13-b")


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    return node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path / "node")})


@pytest.fixture
def open_one(tmp_path: Path) -> Iterator[Callable[[], HostLease]]:
    opened: list[HostLease] = []
    transport = LocalTransport("gpu-a", {"SBCTL_NODE_PREFIX": str(tmp_path / "node")}, SYSTEM_CLOCK)

    def opener() -> HostLease:
        lease = open_lease(
            transport,
            os.path.realpath(sys.executable),
            {"PATH": "/usr/bin:/bin"},
            SYSTEM_CLOCK,
            place="gpu-a",
            deadline_s=DEADLINE_S,
        )
        opened.append(lease)
        return lease

    yield opener
    for lease in opened:
        lease.close()


def _take(lease: HostLease, claim: LeaseClaim, wait_s: float = 0.0) -> None:
    lease.take(claim, wait_s=wait_s, deadline_s=DEADLINE_S, cancelled=lambda: False)


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_E13_the_second_operator_is_told_who_for_what_and_until_when(
    paths: NodePaths, open_one: Callable[[], HostLease]
) -> None:
    _take(open_one(), OURS)
    with pytest.raises(LockedError) as refused:
        _take(open_one(), THEIRS)
    error = refused.value
    assert error.code == "host.leased"
    assert int(error.exit_code) == 6
    assert "ops@laptop is changing this host (apply serial 12)" in error.message
    assert "--lock-timeout" in str(error.next_step)
    assert {"owner", "purpose", "since", "until"} <= error.detail.keys()
    told = read_lease(paths)
    assert told is not None
    assert (told["owner"], told["purpose"], told["run"]) == ("ops@laptop", "apply serial 12", "12-a")


def test_what_is_given_back_leaves_nothing(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    lease = open_one()
    _take(lease, OURS)
    lease.close()
    assert read_lease(paths) is None
    assert not paths.state.exists()
    _take(open_one(), THEIRS)


def test_who_waits_gets_it_when_it_is_given_back(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    first, second = open_one(), open_one()
    _take(first, OURS)

    class Ends:
        """The first operator is done while the second sleeps."""

        now = staticmethod(SYSTEM_CLOCK.now)
        monotonic_s = staticmethod(SYSTEM_CLOCK.monotonic_s)

        def sleep_s(self, seconds: float) -> None:
            first.close()

    second._clock = Ends()
    _take(second, THEIRS, wait_s=DEADLINE_S)
    told = read_lease(paths)
    assert told is not None
    assert told["owner"] == "ci@runner"


def test_a_killed_holder_holds_nothing(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    lease = open_one()
    _take(lease, OURS)
    pid = json.loads(Path(lease_file.lease_path(paths)).read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    _until(lambda: read_lease(paths) is None)
    _take(open_one(), THEIRS)


def test_the_same_run_takes_its_own_lease_over(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    first = open_one()
    _take(first, OURS)
    before = json.loads(Path(lease_file.lease_path(paths)).read_text())["pid"]
    _take(open_one(), OURS)
    assert json.loads(Path(lease_file.lease_path(paths)).read_text())["pid"] != before


def test_a_holder_that_hears_nothing_gives_the_lease_back(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    lease = open_one()
    lease._ended.set()  # nobody renews
    _take(lease, replace(OURS, ttl_s=1.0))
    _until(lambda: not Path(lease_file.lease_path(paths)).exists())
    assert read_lease(paths) is None


def test_a_renewed_lease_outlives_its_time_to_live(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    lease = open_one()
    _take(lease, replace(OURS, ttl_s=8.0))
    begun_s = lease_file.boottime_s()
    path = Path(lease_file.lease_path(paths))
    _until(lambda: json.loads(path.read_text())["renewed_s"] > begun_s + 3.0)
    assert lease.held


def test_a_stopped_holder_is_ended_when_its_time_is_over(paths: NodePaths, open_one: Callable[[], HostLease]) -> None:
    lease = open_one()
    lease._ended.set()
    _take(lease, replace(OURS, ttl_s=1.0))
    pid = json.loads(Path(lease_file.lease_path(paths)).read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    _take(open_one(), THEIRS)
    told = read_lease(paths)
    assert told is not None
    assert told["owner"] == "ci@runner"


def test_a_process_that_does_not_hold_the_lease_is_never_ended_for_it(paths: NodePaths) -> None:
    """The file belongs to the runtime's account: what it says must not make root kill a stranger."""
    with subprocess.Popen(["/bin/sleep", "300"]) as stranger:
        holder = LeaseHolder(paths)
        holder.take(_document(OURS))
        path = Path(lease_file.lease_path(paths))
        told = json.loads(path.read_text())
        told["pid"], told["started"] = stranger.pid, _started(stranger.pid)
        path.write_text(json.dumps(told))
        with pytest.raises(LockedError):
            LeaseHolder(paths, grace_s=0.3).take(_document(OURS))
        assert stranger.poll() is None
        stranger.kill()
    holder.give_back()


def test_a_lease_that_is_a_link_to_another_file_is_refused(paths: NodePaths, tmp_path: Path) -> None:
    paths.state.mkdir(parents=True)
    other = tmp_path / "other"
    other.write_text("precious")
    os.link(other, lease_file.lease_path(paths))
    with pytest.raises(HostError, match="no file of its own"):
        LeaseHolder(paths).take(_document(OURS))
    assert other.read_text() == "precious"


def test_a_lease_of_another_boot_counts_for_nothing(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = LeaseHolder(paths)
    holder.take(_document(OURS))
    assert read_lease(paths) is not None
    monkeypatch.setattr(lease_file, "boot_id", lambda: "another boot")
    assert read_lease(paths) is None
    holder.give_back()


def test_a_lease_file_of_nonsense_is_taken_over_when_nobody_holds_it(paths: NodePaths) -> None:
    paths.state.mkdir(parents=True)
    Path(lease_file.lease_path(paths)).write_bytes(b"\xff{" * 10_000)
    assert read_lease(paths) is None
    holder = LeaseHolder(paths)
    holder.take(_document(OURS))
    told = read_lease(paths)
    assert told is not None
    assert told["owner"] == "ops@laptop"
    holder.give_back()
    assert paths.state.exists()


def test_a_lease_does_not_come_back_in_a_removed_directory(paths: NodePaths) -> None:
    paths.state.mkdir(parents=True)
    holder = LeaseHolder(paths)
    holder.take(_document(OURS))
    Path(lease_file.lease_path(paths)).unlink()
    paths.state.rmdir()
    holder.renew()
    holder.give_back()
    assert not paths.state.exists()


def _document(claim: LeaseClaim) -> dict[str, object]:
    return {name: getattr(claim, name) for name in ("owner", "purpose", "lineage", "run", "ttl_s")}
