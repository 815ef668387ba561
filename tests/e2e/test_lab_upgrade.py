"""The runtime of a loaded host is upgraded by `sbctl apply` of other releases: engines keep their pids, no request fails; a broken one is put back."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.callers import Load
from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import FAKE, OperatorWorld, new_world
from tests.simulators.other_wheel import BROKEN_SERVE, other_release

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

NEXT, AFTER_NEXT, BROKEN = "0.1.93", "0.1.94", "0.1.95"
PROGRAM = "/usr/local/bin/llama-server"
ENGINES = "pgrep -u sbctl-engine | sort"


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    chosen = lab.hosts[2]
    lab.pristine(chosen)
    chosen.ssh(f"echo {base64.b64encode(FAKE.read_bytes()).decode()} | base64 -d > {PROGRAM}; chmod 755 {PROGRAM}")
    yield chosen
    lab.pristine(chosen)
    chosen.ssh(f"rm -f {PROGRAM}*")


@pytest.fixture(scope="module")
def fleet(host: LabHost) -> Iterator[OperatorWorld]:
    with new_world() as world:
        world.config = {
            **copy.deepcopy(world.base),
            "fleet": {
                "public": True,
                "ssh": {"user": "root", "identity_file": host.identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint}},
            },
            "origins": {"ai.internal": {"action": world.serving(chat=["tiny"])}},
        }
        world.config["proxy"] |= {"http_bind_port": 8080, "bind_address": "0.0.0.0"}
        # What runs longer than this is cut by definition; a busy machine must not make the fake's answers that slow.
        world.config["proxy"]["model_host"]["shutdown_deadline_ms"] = 20_000
        world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "binary", "path": PROGRAM}}
        world.sbctl("apply", "--yes", expect=0)
        yield world


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Version → environment of that release's sbctl."""
    directory: Path = tmp_path_factory.mktemp("releases")
    made = {version: other_release(directory, version) for version in (NEXT, AFTER_NEXT)}
    return made | {BROKEN: other_release(directory, BROKEN, BROKEN_SERVE)}


def _running(host: LabHost) -> str:
    return host.ssh("readlink /opt/sbctl/current; systemctl is-active sbctl-runtime")


def test_three_upgrades_and_a_broken_one_by_apply_lose_no_request_and_no_engine(
    fleet: OperatorWorld, host: LabHost, releases: dict[str, dict[str, str]]
) -> None:
    engines = host.ssh(ENGINES)
    assert len(engines.split()) == 1
    with Load(host.address, model="tiny") as load:
        for version in (NEXT, AFTER_NEXT, NEXT):
            fleet.config["fleet"]["runtime"] = {"version": version}
            applied = fleet.sbctl("apply", "--yes", env=releases[version], expect=0)
            assert version in applied.out
            fleet.sbctl("plan", env=releases[version], expect=0)
            assert _running(host).split() == [version, "active"]
            assert host.ssh(ENGINES) == engines
        fleet.config["fleet"]["runtime"] = {"version": BROKEN}
        failed = fleet.sbctl("apply", "--yes", env=releases[BROKEN], expect=1)
        assert "runtime.rolled_back" in failed.text
        assert "broken on purpose" in failed.text
        assert _running(host).split() == [NEXT, "active"]
        assert host.ssh(ENGINES) == engines
        fleet.config["fleet"]["runtime"] = {"version": NEXT}
        fleet.sbctl("apply", "--yes", env=releases[NEXT], expect=0)
        fleet.sbctl("plan", env=releases[NEXT], expect=0)
    assert load.failures == [], host.ssh("journalctl -u sbctl-runtime --no-pager -n 80 -o short-precise")
    assert load.answered > 100
    assert host.ssh(ENGINES) == engines
    fleet.sbctl("destroy", "--yes", env=releases[NEXT], expect=0)
    assert host.ssh("ls -d /etc/sbctl /opt/sbctl /var/lib/sbctl /var/cache/sbctl", check=False) == ""
