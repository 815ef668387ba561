"""A state directory with what tests do to one: short ways to run, to break files, and to ask for an error by name."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection, Jump
from sbctl.base.digests import fingerprint
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.plan.model import Change, Step
from sbctl.state.location import StatePaths
from sbctl.state.model import LockInfo, RunInfo
from sbctl.state.run import Run
from sbctl.state.store import StateStore
from tests.simulators.fleet import ManualClock

__all__ = ["APPLY", "StateWorld", "address", "change", "desired", "fast_directory", "recorded", "step"]

APPLY = RunInfo("apply", "ops@desk", commit="3f" * 20, ci_url="https://ci.example/1", tool_version="0.1.0")
SSH = Connection(
    "ssh",
    "10.0.0.1",
    22,
    "ops",
    ("SHA256:abc",),
    "~/.ssh/id",
    agent_key="ops@corp",
    become="sudo",
    become_password="env:SUDO_PASSWORD",
    jumps=(
        Jump(
            "bastion", "bastion.corp", 2222, "hop", ("SHA256:def",), "~/.ssh/id", certificate_file="~/.ssh/id-cert.pub"
        ),
    ),
)


def address(number: int) -> Address:
    return Address("engine", f"gpu-{number}", "llama_cpp")


def recorded(number: int, content: object = 0) -> Recorded:
    spec = {"content": content, "list": [1, 2.5, None, True], "nested": {"é": "ü"}}
    return Recorded(
        address(number),
        {"path": f"/opt/{number}"},
        1,
        fingerprint(spec),
        spec,
        f"gpu-{number}",
        SSH,
        after=frozenset({Address("runtime", f"gpu-{number}")}),
    )


def desired(number: int, content: object = 0) -> Desired:
    spec = {"content": content}
    return Desired(address(number), spec, fingerprint(spec), f"gpu-{number}", SSH)


def step(key: str) -> Step:
    return Step(key, "engine.install", {"engine": "llama_cpp"}, "install engine llama_cpp")


def change(number: int) -> Change:
    return Change(address(number), "create", "new", f"gpu-{number}", SSH)


@contextlib.contextmanager
def fast_directory() -> Iterator[Path]:
    """A directory whose fsync costs little: in memory where the system has such a place."""
    memory = Path("/dev/shm")
    base = str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 64 << 20 else None
    with tempfile.TemporaryDirectory(prefix="sbctl-state-", dir=base) as name:
        yield Path(name)


class StateWorld:
    """One state directory below `root`, as successive processes see it: each `store()` is a new one."""

    def __init__(self, root: Path, clock: Clock | None = None) -> None:
        self.directory = root / ".sbctl"
        self.clock = clock or ManualClock()
        self.paths = StatePaths(self.directory)

    def store(self) -> StateStore:
        return StateStore(self.directory, self.clock)

    def info(self, command: str = "apply") -> LockInfo:
        return LockInfo("ops@desk", 4711, command, self.clock.now())

    @contextlib.contextmanager
    def locked(self, command: str = "apply") -> Iterator[StateStore]:
        store = self.store()
        with store.lock(self.info(command), 0):
            yield store

    @contextlib.contextmanager
    def running(self, *asked: Desired) -> Iterator[Run]:
        with self.locked() as store:
            if not store.exists():
                store.create("fleet")
            yield store.begin_run(APPLY, asked)

    def applied(self, *numbers: int, content: object = 0) -> int:
        """One finished run that recorded these; returns its serial."""
        with self.running(*(desired(number, content) for number in numbers)) as run:
            for number in numbers:
                run.intent(step(f"{address(number)}#1"), change(number))
                run.outcome(f"{address(number)}#1", "done")
                run.record(recorded(number, content))
            run.finish("applied")
            return run.serial

    def killed(self, *numbers: int) -> None:
        """A run that recorded these and had begun one more step when its process died."""
        with self.running(*(desired(number) for number in numbers)) as run:
            for number in numbers:
                run.record(recorded(number))
            run.intent(step("last#1"), change(99))

    def keep(self, name: str) -> Path:
        """A copy of the whole directory, as a crash or a backup would have it."""
        target = self.directory.parent / name
        shutil.copytree(self.directory, target)
        return target
