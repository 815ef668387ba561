"""A cluster of processes with three authorities under steady load, and everything that can end in it ended: what was done is held to the rules."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.simulators.cluster_nodes import ClusterLab, clustered, until
from tests.simulators.cluster_recorder import Recorder
from tests.simulators.runtime_world import engine_program, member, weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROLES: Final[Any] = {
    "a1": ("authority",), "a2": ("authority",), "a3": ("authority",),
    "gw": ("gateway",), "w1": ("worker",), "w2": ("worker",),
}  # fmt: skip
OBSERVERS: Final = ("a1", "a2", "a3", "gw")
SETTLES_S: Final = 120.0
A_MOMENT_S: Final = 3.0
_TEN_MINUTES: Final = re.compile(r"\b(59|60)\d s\b")


class World:
    """The cluster, and its operator who counts revisions."""

    def __init__(self, lab: ClusterLab, folder: Path) -> None:
        self.lab = lab
        self._weights = weights(folder)
        self._program = engine_program(folder, token_delay_s=0.02, names_itself=True)
        self.revision = 0

    def publish(self, recorder: Recorder, *, at: str = "a1", **changes: Any) -> None:
        """Two warm replicas, one on each worker, with `changes`; acknowledged, and ready on every node."""
        result = self._published(recorder, at, SETTLES_S, changes)
        assert result["ready"], (result, self.lab.logs())

    def publish_alone(self, recorder: Recorder, *, at: str) -> None:
        """Acknowledged by an authority that hears no store."""
        assert not self._published(recorder, at, 0.0, {"max_queue_depth": 100 + self.revision})["in_store"]

    def _published(self, recorder: Recorder, at: str, wait_s: float, changes: dict[str, Any]) -> dict[str, Any]:
        served = clustered(member(self._weights, self._program, **changes), replicas=2, spread_by=("node_id",))
        envelope = self.lab.bundle({"q": served}, self.revision + 1)
        lines = self.lab.publish(at, envelope, self.revision or None, wait_s=wait_s)
        assert "result" in lines[-1], (lines[-1], self.lab.logs())
        result: dict[str, Any] = lines[-1]["result"]
        self.revision += 1
        recorder.published(at, result["revision"], result["content_digest"])
        return result

    @contextmanager
    def recorded(self, **more: Any) -> Iterator[Recorder]:
        """Under load, from a settled cluster to a settled cluster, and by the rules in between."""
        with self.lab.recorder("gw") as recorder:
            if not self.revision:
                self.publish(recorder)
            recorder.settles(OBSERVERS, SETTLES_S)
            recorder.load(self.lab.gateway("gw", "q-model"))
            time.sleep(A_MOMENT_S)
            yield recorder
            recorder.settles(OBSERVERS, SETTLES_S)
            time.sleep(A_MOMENT_S)
        recorder.holds(**more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    with ClusterLab(folder / "lab", ROLES) as lab:
        yield World(lab, folder)


def kill_and_start(lab: ClusterLab, name: str, *, down_s: float) -> None:
    lab.kill(name)
    time.sleep(down_s)
    lab.start(name).await_healthy(SETTLES_S)


def test_holder_of_the_lease_leader_of_the_store_and_a_worker_die_and_an_update_rolls(world: World) -> None:
    """A sample of what follows."""
    lab = world.lab
    with world.recorded() as recorder:
        holder = lab.holder()
        with recorder.fault("kill -9 lease-holder and store's leader", refuses=False):
            lab.kill(holder)
            leader = lab.store.leader("sbctl_leases") or "a1"
            lab.store.kill(leader)
            assert lab.holder() != holder
            lab.store.start(leader)
            lab.start(holder).await_healthy(SETTLES_S)
        recorder.settles(OBSERVERS, SETTLES_S)
        with recorder.fault("kill -9 a worker, w1", "w1"):
            kill_and_start(lab, "w1", down_s=1.0)
        recorder.settles(OBSERVERS, SETTLES_S)
        with recorder.fault("rolling update", refuses=False):
            world.publish(recorder, at="a2", max_concurrency=3)


@pytest.mark.soak
def test_another_authority_takes_the_lease_and_nothing_moves(world: World) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        for _ in range(2):
            holder, before = lab.holder(), lab.look("gw")
            with recorder.fault(f"kill -9 the lease-holder, {holder}", refuses=False):
                lab.kill(holder)
                follower = lab.holder()
                epoch = before["lease_epoch"]
                until(lambda epoch=epoch: lab.look("gw")["lease_epoch"] > epoch, "no plan of the next holder")
                lab.start(holder).await_healthy(SETTLES_S)
            recorder.settles(OBSERVERS, SETTLES_S)
            after = lab.look("gw")
            assert follower != holder
            assert [each["assignments"] for each in after["deployments"]] == [
                each["assignments"] for each in before["deployments"]
            ]


@pytest.mark.soak
def test_the_store_loses_its_leader_then_its_majority_and_nobody_who_asks_notices(world: World) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        leader = lab.store.leader("sbctl_assignments")
        assert leader
        with recorder.fault(f"kill -9 the store's leader, {leader}", refuses=False):
            lab.store.kill(leader)
            until(lambda: lab.store.leader("sbctl_assignments") not in (None, leader), "no other leader")
        recorder.settles(OBSERVERS, SETTLES_S)
        lab.store.start(leader)
        lab.store.wait_ready(leader)
        recorder.settles(OBSERVERS, SETTLES_S)
        with recorder.fault("kill -9 two members of the store", refuses=False):
            lab.store.kill("a1", "a2")
            until(lambda: lab.look("gw")["store"]["state"] != "connected", "nobody says that the store has no quorum")
            time.sleep(2 * A_MOMENT_S)
            lab.store.start("a1", "a2")
            lab.store.wait_ready("a1", "a2")


@pytest.mark.soak
def test_all_data_of_the_store_is_lost_and_the_authorities_give_it_back(world: World) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        with recorder.fault("kill -9 all of the store, and wipe it", refuses=False):
            lab.store.kill()
            lab.store.wipe()
            time.sleep(A_MOMENT_S)
            lab.store.start()
            lab.store.wait_ready()
        recorder.settles(OBSERVERS, SETTLES_S)
        # acknowledged by one authority while there is no store, and the store comes back empty
        with recorder.fault("publish without a store, then wipe it", refuses=False):
            lab.store.kill()
            world.publish_alone(recorder, at="a2")
            lab.store.wipe()
            lab.store.start()
            lab.store.wait_ready()


@pytest.mark.soak
def test_a_worker_dies_and_comes_back(world: World) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        for down_s, what in ((1.0, "for a moment"), (15.0, "until it is lost")):
            with recorder.fault(f"kill -9 a worker, w1, {what}", "w1"):
                kill_and_start(lab, "w1", down_s=down_s)
            recorder.settles(OBSERVERS, SETTLES_S)


@pytest.mark.soak
def test_a_worker_that_stands_still_keeps_no_request_that_had_no_byte(world: World) -> None:
    """Its process keeps its connections, and takes new ones."""
    lab = world.lab
    with world.recorded() as recorder, recorder.fault("stop the process of a worker, w1", "w1"):
        process = lab.runtimes["w1"].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(40.0)
        process.send_signal(signal.SIGCONT)


@pytest.mark.soak
def test_an_authority_and_a_gateway_are_restarted(world: World) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        with recorder.fault("restart an authority", refuses=False):
            lab.runtimes["a1"].stop()
            lab.start("a1").await_healthy(SETTLES_S)
        recorder.settles(OBSERVERS, SETTLES_S)
        with recorder.fault("stop the gateway", "gw"):
            lab.runtimes["gw"].stop()
            lab.start("gw").await_healthy(SETTLES_S)


@pytest.mark.soak
@pytest.mark.parametrize("off_s", [600, -600])
@pytest.mark.parametrize("whose", ["w1", "gw", "the lease-holder"])
def test_a_clock_that_is_ten_minutes_off_loses_no_request_and_is_told(world: World, whose: str, off_s: int) -> None:
    lab = world.lab
    with world.recorded() as recorder:
        node = lab.holder() if whose.startswith("the") else whose
        others = [name for name in OBSERVERS if name != node]
        with recorder.fault(f"the clock of {whose} is {off_s:+} s off", refuses=False):
            lab.set_clock(node, off_s)
            for other in others:
                until(lambda other=other: _told_of(lab, other, node) == "clock_skew", f"{other} counts {node} on")
                assert _TEN_MINUTES.search(_row(lab, other, node)["problem"])
            if node in OBSERVERS:
                until(lambda: _TEN_MINUTES.search(lab.look(node)["problem"] or "") is not None, f"{node} says nothing")
            if whose.startswith("the"):
                until(lambda: lab.holder() != node, f"{node} does not leave the lease")
                assert lab.holder() != node, "it took the lease again"
            time.sleep(A_MOMENT_S)
            lab.set_clock(node, 0)


def _row(lab: ClusterLab, observer: str, node: str) -> dict[str, Any]:
    return next((row for row in lab.look(observer)["nodes"] if row["node_id"] == node), {})


def _told_of(lab: ClusterLab, observer: str, node: str) -> str | None:
    return _row(lab, observer, node).get("exclusion_reason")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_rolling_update_fails_no_request(world: World) -> None:
    with world.recorded() as recorder:
        for number in range(3):
            with recorder.fault(f"rolling update {number + 1}", refuses=False):
                world.publish(recorder, at=OBSERVERS[number], max_concurrency=3 + number)
            recorder.settles(OBSERVERS, SETTLES_S)


@pytest.mark.soak
def test_recreate_refuses_what_it_must_with_retry_after(world: World) -> None:
    with world.recorded(exclusive=("q",)) as recorder, recorder.fault("recreate"):
        world.publish(recorder, max_concurrency=9, rollout="recreate")


@pytest.mark.soak
def test_who_is_revoked_serves_nobody_from_then_on(world: World) -> None:
    """The last one: the cluster has one worker less for good."""
    lab = world.lab
    with world.recorded() as recorder, recorder.fault("revoke a worker, w2", "w2"):
        lab.revoke("w2", at="a1")
        recorder.revoked("w2")
        until(lambda: _told_of(lab, "gw", "w2") == "identity_revoked", "the gateway believes it")
