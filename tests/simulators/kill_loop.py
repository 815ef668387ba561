"""Kill any process of the product in the middle of any command, and require that nothing was lost and that the next command ends it.

    round = operation × victim × moment
    prepared ─► command, killed ─► state whole, nothing finished forgotten ─► command again, exit 0 ─► plan and drift agree, one of each process

Meanwhile a reader looks at the state twenty times a second, as another terminal would: it never sees less than it saw before.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.ids import Address
from sbctl.base.truths import ATTEMPTED
from sbctl.state.model import JournalEntry
from sbctl.state.store import StateStore
from tests.simulators.operator_world import Done, OperatorWorld, Running, until

__all__ = [
    "CHANGED_MINDS",
    "LAP",
    "KillLoop",
    "Moment",
    "Operation",
    "Round",
    "Victim",
    "every_nth",
    "fresh_seed",
    "quick_world",
]

Operation = Literal["create", "update", "rollback", "destroy"]
Victim = Literal["sbctl", "node interface", "runtime", "supervisor", "engine"]

Round = tuple[Operation, Operation | None]
"""What is killed, and what the user runs instead of the same again."""

LAP: Final[tuple[Round, ...]] = (
    ("create", None), ("update", None), ("rollback", None), ("update", None), ("destroy", None),
)  # fmt: skip
CHANGED_MINDS: Final[tuple[Round, ...]] = (
    ("create", "destroy"), ("create", None), ("update", "rollback"), ("destroy", "create"), ("destroy", None),
)  # fmt: skip
"""Each round begins where the one before it ended."""

_ABOUT_BOUNDARIES: Final[dict[Operation, int]] = {"create": 43, "update": 24, "rollback": 23, "destroy": 29}
_ABOUT_S: Final[dict[Operation, float]] = {"create": 6.0, "update": 2.5, "rollback": 2.5, "destroy": 1.5}
_WORDS: Final[dict[Victim, str]] = {
    "node interface": "--stdio", "runtime": "main serve", "supervisor": "main supervise", "engine": "--model",
}  # fmt: skip
_READ_EVERY_S: Final = 0.05
_OVERLAP_S: Final = 5.0
"""So long an engine that was told to end may still be seen beside its successor."""
_MAY_END_WITH: Final = frozenset({0, 1, 5, 7, 8})
"""A command whose host lost a process, before (5: not as planned) or in a step; never 3 (a damaged state) and never a traceback."""
_TEMPORARY: Final = re.compile(r"\.sbctl-tmp-|\.staging|\.part$|-journal$")


def fresh_seed() -> int:
    """Given by SBCTL_KILL_SEED when the module is imported, else new."""
    return int(os.environ.get("SBCTL_KILL_SEED") or random.SystemRandom().randrange(1 << 31))


def every_nth() -> tuple[int, int]:
    """First and stride of a loop over boundaries: SBCTL_SOAK_PART=2/5, read when the module is imported, plays 2, 7, 12, …"""
    part, _, parts = (os.environ.get("SBCTL_SOAK_PART") or "1/1").partition("/")
    return int(part), int(parts)


@dataclass(frozen=True)
class Moment:
    """When to kill: at a step boundary, so long after the start, or so long after the run began."""

    boundary: int | None = None
    after_start_s: float | None = None
    after_begin_s: float | None = None
    age_s: float = 0.0
    """Of a victim that is not there yet at that moment: when it is so old."""

    @classmethod
    def at_random(cls, draw: random.Random, about_s: float) -> Moment:
        """One in four before anything is changed (reading, observing, making keys and state), else while it is."""
        if draw.random() < 0.25:
            return cls(after_start_s=draw.uniform(0.2, 2.0), age_s=draw.uniform(0.0, 0.5))
        return cls(after_begin_s=draw.uniform(0.0, about_s), age_s=draw.uniform(0.0, 0.5))

    @classmethod
    def at_boundary(cls, draw: random.Random, about: int) -> Moment:
        return cls(boundary=draw.randint(1, about))


class StateReader:
    """Another terminal. Collects what must not be: an error, a serial that goes back, a journal that gets shorter."""

    def __init__(self, directory: Path) -> None:
        self.store = StateStore(directory, SYSTEM_CLOCK)
        self.problems: list[str] = []
        self.serial = -1
        self.reads = 0
        self._entries: list[JournalEntry] = []
        self._stop = threading.Event()

    def look(self) -> None:
        """One look. Raises what reading raises."""
        if not self.store.exists():
            if self.serial >= 0:
                self.problems.append("a state that was there is read as one that never was")
            return
        serial = self.store.read().serial
        if serial < self.serial:
            self.problems.append(f"serial {self.serial} went back to {serial}")
        if self.serial >= 0:
            kept = self.store.journal(self.serial)
            if kept[: len(self._entries)] != self._entries:
                self.problems.append(f"the journal of serial {self.serial} lost entries")
        self.serial, self._entries = serial, self.store.journal(serial)
        self.reads += 1

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        self._stop.clear()
        thread = threading.Thread(target=self._loop, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(_READ_EVERY_S):
            try:
                self.look()
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {error}")
                return


class KillLoop:
    """One machine on which commands are killed. `told` is the log that an assertion prints; `victims` counts what was killed."""

    def __init__(self, world: OperatorWorld, changed: dict[str, Any], engines: dict[Operation, int]) -> None:
        """`changed`: sb.yml after the update. `engines`: how many engine processes an operation leaves."""
        self.world = world
        self.changed = changed
        self.engines = engines
        self.told: list[str] = []
        self.about_s = dict(_ABOUT_S)
        self.about_boundaries = dict(_ABOUT_BOUNDARIES)
        self.reader = StateReader(world.fleet / ".sbctl")
        self.base_serial = 0
        self.victims = 0
        self._engines_seen: dict[str, float] = {}

    # One round

    def play(self, operation: Operation, victim: Victim, moment: Moment, *, instead: Operation | None = None) -> bool:
        """Kill, judge, converge, judge. `instead`: the user changes their mind and runs this after the kill. False: nothing was killed."""
        began_s = time.monotonic()
        self.told.append(f"{operation}, {victim} killed at {moment}" + (f", then {instead}" if instead else ""))
        self.prepare(operation)
        before_serial = self.reader.serial
        with self.reader.looking():
            done = self._killed(operation, victim, moment)
        was_killed = done.code == -signal.SIGKILL
        self.victims += was_killed
        after = f"{time.monotonic() - began_s:.1f} s"
        self.told.append(f"  ended with {done.code} after {after}: {done.text[-300:] if victim != 'sbctl' else ''}")
        if victim != "sbctl" or not was_killed:
            assert done.code in _MAY_END_WITH, self.story(done)
            assert "internal.error" not in done.text, self.story(done)
            assert "Traceback" not in done.text, self.story(done)
        finished = self._judge_state(done, before_serial)
        self._converge(
            instead or operation, finished if victim in ("sbctl", "node interface") and not instead else set()
        )
        self.told.append(f"  agreed after {time.monotonic() - began_s:.1f} s")
        return was_killed

    def bring(self, operation: Operation) -> None:
        """The same without a kill: to where another operation begins."""
        self._converge(operation, set())

    def story(self, done: Done | None = None) -> str:
        """What happened so far, for the reader of a failed assertion."""
        said = "" if done is None else f"\n{done.argv} ended with {done.code}\n{done.out}\n{done.err}"
        return "\n".join(self.told) + said

    def prepare(self, operation: Operation) -> None:
        """sb.yml as the operation wants it."""
        if operation == "create":
            self.world.config = copy.deepcopy(self.world.base)
        elif operation == "update":
            self.world.config = copy.deepcopy(self.changed)
        self.world.save()

    def arguments(self, operation: Operation) -> tuple[str, ...]:
        """Its command."""
        if operation == "rollback":
            return ("rollback", str(self.base_serial), "--yes", "--format", "json")
        return ("destroy" if operation == "destroy" else "apply", "--yes", "--format", "json")

    def _killed(self, operation: Operation, victim: Victim, moment: Moment) -> Done:
        env = {} if moment.boundary is None else {"SBCTL_TESTING": "1", "SBCTL_CRASH_AT": str(moment.boundary)}
        command = self.world.start(*self.arguments(operation), env=env)
        if moment.after_begin_s is not None:
            until(lambda: command.said('"run_started"') or command.process.poll() is not None, "the run's begin")
        delay_s = moment.after_begin_s or moment.after_start_s or 0.0
        self._watch_engines(time.monotonic() + delay_s)
        if moment.boundary is None:
            self._kill(victim, command, moment.age_s)
        while command.process.poll() is None:
            self._watch_engines(time.monotonic() + 0.1)
        return command.finish()

    def _kill(self, victim: Victim, command: Running, age_s: float) -> None:
        if victim == "sbctl":
            with contextlib.suppress(ProcessLookupError):
                command.signal(signal.SIGKILL)
            return
        found = self.world.running(_WORDS[victim])
        while not found and command.process.poll() is None:
            time.sleep(0.02)
            if found := self.world.running(_WORDS[victim]):
                time.sleep(age_s)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
                self.victims += 1

    # What must hold

    def _watch_engines(self, end_s: float) -> None:
        """No replica has two engine processes, beyond the moment in which one ends."""
        while True:
            counted = Counter(_without_port(process) for process in self.world.running("--model"))
            twice = {line for line, count in counted.items() if count > 1 and line}
            now_s = time.monotonic()
            self._engines_seen = {line: self._engines_seen.get(line, now_s) for line in twice}
            for line, since_s in self._engines_seen.items():
                assert now_s - since_s < _OVERLAP_S, f"two engines of one replica: {line}\n{self.story()}"
            if now_s >= end_s:
                return
            time.sleep(min(0.1, max(0.0, end_s - now_s)))

    def _judge_state(self, done: Done, before_serial: int) -> set[str]:
        """The state right after the kill; the addresses that the killed run finished."""
        self.reader.look()
        assert not self.reader.problems, f"{self.reader.problems}\n{self.story(done)}"
        store = self.reader.store
        if not store.exists():
            return set()
        store.verify()
        view = store.read()
        if view.serial == before_serial:
            return set()
        there: dict[str, bool] = {}
        finished: set[str] = set()
        for entry in store.journal(view.serial):
            if entry.event in ("record", "forget"):
                there[entry.subject] = entry.event == "record"
                if entry.event == "forget" or entry.detail["fingerprint"] != ATTEMPTED:
                    finished.add(entry.subject)
        recorded = {str(address) for address in view.resources}
        for subject, is_there in there.items():
            assert (subject in recorded) is is_there, f"{subject} was journaled and is not so\n{self.story(done)}"
        told = {event["address"] for event in done.events() if event.get("type") == "change_done"}
        assert told <= finished, f"told as done, not in the journal: {told - finished}\n{self.story(done)}"
        return finished

    def _converge(self, operation: Operation, finished: set[str]) -> None:
        """The command again: exit 0, no finished change is done again, and everything agrees."""
        self.prepare(operation)
        done = self.world.sbctl(*self.arguments(operation))
        assert done.code == 0, self.story(done)
        events = done.events()
        again = {event["address"] for event in events if event.get("type") == "step_started"} & finished
        assert not again, f"finished, and done again: {again}\n{self.story(done)}"
        self.reader.look()
        assert not self.reader.problems, self.story(done)
        store = self.reader.store
        if operation == "destroy" and not store.exists():  # killed before anything was begun
            self._judge_machine(operation)
            return
        view = store.read()
        assert view.open_intents == (), self.story(done)
        if operation == "create":
            self.base_serial = view.serial
        self._judge_machine(operation)
        if operation == "destroy":
            assert not view.resources, self.story(done)
            assert self.world.leftovers() == [], f"{self.world.leftovers()}\n{self.story(done)}"
        else:
            self._judge_answers(operation, view.resources)
            assert self.world.listens(self.world.port)

    def _judge_answers(self, operation: Operation, recorded: Any) -> None:
        drift = self.world.sbctl("drift")
        assert drift.code == 0, self.story(drift)
        if operation != "rollback":
            plan = self.world.sbctl("plan")
            assert plan.code == 0, self.story(plan)
        assert all(row.fingerprint != ATTEMPTED for row in recorded.values()), self.story()
        assert Address.parse("runtime.local") in recorded

    def _judge_machine(self, operation: Operation) -> None:
        """One supervisor, one runtime, the engines that were asked for, and nothing else of ours."""
        lives = operation != "destroy"
        wanted = {_WORDS["supervisor"]: int(lives), _WORDS["runtime"]: int(lives), "--model": self.engines[operation]}

        def settled() -> bool:
            found = {word: len(self.world.running(word)) for word in wanted}
            return found == wanted and len(self.world.processes()) == sum(wanted.values())

        try:
            until(settled, "one of each process", 20)
        except AssertionError as error:
            listed = "\n".join(f"{process.pid} {_line(process)}" for process in self.world.processes())
            raise AssertionError(f"{wanted} expected, found:\n{listed}\n{self.story()}") from error
        temporaries = self.temporaries()
        assert not temporaries, f"left behind: {temporaries}\n{self.story()}"

    def temporaries(self) -> Sequence[str]:
        """What an interrupted write left, on the host and beside the state."""
        roots = (self.world.prefix, self.world.fleet)
        found = [
            str(path.relative_to(self.world.root))
            for root in roots
            for path in root.rglob("*")
            if _TEMPORARY.search(path.name)
        ]
        return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


@contextlib.contextmanager
def quick_world() -> Iterator[OperatorWorld]:
    """A machine with nothing on it, in memory where the system has such a place for programs: an installation is thousands of files."""
    memory = Path("/dev/shm")
    suits = (
        memory.is_dir() and not os.statvfs(memory).f_flag & os.ST_NOEXEC and shutil.disk_usage(memory).free > 2 << 30
    )
    world = OperatorWorld(Path(tempfile.mkdtemp(prefix="sbk", dir=memory if suits else "/tmp")))
    try:
        yield world
    finally:
        world.close()


def _line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _without_port(process: psutil.Process) -> str:
    return re.sub(r"--(port|host) \S+", "", _line(process))
