"""systemd as the launcher sees it, without systemd: units that start, end, hang and are listed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbctl.base.errors import HostError
from sbctl.engines.model import LAUNCHER_NAME
from sbctl.runtime.launcher.engine_units import EngineUnits, Owners
from sbctl.runtime.launcher.server import LauncherServer
from sbctl.runtime.launcher.site import Site, engine_socket
from sbctl.runtime.launcher.spec import EngineSpec
from sbctl.runtime.launcher.units import UnitState
from sbctl.runtime.launcher_client import LauncherClient

TOKEN = "0123456789abcdef"


@dataclass
class UnitWorld:
    """All units. `dies` are pids that a SIGTERM ends; those that are not there need SIGKILL; `immortal` outlive that too."""

    units: dict[str, UnitState] = field(default_factory=dict)
    specs: list[EngineSpec] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    start_fault: HostError | None = None
    ignores_term: bool = False
    immortal: bool = False
    _next_pid: int = 4_100_000

    async def start(self, spec: EngineSpec) -> None:
        self.events.append(f"start {spec.unit}")
        if self.start_fault is not None:
            raise self.start_fault
        self.specs.append(spec)
        self._next_pid += 1
        self.units[spec.unit] = UnitState(
            spec.unit, True, True, False, self._next_pid, f"{self._next_pid:032x}", None, "success", f"/{spec.unit}"
        )

    async def show(self, unit: str) -> UnitState:
        return self.units.get(unit, UnitState(unit, False, False, True, None, "", None, "", ""))

    async def listed(self) -> Sequence[UnitState]:
        return list(self.units.values())

    async def stop(self, unit: str) -> None:
        self.events.append(f"stop {unit}")
        if not self.ignores_term:
            self.units.pop(unit, None)

    async def kill(self, unit: str) -> None:
        self.events.append(f"kill {unit}")
        if not self.immortal:
            self.units.pop(unit, None)

    async def forget(self, unit: str) -> None:
        self.events.append(f"forget {unit}")

    def pids(self, cgroup: str) -> frozenset[int]:
        return frozenset(state.pid for state in self.units.values() if state.cgroup == cgroup and state.pid is not None)

    async def lines(self, invocation: str, count: int) -> Sequence[str]:
        return [f"last words of {invocation[-4:]}"][:count]

    def ends(self, unit: str, returncode: int, result: str = "success") -> None:
        """By itself: systemd keeps it, so that it can be asked how."""
        self.units[unit] = replace(
            self.units[unit],
            is_running=False,
            is_stopped=True,
            pid=None,
            returncode=returncode,
            result=result,
            cgroup="",
        )


@contextmanager
def short_directory() -> Iterator[Path]:
    """Where a socket's path fits."""
    with tempfile.TemporaryDirectory(prefix="sbu", dir="/tmp") as name:
        yield Path(name)


@dataclass(frozen=True)
class Place:
    """A host's directories with one engine of ours, `9.9`, and one program that root listed."""

    root: Path
    site: Site

    @property
    def home(self) -> Path:
        return self.site.engines / "llama_cpp" / "9.9"

    @property
    def sockets(self) -> Path:
        return self.root / "run" / "engines"

    @property
    def program(self) -> Path:
        return self.site.programs[0]

    def engines(self, world: UnitWorld) -> EngineUnits:
        owners = Owners(os.geteuid(), os.getegid(), programs=os.geteuid())
        return EngineUnits(world, lambda: self.site, lambda: owners, sockets=self.sockets)


def make_place(root: Path) -> Place:
    root = root.resolve()
    weights, engines, program = root / "weights", root / "engines", root / "bin" / "llama-server"
    place = Place(root, Site(engines, (weights,), (program,), away_s=60.0))
    for directory in (weights, place.home / "bin", program.parent, place.sockets.parent):
        directory.mkdir(parents=True)
    for file in (place.home / LAUNCHER_NAME, program):
        file.write_text("")
        file.chmod(0o755)
    (place.home / "bin" / "python").symlink_to(Path(os.path.realpath("/usr/bin/python3")))
    return place


def wheel_request(place: Place, token: str = TOKEN) -> dict[str, object]:
    """A start that is admitted: an engine of ours behind its socket."""
    socket = str(engine_socket(token, place.sockets))
    home = place.home
    return {
        "deployment": "chat",
        "generation": 1,
        "replica": 0,
        "token": token,
        "argv": [
            str(home / "bin" / "python"),
            "-I",
            "-B",
            str(home / LAUNCHER_NAME),
            "--model",
            str(place.site.weights[0] / "a" / "m.gguf"),
            "--alias",
            "chat",
            "--host",
            socket,
            "--ctx-size",
            "512",
            "--parallel",
            "1",
            "--threads",
            "1",
        ],
        "env": {"LANG": "C.UTF-8"},
        "unix_path": socket,
        "port": None,
        "memory_bytes": None,
    }


def binary_request(place: Place, port: int = 4000) -> dict[str, object]:
    """A start that is admitted: a program of the user's on a loopback port."""
    flags = [
        "--model",
        str(place.site.weights[0] / "m.gguf"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--ctx-size",
        "512",
    ]
    return {
        **wheel_request(place),
        "argv": [str(place.program), *flags, "--parallel", "1", "--threads", "1"],
        "unix_path": None,
        "port": port,
    }


class Running:
    """A launcher on a socket, its units, and what it said."""

    def __init__(self, place: Place, world: UnitWorld, **times: float) -> None:
        self.place = place
        self.world = world
        self.said: list[str] = []
        self.allowed = {os.geteuid()}
        self.path = place.root / "launcher.sock"
        site = replace(place.site, away_s=times.pop("away_s", 60.0))
        self.server = LauncherServer(
            place.engines(world), lambda: site, lambda: self.allowed, self.said.append, **times
        )
        self.client = LauncherClient(self.path)
        self.ended: asyncio.Task[None] | None = None

    def begin(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        listener.bind(str(self.path))
        listener.listen()
        listener.setblocking(False)
        self.ended = asyncio.create_task(self.server.serve(listener))

    async def end(self) -> None:
        self.server.stop()
        if self.ended is not None:
            await self.ended


@contextlib.asynccontextmanager
async def running(**times: float) -> AsyncIterator[Running]:
    with short_directory() as root:
        made = Running(make_place(root), UnitWorld(), **times)
        made.begin()
        try:
            yield made
        finally:
            await made.end()


async def until(condition: Callable[[], bool], *, turns: int = 2000) -> None:
    """Let others run until it holds."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to be")
