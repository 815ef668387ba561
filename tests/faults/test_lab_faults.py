"""D and E of the threat list over a whole apply: one of two hosts loses its power or its network in the middle of a step.

The other host goes on; the one that is gone has its row, its cause and its next step; when it is back the next apply converges.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.state.store import StateStore
from tests.lab.fake_engine_fleet import fleet_of, hosts_with_engine
from tests.lab.fixture import Lab, LabHost
from tests.simulators.kill_loop import fresh_seed
from tests.simulators.operator_world import Done, OperatorWorld

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

SEED = fresh_seed()


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[tuple[LabHost, LabHost]]:
    """h2 has the accidents, h3 goes on."""
    with hosts_with_engine(lab) as chosen:
        yield chosen


@pytest.fixture
def fleet(hosts: tuple[LabHost, LabHost], lab: Lab) -> Iterator[OperatorWorld]:
    with fleet_of(hosts, lab) as world:
        yield world


def update(world: OperatorWorld) -> None:
    """The runtime is restarted, an artifact is sent, both deployments start engines."""
    model_host = world.config["proxy"]["model_host"]
    model_host["shutdown_deadline_ms"] = 2000
    model_host["deployments"]["chat"]["max_concurrency"] = 3
    model_host["deployments"]["code"] = {**model_host["deployments"]["chat"], "model": "small"}
    world.config["origins"]["localhost"]["action"] = world.serving(chat=["tiny"], code=["small"])


def struck(world: OperatorWorld, words: str, accident: Callable[[], None], *, within_s: float) -> Done:
    """An apply with an accident at a random moment after it said `words`."""
    delay_s = random.Random(f"{SEED} {words}").uniform(0, within_s)
    command = world.start("apply", "--yes", "--parallelism", "2")
    command.until_said(words)
    time.sleep(delay_s)
    accident()
    return command.finish(400)


def told_of_the_one_that_is_gone(world: OperatorWorld, done: Done, gone: LabHost, other: LabHost) -> None:
    assert done.code in (1, 7), f"seed {SEED}: {done.text}"
    assert "Traceback" not in done.text, done.text
    assert "internal.error" not in done.text, done.text
    store = StateStore(world.fleet / ".sbctl", SYSTEM_CLOCK)
    store.verify()
    rows = store.read().resources
    assert f"bundle.{other.name}" in {str(address) for address in rows}, done.text
    assert any(f"{gone.name} " in line or f".{gone.name}" in line for line in done.out.splitlines()), done.out
    assert "→" in done.out, done.out


def converges(world: OperatorWorld, hosts: tuple[LabHost, LabHost]) -> None:
    world.sbctl("apply", "--yes", expect=0)
    world.check_settled()
    for host in hosts:
        engines = host.ssh("pgrep -fc '[-]-model' || true").split()
        assert engines == [str(len(world.deployments))], f"seed {SEED}: {host.name} runs {engines} engines"
        assert host.ssh("pgrep -fc '[m]ain serve' || true").strip() == "1"
        assert host.ssh("find /opt/sbctl /var/lib/sbctl /etc/sbctl /var/cache/sbctl -name '.sbctl-tmp-*'") == ""


def test_a_host_that_loses_power_in_an_apply_is_told_and_converges_once_it_is_back(
    fleet: OperatorWorld, hosts: tuple[LabHost, LabHost], lab: Lab
) -> None:
    gone, other = hosts
    done = struck(fleet, f"{gone.name}: install runtime", lambda: lab.kill(gone), within_s=4)
    told_of_the_one_that_is_gone(fleet, done, gone, other)
    assert fleet.sbctl("plan").code == 7
    lab.start(gone)
    converges(fleet, hosts)
    update(fleet)
    done = struck(fleet, f"{gone.name}: activate", lambda: lab.kill(gone), within_s=2)
    told_of_the_one_that_is_gone(fleet, done, gone, other)
    lab.start(gone)
    converges(fleet, hosts)
    fleet.sbctl("destroy", "--yes", expect=0)


def test_a_cable_that_is_pulled_in_an_apply_is_told_and_healing_needs_nothing_else(
    fleet: OperatorWorld, hosts: tuple[LabHost, LabHost], lab: Lab
) -> None:
    gone, other = hosts
    fleet.sbctl("apply", "--yes", expect=0)
    update(fleet)
    try:
        done = struck(fleet, f"{gone.name}: activate", lambda: lab.cut(gone), within_s=2)
    finally:
        lab.heal(gone)
    told_of_the_one_that_is_gone(fleet, done, gone, other)
    converges(fleet, hosts)
    fleet.sbctl("destroy", "--yes", expect=0)
    for host in hosts:
        assert host.ssh("ls", "-d", "/etc/sbctl", "/opt/sbctl", "/var/lib/sbctl", check=False) == ""
    assert os.listdir(fleet.fleet)
