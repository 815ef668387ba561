"""SIGKILL in the middle of a first apply of 300 resources that cost nothing, for sbctl and, where it is on PATH, terraform.

    .venv/bin/python benchmarks/bench_kill.py [--kills 20] [--resources 300] [--seed N]

Each round is a fresh directory and one kill at a random moment between the first resource that the program says is done and its end.
Counted afterwards: state files that are empty or cannot be read, resources that the program had said were done and its state does not
know, and what the next plan wants to add. Theirs: `terraform_data` with local state. Ours: the executor and the state on disk with
simulated hosts, ten resources a host, so that both do nothing but remember. The product with real processes is in tests/faults.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbctl.apply.cancellation import Cancellation  # noqa: E402
from sbctl.apply.events import ChangeDone  # noqa: E402
from sbctl.apply.executor import execute  # noqa: E402
from sbctl.apply.outcome import ApplyOptions  # noqa: E402
from sbctl.base.clock import SYSTEM_CLOCK  # noqa: E402
from sbctl.base.errors import SbctlError  # noqa: E402
from sbctl.base.ids import Address  # noqa: E402
from sbctl.base.truths import ATTEMPTED, Desired, Recorded  # noqa: E402
from sbctl.plan.model import Plan  # noqa: E402
from sbctl.state.model import LockInfo, RunInfo  # noqa: E402
from sbctl.state.store import StateStore  # noqa: E402
from tests.simulators.fleet import FleetSimulator  # noqa: E402
from tests.simulators.memory_state import MemoryState  # noqa: E402
from tests.simulators.small_kinds import PROVIDERS, SmallServices, Wanted, prepare_host, small_plan, wanted  # noqa: E402

PER_HOST = 10
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Found:
    """What a killed program left in its state."""

    state: Literal["whole", "absent", "empty", "unreadable"]
    known: frozenset[str] = frozenset()


class Program(Protocol):
    """One of the two."""

    name: str
    resources: int
    env: dict[str, str]
    argv: Sequence[str]

    def prepare(self, directory: Path) -> None:
        """Everything up to the apply."""

    def done(self, line: str) -> str | None:
        """The resource that a line of output says is done."""

    def found(self, directory: Path) -> Found: ...

    def to_add(self, directory: Path) -> int | None:
        """What the next plan wants to add; None when it fails."""


class Terraform:
    name = "terraform"
    _DONE = re.compile(r"terraform_data\.(r\d+): Creation complete")
    _TO_ADD = re.compile(r"(\d+) to add")

    def __init__(self, program: str, resources: int) -> None:
        self.resources = resources
        self._program = program
        self.argv = [program, "apply", "-auto-approve", "-input=false", "-no-color"]
        self.env = {
            "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"),
            "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": os.devnull,
        }  # fmt: skip

    def prepare(self, directory: Path) -> None:
        blocks = (f'resource "terraform_data" "r{n:04}" {{\n  input = "{n}"\n}}\n' for n in range(self.resources))
        (directory / "main.tf").write_text("".join(blocks))
        argv = [self._program, "init", "-input=false", "-no-color"]
        subprocess.run(argv, cwd=directory, env=self.env, check=True, capture_output=True, timeout=DEADLINE_S)

    def done(self, line: str) -> str | None:
        match = self._DONE.search(line)
        return None if match is None else match[1]

    def found(self, directory: Path) -> Found:
        path = directory / "terraform.tfstate"
        if not path.exists():
            return Found("absent")
        if not path.stat().st_size:
            return Found("empty")
        try:
            document = json.loads(path.read_text())
            return Found("whole", frozenset(resource["name"] for resource in document["resources"]))
        except (ValueError, KeyError):
            return Found("unreadable")

    def to_add(self, directory: Path) -> int | None:
        argv = [self._program, "plan", "-input=false", "-no-color", "-lock=false", "-detailed-exitcode"]
        done = subprocess.run(
            argv, cwd=directory, env=self.env, check=False, capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode == 1:
            return None
        match = self._TO_ADD.search(done.stdout)
        return 0 if match is None else int(match[1])


class Sbctl:
    name = "sbctl"

    def __init__(self, resources: int) -> None:
        self.resources = resources
        self.argv = [sys.executable, str(Path(__file__).resolve()), "--victim", str(resources)]
        self.env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": str(ROOT)}

    def prepare(self, directory: Path) -> None:
        """Nothing: the state begins with the apply."""
        del directory

    def done(self, line: str) -> str | None:
        return line.removeprefix("done ").strip() if line.startswith("done ") else None

    def found(self, directory: Path) -> Found:
        store = StateStore(directory / ".sbctl", SYSTEM_CLOCK)
        try:
            if not store.exists():
                return Found("absent")
            store.verify()
            recorded = store.read().resources
        except SbctlError:
            return Found("unreadable")
        finished = (str(address) for address, row in recorded.items() if row.fingerprint != ATTEMPTED)
        return Found("whole", frozenset(finished))

    def to_add(self, directory: Path) -> int | None:
        try:
            recorded = StateStore(directory / ".sbctl", SYSTEM_CLOCK).read().resources
        except SbctlError:
            return None
        _, _, plan = _fleet(self.resources, {key: row for key, row in recorded.items() if row.fingerprint != ATTEMPTED})
        return sum(change.action == "create" for change in plan.actionable)


def _fleet(resources: int, recorded: dict[Address, Recorded]) -> tuple[FleetSimulator, dict[Address, Desired], Plan]:
    fleet = FleetSimulator(SYSTEM_CLOCK)
    for number in range(resources // PER_HOST):
        prepare_host(fleet, f"h{number:04}")
    names = tuple(f"m{number}" for number in range(PER_HOST))
    desired = wanted({host: Wanted(artifacts=names) for host in fleet.hosts}, fleet.connections())
    return fleet, desired, small_plan(fleet, desired, MemoryState(recorded))


class _Telling:
    """Says each change that is done, as terraform does."""

    def emit(self, stamped: Any) -> None:
        if isinstance(stamped.event, ChangeDone):
            print(f"done {stamped.event.address}", flush=True)


def victim(resources: int) -> None:
    """A first apply in the current directory, in a process that is there to be killed."""
    store = StateStore(Path(".sbctl"), SYSTEM_CLOCK)
    with store.lock(LockInfo("bench@here", os.getpid(), "apply", SYSTEM_CLOCK.now()), 0):
        store.create("bench")
        fleet, desired, plan = _fleet(resources, {})
        run = store.begin_run(RunInfo("apply", "bench@here"), desired.values())
        execute(
            plan,
            sessions=fleet.session,
            run=run,
            providers=PROVIDERS,
            services=SmallServices(SYSTEM_CLOCK, run.allocate_revision),
            options=ApplyOptions(),
            sink=_Telling(),
            cancel=Cancellation(),
        )


@dataclass
class Tally:
    """All rounds of one program; `forgotten` counts resources, everything else rounds."""

    name: str
    killed: int = 0
    absent: int = 0
    empty: int = 0
    unreadable: int = 0
    forgotten: int = 0
    adds_all: int = 0
    """The next plan wanted to add everything, although something had been said to be done."""
    plan_failed: int = 0

    def row(self) -> str:
        counts = (
            self.killed, self.absent, self.empty, self.unreadable, self.forgotten, self.adds_all, self.plan_failed,
        )  # fmt: skip
        return f"{self.name:10}" + "".join(f"{count:>15}" for count in counts)


HEAD = f"{'':10}" + "".join(
    f"{name:>15}" for name in ("kills", "no state", "empty", "unreadable", "forgotten", "plan adds all", "plan failed")
)


def lasts_s(program: Program) -> float:
    """How long the program works between its first finished resource and its end."""
    with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
        program.prepare(Path(name))
        told, seconds, code = _run(program, Path(name), None)
        assert code == 0, f"{program.name} ended with {code} without being killed"
        assert len(told) >= program.resources, f"{program.name} told of {len(told)} resources"
        return seconds


def _run(program: Program, directory: Path, kill_after_s: float | None) -> tuple[set[str], float, int]:
    """What it told before it ended, for how long since it told of the first, and its exit status."""
    process = subprocess.Popen(
        list(program.argv), cwd=directory, env=program.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    told: set[str] = set()
    timers = [threading.Timer(DEADLINE_S, process.kill)]
    timers[0].start()
    began_s = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        resource = program.done(line)
        if resource is None:
            continue
        if not told:
            began_s = time.monotonic()
            if kill_after_s is not None:
                timers.append(threading.Timer(kill_after_s, process.kill))
                timers[-1].start()
        told.add(resource)
    code = process.wait()
    for timer in timers:
        timer.cancel()
    process.stdout.close()
    return told, time.monotonic() - began_s, code


def kill_rounds(program: Program, *, kills: int, draw: random.Random) -> Tally:
    """First applies, each killed once, until so many were; one that ended before its kill does not count."""
    tally = Tally(program.name)
    about_s = lasts_s(program)
    for _ in range(4 * kills):
        if tally.killed >= kills:
            break
        with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
            program.prepare(Path(name))
            told, _, code = _run(program, Path(name), draw.uniform(0, about_s))
            if code != -signal.SIGKILL:
                continue
            found = program.found(Path(name))
            to_add = program.to_add(Path(name))
        tally.killed += 1
        tally.empty += found.state == "empty"
        tally.unreadable += found.state == "unreadable"
        tally.absent += found.state == "absent"
        tally.forgotten += len(told - found.known)
        tally.plan_failed += to_add is None
        tally.adds_all += bool(told) and to_add == program.resources
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--resources", type=int, default=300, help=f"a multiple of {PER_HOST}")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--victim", type=int, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.victim is not None:
        victim(arguments.victim)
        return
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    programs: list[Program] = [Sbctl(arguments.resources)]
    path = shutil.which("terraform")
    if path is not None:
        programs.append(Terraform(path, arguments.resources))
    print(f"{arguments.kills} kills in a first apply of {arguments.resources} resources, seed {seed}")
    print(HEAD)
    for program in programs:
        draw = random.Random(seed)
        print(kill_rounds(program, kills=arguments.kills, draw=draw).row(), flush=True)
    if path is None:
        print("terraform is not on PATH: the comparison is left out")


if __name__ == "__main__":
    main()
