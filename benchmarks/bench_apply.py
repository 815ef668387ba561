"""What an apply costs for each resource: the executor and the real state on disk, hosts simulated. It must not grow with their number.

    .venv/bin/python benchmarks/bench_apply.py [--quick] [--directory DIR]

Ten artifacts a host, one step each: attempt, intent, act, read back, outcome, record, each durable. For N resources: CPU seconds (children
excluded, there are none), wall seconds, bytes written by the process as the kernel counts them, and the slope of log(CPU) and log(bytes)
over log(N); 1.0 is linear. A second apply of the same plan shows what doing nothing costs.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbctl.apply.cancellation import Cancellation  # noqa: E402
from sbctl.apply.events import MultiSink  # noqa: E402
from sbctl.apply.executor import execute  # noqa: E402
from sbctl.apply.outcome import ApplyOptions  # noqa: E402
from sbctl.base.clock import SYSTEM_CLOCK  # noqa: E402
from sbctl.base.ids import Address  # noqa: E402
from sbctl.base.process import begin_short_process  # noqa: E402
from sbctl.base.truths import Desired  # noqa: E402
from sbctl.plan.model import Plan  # noqa: E402
from sbctl.state.model import LockInfo, RunInfo  # noqa: E402
from sbctl.state.store import StateStore  # noqa: E402
from tests.simulators.fleet import FleetSimulator  # noqa: E402
from tests.simulators.memory_state import MemoryState  # noqa: E402
from tests.simulators.small_kinds import PROVIDERS, SmallServices, Wanted, prepare_host, small_plan, wanted  # noqa: E402

PER_HOST = 10


@dataclass(frozen=True)
class Cost:
    resources: int
    cpu_s: float
    wall_s: float
    written_bytes: int


def written_bytes() -> int:
    """Bytes this process asked the kernel to write, from its start; 0 where the kernel does not count."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Measured:
    """One fleet of N resources with its state on disk."""

    def __init__(self, resources: int, directory: Path) -> None:
        self.resources = resources
        self.fleet = FleetSimulator(SYSTEM_CLOCK)
        for number in range(math.ceil(resources / PER_HOST)):
            prepare_host(self.fleet, f"h{number:05}")
        names = tuple(f"m{number}" for number in range(PER_HOST))
        self.desired: dict[Address, Desired] = wanted(
            {host: Wanted(artifacts=names) for host in self.fleet.hosts}, self.fleet.connections()
        )
        self.store = StateStore(directory / str(resources), SYSTEM_CLOCK)
        self.lock = LockInfo("bench@here", 1, "apply", SYSTEM_CLOCK.now())

    def apply(self) -> Cost:
        with self.store.lock(self.lock, 0):
            if not self.store.exists():
                self.store.create("bench")
            plan = small_plan(self.fleet, self.desired, MemoryState(dict(self.store.read().resources)))
            return self._carry_out(plan)

    def _carry_out(self, plan: Plan) -> Cost:
        before = cpu_s(), time.monotonic(), written_bytes()
        run = self.store.begin_run(RunInfo("apply", "bench@here"), self.desired.values())
        result = execute(
            plan,
            sessions=self.fleet.session,
            run=run,
            providers=PROVIDERS,
            services=SmallServices(SYSTEM_CLOCK, run.allocate_revision),
            options=ApplyOptions(),
            sink=MultiSink(()),
            cancel=Cancellation(),
        )
        assert result.status == "applied", result.counts
        return Cost(self.resources, cpu_s() - before[0], time.monotonic() - before[1], written_bytes() - before[2])


def slope(costs: list[Cost], of: str) -> float:
    """Least squares of log(cost) over log(N)."""
    points = [(math.log(cost.resources), math.log(max(1e-9, getattr(cost, of)))) for cost in costs]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def report(costs: list[Cost], idle: list[Cost]) -> Mapping[str, float]:
    print("      N   CPU s   ms each   wall s   KiB each   CPU s of nothing to do")
    for cost, nothing in zip(costs, idle, strict=True):
        each_ms = 1000 * cost.cpu_s / cost.resources
        each_kib = cost.written_bytes / cost.resources / 1024
        print(
            f"{cost.resources:7} {cost.cpu_s:7.2f} {each_ms:9.2f} {cost.wall_s:8.2f} {each_kib:10.1f} {nothing.cpu_s:12.2f}"
        )
    found = {"cpu_slope": slope(costs, "cpu_s"), "bytes_slope": slope(costs, "written_bytes")}
    print(
        f"slope of CPU {found['cpu_slope']:.2f}, of bytes written {found['bytes_slope']:.2f} (1.0: constant for each resource)"
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="N = 50, 100, 200")
    parser.add_argument("--directory", type=Path, help="where the states are written; default: a temporary directory")
    parser.add_argument("--json", action="store_true", help="the slopes as one JSON line at the end")
    arguments = parser.parse_args()
    begin_short_process()
    sizes = [50, 100, 200] if arguments.quick else [100, 1000, 3000]
    with tempfile.TemporaryDirectory(prefix="sbctl-bench-", dir=arguments.directory) as name:
        fleets = [Measured(size, Path(name)) for size in sizes]
        costs = [fleet.apply() for fleet in fleets]
        idle = [fleet.apply() for fleet in fleets]
    found = report(costs, idle)
    if arguments.json:
        print(json.dumps(dict(found)))


if __name__ == "__main__":
    main()
