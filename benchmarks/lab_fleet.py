"""A fleet on lab hosts for a benchmark: as many hosts as asked for, each with its own systemd and sshd, each serving by a stand-in engine.

Needs what the lab needs (root; tests/lab/hosts.sh); without it the program ends with the reason and status 0. The operator's side is a
directory of its own with the real `sbctl`, as in the tests.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.fixture import Lab, LabHost, booted, why_not
from tests.simulators.operator_world import FAKE, OperatorWorld, new_world

__all__ = ["Cost", "LabFleet", "lab_fleet", "least", "measured", "require_lab"]

PROGRAM = "/usr/local/bin/llama-server"
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_HOST = 8
"""Instances that the systemd, the logins and the message bus of one host take from a limit that is root's, on all hosts together."""


@dataclass(frozen=True)
class Cost:
    """Of one command with all its children that were waited for. `rss_bytes`: of the largest process."""

    name: str
    cpu_s: float
    wall_s: float
    rss_bytes: int = 0


@dataclass(frozen=True)
class LabFleet:
    lab: Lab
    world: OperatorWorld

    @property
    def hosts(self) -> tuple[LabHost, ...]:
        return self.lab.hosts


def measured(
    name: str, argv: Sequence[str], directory: Path, environ: Mapping[str, str], *, expect: Sequence[int] = (0,)
) -> tuple[Cost, str]:
    """Run a command to its end: what it cost and said. Ends the program when the command ends otherwise than expected."""
    said = directory / ".benchmark-output"
    begun_s = time.monotonic()
    with said.open("wb") as output:
        process = subprocess.Popen(
            list(argv), cwd=directory, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - begun_s
    text = said.read_text(errors="replace")
    if process.returncode not in expect:
        raise SystemExit(f"{name} ended with {process.returncode}:\n{text[-4000:]}")
    return Cost(name, usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss * 1024), text


def least(costs: Sequence[Cost]) -> Cost:
    """The cheapest run of one command; wall time and memory each the least of their own."""
    cpu_s = wall_s = math.inf
    for cost in costs:
        cpu_s, wall_s = min(cpu_s, cost.cpu_s), min(wall_s, cost.wall_s)
    return Cost(costs[0].name, cpu_s, wall_s, min(cost.rss_bytes for cost in costs))


def require_lab(count: int) -> None:
    """Ends the program, saying why, where so many hosts cannot be booted."""
    reason = why_not()
    if reason is None and int(INOTIFY_LIMIT.read_text()) < count * INOTIFY_PER_HOST:
        reason = (
            f"{count} hosts with systemd need {count * INOTIFY_PER_HOST} inotify instances: "
            f"sysctl -w fs.inotify.max_user_instances={2 * count * INOTIFY_PER_HOST}"
        )
    if reason is not None:
        print(f"left out: {reason}")
        raise SystemExit(0)


@contextlib.contextmanager
def lab_fleet(count: int) -> Iterator[LabFleet]:
    """Booted and named in sb.yml, with the stand-in engine's program on each; nothing is applied yet."""
    require_lab(count)
    with booted(count) as lab, new_world() as world:
        world.config = {
            **copy.deepcopy(world.base),
            "fleet": {
                "ssh": {"user": "root", "identity_file": lab.hosts[0].identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint} for host in lab.hosts},
            },
        }
        world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "binary", "path": PROGRAM}}
        program = base64.b64encode(FAKE.read_bytes()).decode()
        put = f"echo {program} | base64 -d > {PROGRAM} && chmod 755 {PROGRAM}"
        world.sbctl("host", "exec", "*", "--", "sh", "-c", put, expect=0)
        yield LabFleet(lab, world)
