"""Six hosts over SSH with systemd and the real engine: from nothing to a served cluster by one apply, and what faults and changes cost its callers.

`split`: h1 decides, h2 and h3 take requests, h4 to h6 compute. `quorum`: three members of the store that have other work, too. Each test prints
its figures. A cluster of three hosts is in `test_lab_cluster`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.cluster_faults import filled, kill_processes, shifted_clock, stopped, wipe_store
from tests.lab.cluster_lab import QUORUM, SPLIT, ClusterLab, Recording, cluster_on_six_hosts
from tests.lab.fixture import why_not
from tests.simulators.cluster_events import Asked
from tests.simulators.operator_world import until

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(1800)]

ROLES = {"split": SPLIT, "quorum": QUORUM}
TEN_MINUTES_S = 600
OUTAGE_S = 40
MOVE_S = 300


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterLab]:
    """From nothing, by one apply."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster_on_six_hosts(ROLES[request.param]) as made:
        made.sbctl("apply", "--yes")
        yield made


split = pytest.mark.parametrize("cluster", ["split"], indirect=True, scope="module")
both = pytest.mark.parametrize("cluster", ["split", "quorum"], indirect=True, scope="module")
quorum = pytest.mark.parametrize("cluster", ["quorum"], indirect=True, scope="module")


@both
def test_one_apply_makes_it_and_the_operator_sees_all_of_it(cluster: ClusterLab) -> None:
    assert "No changes" in cluster.sbctl("plan")
    told = cluster.status()
    status = told["status"]
    assert (told["alerts"], told["exit_code"], told["silent"]) == ([], 0, {})
    assert {row["node_id"]: set(row["roles"]) for row in status["nodes"]} == {
        name: set(roles) for name, roles in cluster.roles.items()
    }
    assert {row["health"] for row in status["nodes"]} == {"healthy"}
    assert len({row["active_bundle"]["content_digest"] for row in status["nodes"]}) == 1
    (chat,) = status["deployments"]
    assert (chat["ready_replicas"], chat["phase"], chat["unplaced_replicas"]) == (2, "stable", 0)
    assert len({one["node_id"] for one in chat["assignments"]}) == 2
    assert status["store"]["state"] == "connected"
    text = cluster.sbctl("cluster", "status")
    assert "6 nodes: 6 healthy; 2 of 2 replicas ready" in text
    assert all(name in text for name in cluster.hosts)
    assert "ready" in cluster.sbctl("doctor")
    for gateway in cluster.with_role("gateway"):
        seen = cluster.sbctl("cluster", "status", "--host", gateway.name)
        assert "2 of 2 replicas ready" in seen


# faults


def worker_killed(cluster: ClusterLab, recording: Recording) -> None:
    worker = cluster.running()[0]
    with recording.fault("runtime and engines of a worker die", worker):
        kill_processes(worker)


def worker_off(cluster: ClusterLab, recording: Recording) -> None:
    worker = cluster.running()[0]
    with recording.fault("power loss until its replica moved", worker):
        cluster.lab.kill(worker)
        until(lambda: cluster.is_moved(worker), "its replica runs elsewhere", MOVE_S)
        cluster.lab.start(worker)


def worker_cut(cluster: ClusterLab, recording: Recording) -> None:
    worker = cluster.running()[0]
    with recording.fault("a worker's link is cut", worker):
        cluster.lab.cut(worker)
        time.sleep(OUTAGE_S)
        cluster.lab.heal(worker)


def gateway_stopped(cluster: ClusterLab, recording: Recording) -> None:
    gateway = cluster.with_role("gateway")[1]
    began_s = recording.recorder.now_s()
    units = "sbctl-runtime.socket sbctl-runtime.service"
    with recording.fault("a gateway stops", gateway), stopped(gateway, units=units):
        recording.await_answers(3, at=cluster.with_role("gateway")[:1])
    under_way = [
        asked
        for asked in recording.recorder.history().of(Asked)
        if asked.gateway == gateway.name and asked.at_s < began_s < asked.ended_s
    ]
    assert {asked.outcome for asked in under_way} <= {"ok"}, under_way


def store_stopped(cluster: ClusterLab, recording: Recording) -> None:
    with (
        recording.fault("all of the store is away"),
        stopped(*cluster.with_role("authority"), units="sbctl-store.service"),
    ):
        time.sleep(OUTAGE_S)


