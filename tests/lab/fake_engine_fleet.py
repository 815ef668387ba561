"""Two lab hosts with the stand-in engine on PATH, and a fleet of them that nothing has been applied to."""

from __future__ import annotations

import base64
import contextlib
import copy
from collections.abc import Iterator

from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import FAKE, OperatorWorld, new_world

__all__ = ["PROGRAM", "fleet_of", "hosts_with_engine"]

PROGRAM = "/usr/local/bin/llama-server"


@contextlib.contextmanager
def hosts_with_engine(lab: Lab) -> Iterator[tuple[LabHost, LabHost]]:
    """h2 and h3, bare before and after."""
    first, second = lab.hosts[1:3]
    for host in (first, second):
        lab.pristine(host)
        host.ssh(f"echo {base64.b64encode(FAKE.read_bytes()).decode()} | base64 -d > {PROGRAM}; chmod 755 {PROGRAM}")
    yield first, second
    for host in (first, second):
        lab.pristine(host)
        host.ssh(f"rm -f {PROGRAM}*")


@contextlib.contextmanager
def fleet_of(hosts: tuple[LabHost, LabHost], lab: Lab) -> Iterator[OperatorWorld]:
    """Its operator; the hosts are bare again afterwards."""
    with new_world() as world:
        world.config = {
            **copy.deepcopy(world.base),
            "fleet": {
                "ssh": {"user": "root", "identity_file": hosts[0].identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint} for host in hosts},
            },
        }
        world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "binary", "path": PROGRAM}}
        yield world
        for host in hosts:
            lab.pristine(host)
