"""Hosts over SSH that are leased, rolled over, lost and taken in again; E13 with real connections, bare hosts and cut networks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import LockedError, SbctlError
from sbctl.node.lease import LeaseClaim
from sbctl.remote.session import HostSession, open_session
from tests.lab.fake_engine_fleet import fleet_of, hosts_with_engine
from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import OperatorWorld

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

THEIRS = LeaseClaim("ci@runner", "apply serial 99", "lineage", "99-other")
OURS = "/etc/sbctl /opt/sbctl /var/lib/sbctl /var/cache/sbctl"
LEASE = "/var/lib/sbctl/lease.json"


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[tuple[LabHost, LabHost]]:
    with hosts_with_engine(lab) as chosen:
        yield chosen


@pytest.fixture(scope="module")
def fleet(hosts: tuple[LabHost, LabHost], lab: Lab) -> Iterator[OperatorWorld]:
    with fleet_of(hosts, lab) as world:
        yield world


def _session(host: LabHost) -> HostSession:
    return open_session(host.name, host.connection(), clock=SYSTEM_CLOCK)


def _take(session: HostSession, claim: LeaseClaim = THEIRS, wait_s: float = 0.0) -> None:
    session.take_lease(claim, wait_s=wait_s, deadline_s=60, cancelled=lambda: False)


def test_E13_a_bare_host_that_another_operator_sets_up_is_left_alone_and_the_other_host_goes_on(
    hosts: tuple[LabHost, LabHost], fleet: OperatorWorld
) -> None:
    leased, free = hosts
    session = _session(leased)
    _take(session)
    refused = fleet.sbctl("apply", "--yes", expect=6)
    assert "ci@runner is changing this host (apply serial 99)" in refused.text
    assert f"{leased.name} leased" in refused.text
    assert "done" in refused.text
    assert leased.ssh("ls", "/etc/sbctl", "/opt/sbctl", check=False) == ""
    assert free.ssh("test", "-d", "/opt/sbctl") == ""
    session.close()
    time.sleep(1)
    assert leased.ssh("ls", "-d", *OURS.split(), check=False) == "", "a lease leaves nothing on a bare host"
    fleet.sbctl("apply", "--yes", expect=0)
    assert leased.ssh("ls", LEASE, check=False) == ""
    fleet.sbctl("plan", expect=0)


def test_a_lease_of_an_operator_whose_network_is_cut_ends_by_itself(
    hosts: tuple[LabHost, LabHost], lab: Lab, fleet: OperatorWorld
) -> None:
    host = hosts[0]
    gone = _session(host)
    _take(gone, replace(THEIRS, ttl_s=8.0))
    lab.cut(host)
    try:
        assert gone._lease is not None
        gone._lease._ended.set()
    finally:
        lab.heal(host)
    other = _session(host)
    with pytest.raises(LockedError, match="ci@runner"):
        _take(other, LeaseClaim("ops@laptop", "apply serial 1", "lineage", "1-ours"))
    _take(other, LeaseClaim("ops@laptop", "apply serial 1", "lineage", "1-ours"), wait_s=60)
    other.close()
    with pytest.raises(SbctlError):
        raise_lost(gone)
    gone.close()


def raise_lost(session: HostSession) -> None:
    """The lease that fell silent is not held any more."""
    lease = session._lease
    assert lease is not None
    lease._ask("renew", {}, 10.0)


def test_an_update_rolls_over_the_hosts_canary_first(hosts: tuple[LabHost, LabHost], fleet: OperatorWorld) -> None:
    first, canary = hosts
    fleet.config["fleet"]["update"] = {"max_unavailable": 1, "canary": canary.name, "pause_secs": 2}
    fleet.config["proxy"]["model_host"]["shutdown_deadline_ms"] = 4000
    planned = fleet.sbctl("plan", expect=2)
    assert f"update: one host at a time, {canary.name} first, 2 s pause, stops after 1 failed host" in planned.text
    done = fleet.sbctl("apply", "--yes", "--format", "json", expect=0)
    events = done.events()
    started = [event["host"] for event in events if event["type"] == "host_started"]
    assert started == [canary.name, first.name]
    finished = [event["sequence"] for event in events if event["type"] == "host_finished"]
    second_start = next(event["sequence"] for event in events if event.get("host") == first.name)
    assert finished[0] < second_start
    assert [event["waiting"] for event in events if event["type"] == "rollout_paused"] == [[first.name]]
    for host in hosts:
        assert host.ssh("ls", LEASE, "/var/lib/sbctl/drain.json", check=False) == ""
    fleet.sbctl("plan", expect=0)


def test_a_dead_host_is_given_up_and_comes_back_as_a_new_one(
    hosts: tuple[LabHost, LabHost], lab: Lab, fleet: OperatorWorld
) -> None:
    dead, _other = hosts
    entry = fleet.config["fleet"]["hosts"][dead.name]
    lab.kill(dead)
    try:
        planned = fleet.sbctl("plan", expect=7)
        assert "last seen 20" in planned.text
        assert f"sbctl host forget {dead.name} --lost" in planned.text
        assert fleet.sbctl("plan", "--allow-unreachable").code in (0, 2)
        fleet.sbctl("host", "forget", dead.name, "--lost", "--yes", expect=0)
        assert f"{dead.name} was given up as lost" in fleet.sbctl("plan", expect=4).text
        del fleet.config["fleet"]["hosts"][dead.name]
        fleet.config["fleet"].pop("update", None)
        fleet.sbctl("plan", expect=0)
    finally:
        lab.start(dead)
    fleet.config["fleet"]["hosts"][dead.name] = entry
    fleet.sbctl("plan", expect=4)
    fleet.sbctl("host", "forget", dead.name, "--undo", expect=0)
    assert "then installs it anew" in fleet.sbctl("plan", expect=2).text
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("plan", expect=0)
