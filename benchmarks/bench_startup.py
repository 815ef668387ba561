"""What a command costs before it does anything: CPU seconds of `version` and of a plan of ten resources that finds nothing to do.

    .venv/bin/python benchmarks/bench_startup.py [--runs N]

One host, the machine it runs on, in a temporary directory: a real `apply` installs the real runtime there, with an engine program that only
pretends and weights of a few bytes; so the plan observes a live host through a node process of its own. CPU seconds are user and system of
the command with all its children, the least of N runs, since others use the machine too. Beside them `terraform version` and a
`terraform plan` of ten `terraform_data` blocks that finds nothing either, and what the runtime on the host costs while it waits.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bench_plan import write_terraform  # noqa: E402
from tests.simulators.node_channel import NodeChannelProcess  # noqa: E402
from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world  # noqa: E402

SNAPSHOTS = 50
MARKS = {"sbctl version": 0.25, "sbctl plan": 0.6}
"""CPU seconds, of the project's own design."""


@dataclass(frozen=True)
class Cost:
    name: str
    cpu_s: float
    wall_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="the least of so many runs counts")
    runs = parser.parse_args().runs
    with new_world() as world:
        ten_resources(world)
        own = [
            least("python -c 0", [sys.executable, "-c", "0"], world.fleet, world.environ(), runs),
            *(
                least(f"sbctl {words}", [SBCTL, *words.split()], world.fleet, world.environ(), runs)
                for words in ("version", "plan", "plan --no-refresh", "drift")
            ),
        ]
        theirs = terraform(runs)
        report(own, theirs)
        report_runtime(world)


def ten_resources(world: OperatorWorld) -> None:
    """Host, runtime, engine, bundle, and two of each: artifacts, deployments, origins; applied."""
    world.deployments["draft"] = {**world.deployments["chat"], "model": "small"}
    world.config["origins"] = {
        "localhost": {"action": world.serving(chat=["tiny"])},
        "draft.test": {"action": world.serving(draft=["small"])},
    }
    world.sbctl("apply", "--yes", expect=0)
    changes = world.sbctl("plan", "--format", "json", expect=0).json()["resource_changes"]
    if len(changes) != 10:
        raise SystemExit(f"the fleet has {len(changes)} resources, not ten")


def least(name: str, argv: Sequence[str], directory: Path, environ: Mapping[str, str], runs: int) -> Cost:
    """The cheapest of `runs`; the command must end with 0."""
    cpu_s = wall_s = math.inf
    for _ in range(runs):
        began_s = time.monotonic()
        process = subprocess.Popen(
            list(argv),
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{name} ended with {process.returncode}")
        cpu_s = min(cpu_s, usage.ru_utime + usage.ru_stime)
        wall_s = min(wall_s, time.monotonic() - began_s)
    return Cost(name, cpu_s, wall_s)


def terraform(runs: int) -> list[Cost]:
    """Nothing where there is no terraform."""
    program = shutil.which("terraform")
    if program is None:
        print("terraform is not on PATH: the comparison is left out")
        return []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_terraform(directory, 10)
        environ = {"PATH": os.environ["PATH"], "HOME": name, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
        measure: Callable[[str, list[str], int], Cost] = lambda title, words, times: least(  # noqa: E731
            title, [program, *words], directory, environ, times
        )
        measure("terraform init", ["init", "-input=false"], 1)
        return [
            measure("terraform version", ["version"], runs),
            measure("terraform plan", ["plan", "-input=false", "-detailed-exitcode"], runs),
        ]


def report(own: list[Cost], theirs: list[Cost]) -> None:
    print(f"{'':22}{'CPU s':>8}{'wall s':>8}{'mark':>8}{'/ terraform':>13}")
    compared = {cost.name.removeprefix("terraform "): cost for cost in theirs}
    for cost in (*own, *theirs):
        mark = f"{MARKS[cost.name]:8.2f}" if cost.name in MARKS else " " * 8
        beside = compared.get(cost.name.removeprefix("sbctl ")) if cost not in theirs else None
        ratio = f"{cost.cpu_s / beside.cpu_s:13.2f}" if beside is not None else ""
        print(f"{cost.name:22}{cost.cpu_s:8.3f}{cost.wall_s:8.3f}{mark}{ratio}".rstrip())


def report_runtime(world: OperatorWorld) -> None:
    """The daemon's memory at rest, and what one more snapshot costs a node process that is up."""
    [daemon] = world.running("main serve")
    print(f"runtime at rest: {daemon.memory_info().rss / 1e6:.0f} MB RSS (mark 100)")
    with NodeChannelProcess(world.paths) as node:
        node.call("snapshot", {})
        process = psutil.Process(node.process.pid)
        before, began_s = process.cpu_times(), time.monotonic()
        for _ in range(SNAPSHOTS):
            node.call("snapshot", {})
        after, wall_s = process.cpu_times(), time.monotonic() - began_s
        cpu_s = after.user + after.system - before.user - before.system
        memory = process.memory_info().rss / 1e6
    print(
        f"snapshot by a node process that is up: {1000 * cpu_s / SNAPSHOTS:.1f} ms CPU, "
        f"{1000 * wall_s / SNAPSHOTS:.1f} ms wall; the process has {memory:.0f} MB RSS"
    )


if __name__ == "__main__":
    main()
