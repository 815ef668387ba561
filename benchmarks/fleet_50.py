"""Fifty hosts over SSH in one run: no error, and what it costs the operator's machine.

    .venv/bin/python benchmarks/fleet_50.py [--hosts N] [--parallelism N] [--whole]

A host is an account with nothing on it and a port of its own: three on each of N/3 lab hosts, so that N connections, logins and interpreters
are real and the machine under them can be small. `plan` opens a connection to each and holds them all until it ends; `apply` of `host.*` claims every one,
under a lease of its own; `drift` then asks each again and finds nothing. A host that is left out or fails ends the program. CPU seconds and
memory are the client's, not the hosts'; the memory of a host is what it adds to the plan of one. Needs root.

With --whole one apply takes every account from nothing to a served answer: runtime, weights, a stand-in engine that is warm, each with
ports of its own. Then drift asks all again, and one destroy leaves nothing. A whole host takes some 0.3 GB of this machine, its disk
included: as many are taken as fit into four fifths of the memory that is free, and the program says how many.
"""

from __future__ import annotations

import argparse
import base64
import copy
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402

from benchmarks.lab_fleet import PROGRAM, Cost, measured, require_lab  # noqa: E402
from sbctl.base.display import format_bytes, plural  # noqa: E402
from tests.lab.fixture import Lab, booted  # noqa: E402
from tests.simulators.operator_world import FAKE, SBCTL, OperatorWorld, new_world  # noqa: E402

PORTS = {"ops": 22, "deploy": 2201, "pw": 2202}
"""Accounts of a lab host, none of them root, and where each is let in."""
FIRST_PORT = 18080
"""Of the runtimes: two for each account, since those of one machine share its ports."""
WHOLE_HOST_BYTES = 300_000_000
OF_FREE = 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--parallelism", type=int, default=16, help="hosts worked on at once")
    parser.add_argument("--whole", action="store_true", help="runtime, weights and engine on each host, by one apply")
    arguments = parser.parse_args()
    if arguments.whole:
        arguments.hosts = at_most(arguments.hosts)
    machines = math.ceil(arguments.hosts / len(PORTS))
    require_lab(machines)
    with booted(machines) as lab, new_world() as world:
        for host in lab.hosts:
            host.ssh("/usr/sbin/sshd", *(part for port in PORTS.values() if port != 22 for part in ("-p", str(port))))
        world.config = configuration(world, lab, arguments.hosts)
        at_once = ("--parallelism", str(arguments.parallelism))
        if arguments.whole:
            report(arguments.hosts, *whole(world, lab, arguments.hosts, at_once))
            return
        one = run(world, "plan of one", ("plan", *at_once), expect=2, hosts=1)
        costs = [
            run(world, "plan of all", ("plan", *at_once), expect=2, hosts=arguments.hosts),
            run(world, "apply of host.*", ("apply", "--yes", "--target", "host.*", *at_once), hosts=arguments.hosts),
            run(world, "drift, none", ("drift", *at_once), hosts=arguments.hosts),
        ]
    report(arguments.hosts, one, costs)


def configuration(world: OperatorWorld, lab: Lab, count: int) -> dict[str, Any]:
    logins = [(host, user) for host in lab.hosts for user in PORTS][:count]
    hosts = {
        f"{host.name}-{user}": {
            "address": host.address,
            "host_key": host.fingerprint,
            "ssh": {"user": user, "port": PORTS[user]},
        }
        for host, user in logins
    }
    fleet = {"ssh": {"identity_file": lab.hosts[0].identity_file}, "defaults": {"delivery": "push"}, "hosts": hosts}
    return {**copy.deepcopy(world.base), "fleet": fleet}


def at_most(hosts: int) -> int:
    """As many whole hosts as this machine bears. Ends the program where it bears none."""
    free = psutil.virtual_memory().available
    fit = min(hosts, int(free * OF_FREE // WHOLE_HOST_BYTES))
    if fit < hosts:
        print(f"{format_bytes(free)} of memory are free: {fit} whole hosts instead of {hosts}")
    if fit < 1:
        raise SystemExit(0)
    return fit


def whole(world: OperatorWorld, lab: Lab, hosts: int, at_once: Sequence[str]) -> tuple[Cost, list[Cost]]:
    """What the plan of one costs, then apply, drift and destroy of all. Every one of them served after the apply, or the program ends."""
    program = base64.b64encode(FAKE.read_bytes()).decode()
    for host in lab.hosts:
        host.ssh(f"echo {program} | base64 -d > {PROGRAM} && chmod 755 {PROGRAM}")
    world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "binary", "path": PROGRAM}}
    for number, host in enumerate(world.config["fleet"]["hosts"].values()):
        port = FIRST_PORT + 2 * number
        host["proxy"] = {"http_bind_port": port, "admin": {"port": port + 1}}
    one = run(world, "plan of one", ("plan", *at_once), expect=2, hosts=1)
    before = psutil.virtual_memory().available
    costs = [run(world, "apply of all", ("apply", "--yes", *at_once), hosts=hosts)]
    served = sum(
        row["state"] == "ready"
        for row in world.sbctl("models", "ps", "--host", "*", "--format", "json").json()["deployments"]
    )
    taken = (before - psutil.virtual_memory().available) / hosts
    print(f"{served} of {hosts} serve; {taken / 1e6:.0f} MB of this machine a host, its disk included")
    if served != hosts:
        raise SystemExit("not every host serves")
    costs.append(run(world, "drift, none", ("drift", *at_once), hosts=hosts))
    costs.append(run(world, "destroy of all", ("destroy", "--yes", *at_once), hosts=hosts))
    return one, costs


def run(world: OperatorWorld, name: str, words: Sequence[str], *, hosts: int, expect: int = 0) -> Cost:
    """Over the first `hosts`, each of which must have been asked."""
    everyone = world.config["fleet"]["hosts"]
    world.config["fleet"]["hosts"] = dict(list(everyone.items())[:hosts])
    world.save()
    world.config["fleet"]["hosts"] = everyone
    cost, said = measured(name, (SBCTL, *words), world.fleet, world.environ(), expect=(expect,))
    if f"{plural(hosts, 'host')} observed" not in " ".join(said.split()):
        raise SystemExit(f"{name} did not ask every host:\n{said[-4000:]}")
    return cost


def report(hosts: int, one: Cost, costs: list[Cost]) -> None:
    print(f"{hosts} hosts{'':15}{'wall s':>8}{'CPU s':>8}{'ms a host':>11}{'RSS MB':>8}{'KB a host':>11}")
    for cost in (one, *costs):
        added = "" if cost is one else f"{(cost.rss_bytes - one.rss_bytes) / hosts / 1e3:11.0f}"
        each = "" if cost is one else f"{1000 * cost.cpu_s / hosts:11.0f}"
        line = f"{cost.name:23}{cost.wall_s:8.1f}{cost.cpu_s:8.2f}{each or ' ' * 11}{cost.rss_bytes / 1e6:8.0f}{added}"
        print(line.rstrip())


if __name__ == "__main__":
    main()
