"""`sbctl-runtime serve` that kills itself at the n-th boundary: python -m tests.simulators.runtime_victim serve

Boundaries are all calls of `base.fs` that change something, all statements and commits of the runtime's database, every process that is
created, every signal to an engine, and both ends of each step of a change. They are counted from the moment on at which `<prefix>/kill_at`
exists; what it says is the number at which the process ends itself with SIGKILL. `<prefix>/boundaries` has one line for each that was passed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbctl.base import fs
from sbctl.runtime import engine_host, ownership
from sbctl.runtime.engine_host import ChildEngineHost
from sbctl.runtime.generation import Generation
from sbctl.runtime.main import main
from sbctl.runtime.node_provisioner import NodeProvisioner
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.transition import Transition

PREFIX = Path(os.environ["SBCTL_NODE_PREFIX"])
KILL_AT, PASSED = PREFIX / "kill_at", PREFIX / "boundaries"

STEPS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Transition, ("_prepare", "_reserve", "_drain", "_load", "_undo")),
    (Generation, ("load", "stop", "prepare", "evict", "retire")),
    (Reconciler, ("restore", "_change_to", "_swap", "_release_weights")),
    (NodeProvisioner, ("prepare",)),
    (ChildEngineHost, ("start", "adopt", "stop")),
)


class _Counter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._kill_at: int | None = None
        self._passed = -1

    def __call__(self, label: str) -> None:
        with self._lock:
            if self._kill_at is None:
                try:
                    self._kill_at = int(KILL_AT.read_text())
                except (OSError, ValueError):
                    return
                self._passed = os.open(PASSED, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._count += 1
            os.write(self._passed, f"{label}\n".encode())
            if self._count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


boundary = _Counter()


class _Files(fs.FileOps):
    """Told before each call, so after the one before it."""


def _counted(name: str) -> Callable[..., Any]:
    plain = getattr(fs.FileOps, name)

    def call(self: fs.FileOps, *arguments: Any, **named: Any) -> Any:
        changes = name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT)
        if changes:
            boundary(f"{name} {_name_of(arguments[0])}")
        return plain(self, *arguments, **named)

    return call


def _name_of(what: object) -> str:
    return Path(what).name if isinstance(what, str) else ""


class _Connection(sqlite3.Connection):
    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        word = sql.lstrip().partition(" ")[0].upper()
        if word not in ("", "SELECT", "PRAGMA", "CREATE"):
            boundary(sql.split("(", maxsplit=1)[0].strip()[:60])
        cursor = super().execute(sql, *parameters)
        if word == "COMMIT":
            boundary("committed")
        return cursor


def _stepped(kind: Any, name: str) -> None:
    plain = getattr(kind, name)
    told = f"{kind.__name__}.{name.strip('_')}"

    @functools.wraps(plain)
    async def step(*arguments: Any, **named: Any) -> Any:
        boundary(f"before {told}")
        result = await plain(*arguments, **named)
        boundary(f"after {told}")
        return result

    @functools.wraps(plain)
    def quick(*arguments: Any, **named: Any) -> Any:
        boundary(f"before {told}")
        return plain(*arguments, **named)

    setattr(kind, name, step if inspect.iscoroutinefunction(plain) else quick)


def _watch() -> None:
    for name in ("open", "write", "write_at", "fsync", "rename", "link", "unlink", "mkdir", "symlink", "chmod"):
        setattr(_Files, name, _counted(name))
    fs.OPS = _Files()
    connect = sqlite3.connect

    def counted_connect(*arguments: Any, **named: Any) -> sqlite3.Connection:
        # The event log's thread writes when it likes; only the store's connection may be used by many threads.
        factory = _Connection if named.get("check_same_thread") is False else sqlite3.Connection
        return connect(*arguments, factory=factory, **named)

    sqlite3.connect = counted_connect  # type: ignore[assignment]
    for kind, names in STEPS:
        for name in names:
            _stepped(kind, name)
    create, send = asyncio.create_subprocess_exec, ownership.signal_process

    async def counted_create(*argv: Any, **named: Any) -> asyncio.subprocess.Process:
        process = await create(*argv, **named)
        boundary("a process was created")
        return process

    def counted_send(target: Any, number: signal.Signals) -> bool:
        boundary(f"before {number.name}")
        return send(target, number)

    engine_host.asyncio.create_subprocess_exec = counted_create  # type: ignore[attr-defined, assignment]
    ownership.signal_process = counted_send  # type: ignore[assignment]


if __name__ == "__main__":
    _watch()
    sys.exit(main(sys.argv[1:]))