def store_killed(cluster: ClusterLab, recording: Recording) -> None:
    leader = cluster.store_leader() if len(cluster.with_role("authority")) > 1 else cluster.with_role("authority")[0]
    with recording.fault("the store's leader dies"):
        leader.ssh("systemctl kill -s KILL sbctl-store.service")


def store_wiped(cluster: ClusterLab, recording: Recording) -> None:
    cluster.chat["max_queue_depth"] = cluster.chat.get("max_queue_depth", 50) + 1
    with recording.fault("a change", refuses=False):
        recording.apply()
    with recording.fault("the store loses its data"):
        wipe_store(*cluster.with_role("authority"))


def authority_restarted(cluster: ClusterLab, recording: Recording) -> None:
    holder = cluster.lease_holder()
    with recording.fault("the lease-holder restarts", holder):
        holder.ssh("systemctl restart sbctl-runtime.service", timeout_s=120)


def authority_cut(cluster: ClusterLab, recording: Recording) -> None:
    holder = cluster.lease_holder()
    with recording.fault("the lease-holder's link is cut", holder):
        cluster.lab.cut(holder)
        time.sleep(OUTAGE_S)
        cluster.lab.heal(holder)


def clock_of(role: str) -> Callable[[ClusterLab, Recording], None]:
    def shifted(cluster: ClusterLab, recording: Recording) -> None:
        host = {
            "worker": lambda: cluster.running()[0],
            "gateway": lambda: cluster.with_role("gateway")[1],
            "authority": cluster.lease_holder,
        }[role]()
        for seconds in (TEN_MINUTES_S, -TEN_MINUTES_S):
            with recording.fault(f"{role}'s clock is {seconds:+} s off", host), shifted_clock(host, seconds):
                time.sleep(OUTAGE_S)

    return shifted


def worker_full(cluster: ClusterLab, recording: Recording) -> None:
    worker = cluster.running()[0]
    with recording.fault("the disk of a worker is full", worker), filled(worker):
        time.sleep(OUTAGE_S)


def authority_full(cluster: ClusterLab, recording: Recording) -> None:
    """Its store takes no writes until it is started anew, which its keeper does when there is room."""
    holder = cluster.lease_holder()
    with recording.fault("the disk of an authority is full", holder):
        with filled(holder):
            time.sleep(OUTAGE_S)
        until(lambda: cluster.store_is_whole(holder), "its store takes writes again", MOVE_S)


ANYWHERE = {
    "worker killed": worker_killed,
    "worker off": worker_off,
    "worker cut": worker_cut,
    "gateway stopped": gateway_stopped,
    "store stopped": store_stopped,
    "store killed": store_killed,
    "store wiped": store_wiped,
    "authority restarted": authority_restarted,
    "clock of a worker": clock_of("worker"),
    "clock of a gateway": clock_of("gateway"),
    "clock of an authority": clock_of("authority"),
    "disk of a worker": worker_full,
    "disk of an authority": authority_full,
}
OF_THREE = ("store stopped", "store killed", "store wiped", "authority restarted", "clock of an authority")


@split
@pytest.mark.parametrize("name", ANYWHERE)
def test_a_fault_costs_what_it_must(cluster: ClusterLab, name: str) -> None:
    with cluster.recorded() as recording:
        ANYWHERE[name](cluster, recording)
        recording.holds()
    assert "No changes" in cluster.sbctl("plan")


@quorum
@pytest.mark.parametrize("name", [*OF_THREE, "authority cut"])
def test_three_authorities_lose_one_or_all_of_the_store(cluster: ClusterLab, name: str) -> None:
    faults = {**ANYWHERE, "authority cut": authority_cut}
    with cluster.recorded() as recording:
        faults[name](cluster, recording)
        recording.holds()
    assert "No changes" in cluster.sbctl("plan")


# changes


@both
def test_three_rolling_updates_of_two_warm_replicas_fail_nothing(cluster: ClusterLab) -> None:
    with cluster.recorded() as recording:
        for number in range(1, 4):
            cluster.chat["max_concurrency"] += 1
            with recording.fault(f"rolling update {number}", refuses=False):
                recording.apply()
        recording.holds()
    assert "No changes" in cluster.sbctl("plan")


@split
def test_recreate_refuses_and_says_when_to_come_back(cluster: ClusterLab) -> None:
    with cluster.recorded() as recording:
        cluster.chat["rollout"] = "recreate"
        cluster.chat["max_concurrency"] += 1
        with recording.fault("recreate"):
            recording.apply()
        del cluster.chat["rollout"]
        recording.apply()
        recording.holds(exclusive=["chat"])
    assert "No changes" in cluster.sbctl("plan")
