"""E13 and a host's life, by the real `sbctl`: leased, drained, given up, taken in again."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.node.lease import LeaseClaim
from sbctl.remote.host_lease import HostLease, open_lease
from sbctl.remote.local import LocalTransport
from tests.simulators.operator_world import OperatorWorld, new_world, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def fleet(session_world: OperatorWorld) -> Iterator[OperatorWorld]:
    """One host `gpu-a`, which is this machine, applied once."""
    with new_world() as made:
        made.has_the_programs_of(session_world)
        made.config["fleet"] = {**made.config.get("fleet", {}), "hosts": {"gpu-a": {"address": "local"}}}
        made.base = {**made.config}
        made.sbctl("apply", "--yes", expect=0)
        yield made


def _lease(world: OperatorWorld, owner: str = "ci@runner") -> HostLease:
    """Another operator at work on the host."""
    environ = {"SBCTL_NODE_PREFIX": str(world.prefix)}
    python = os.path.realpath(sys.executable)
    environment = {"PATH": "/usr/bin:/bin"}
    lease = open_lease(
        LocalTransport("gpu-a", environ, SYSTEM_CLOCK), python, environment, SYSTEM_CLOCK, place="gpu-a", deadline_s=60
    )
    claim = LeaseClaim(owner, "apply serial 99", "lineage", "99-other")
    lease.take(claim, wait_s=0, deadline_s=60, cancelled=lambda: False)
    return lease


def _engine_is_ready(world: OperatorWorld) -> bool:
    with contextlib.suppress(OSError):
        return any(row["state"] == "ready" for row in world.status())
    return False


def test_E13_a_host_that_another_operator_changes_is_left_alone(fleet: OperatorWorld) -> None:
    lease = _lease(fleet)
    try:
        planned = fleet.sbctl("plan", "--replace", "deployment.gpu-a/chat", expect=2)
        assert "host gpu-a is being changed by ci@runner (apply serial 99)" in planned.text
        refused = fleet.sbctl("apply", "--yes", "--replace", "deployment.gpu-a/chat", expect=6)
        assert "ci@runner is changing this host (apply serial 99)" in refused.text
        assert "--lock-timeout" in refused.text
        assert "gpu-a leased" in refused.text
        waiting = fleet.start("apply", "--yes", "--replace", "deployment.gpu-a/chat", "--lock-timeout", "120")
        waiting.until_said("comparing the host with the plan")
    finally:
        lease.close()
    assert waiting.finish().code == 0
    assert not (fleet.paths.state / "lease.json").exists()


def test_E13_two_operators_race_for_one_host_and_one_of_them_wins(fleet: OperatorWorld, tmp_path: Path) -> None:
    other = tmp_path / "checkout"
    fleet.save()
    shutil.copytree(fleet.fleet, other)
    fleet.behaves(loads_until_told=True)
    both = [
        fleet.start("apply", "--yes", "--replace", "deployment.gpu-a/chat"),
        fleet.start("apply", "--yes", "--replace", "deployment.gpu-a/chat", "--file", str(other / "sb.yml")),
    ]
    until(lambda: any(one.process.poll() is not None for one in both), "one is refused while the other goes on", 120)
    fleet.behaves()
    done = sorted((one.finish() for one in both), key=lambda one: one.code)
    assert [one.code for one in done] == [0, 6]
    assert "is changing this host (apply serial" in done[1].text
    until(fleet.answers, "answers")
    fleet.sbctl("plan")


def test_a_drained_host_turns_requests_away_until_it_is_resumed(fleet: OperatorWorld) -> None:
    until(fleet.answers, "answers")
    drained = fleet.sbctl("host", "drain", "gpu-a", expect=0)
    assert "gpu-a is out of service" in drained.text
    assert not fleet.answers()
    assert "host gpu-a was taken out of service by" in fleet.sbctl("plan").text
    assert "gpu-a: out of service since" in fleet.sbctl("host", "list", "--check", expect=0).text
    assert "sbctl host resume gpu-a" in fleet.sbctl("doctor").text
    (serve,) = fleet.running("main serve")
    serve.kill()
    until(lambda: any(one.pid != serve.pid for one in fleet.running("main serve")), "the runtime again")
    until(lambda: _engine_is_ready(fleet), "the engine again")
    assert not fleet.answers(), "it holds over a restart"
    assert "in service again" in fleet.sbctl("host", "resume", "gpu-a", expect=0).text
    until(fleet.answers, "answers")
    assert "in service already" in fleet.sbctl("host", "resume", "gpu-a", expect=0).text


def test_a_lost_host_is_forgotten_refused_and_installed_anew_when_it_is_taken_in_again(fleet: OperatorWorld) -> None:
    fleet.sbctl("apply", "--yes")
    refused = fleet.sbctl("host", "forget", "gpu-a", "--lost", expect=4)
    assert "pass --yes" in refused.text
    forgotten = fleet.sbctl("host", "forget", "gpu-a", "--lost", "--yes", "--why", "burnt", expect=0)
    assert "nobody told the machine" in forgotten.text
    assert fleet.sbctl("state", "list", expect=0).out.count("gpu-a") == 0
    assert fleet.answers(), "nobody told the machine"
    refused = fleet.sbctl("plan", expect=4)
    assert "was given up as lost" in refused.text
    assert "--undo" in refused.text
    fleet.config["fleet"]["hosts"] = {"gpu-b": {"address": "local"}}
    assert "the machine at gpu-b is gpu-a, which was given up" in fleet.sbctl("plan", expect=4).text
    fleet.config["fleet"]["hosts"] = {"gpu-a": {"address": "local"}}
    fleet.sbctl("host", "forget", "gpu-a", "--undo", expect=0)
    (before,) = fleet.running("main serve")
    planned = fleet.sbctl("plan", expect=2)
    assert "then installs it anew" in planned.text
    fleet.sbctl("apply", "--yes", expect=0)
    (after,) = fleet.running("main serve")
    assert after.pid != before.pid
    until(fleet.answers, "answers")
    fleet.sbctl("plan", expect=0)


def test_a_host_that_is_forgotten_over_ssh_is_left_clean(fleet: OperatorWorld) -> None:
    fleet.sbctl("apply", "--yes")
    done = fleet.sbctl("host", "forget", "gpu-a", "--yes", expect=0)
    assert "nothing of ours is left on gpu-a" in done.text
    assert fleet.leftovers() == []
    assert fleet.running("main serve") == []


@pytest.mark.parametrize("command", [("drain",), ("resume",), ("forget", "--yes"), ("forget", "--lost", "--yes")])
def test_a_host_that_nobody_knows_is_said(fleet: OperatorWorld, command: tuple[str, ...]) -> None:
    refused = fleet.sbctl("host", command[0], "gpu-x", *command[1:], expect=3)
    assert "there is no host gpu-x" in refused.text
