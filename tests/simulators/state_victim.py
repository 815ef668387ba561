"""A scripted life of a state, to be stopped at any point.

`play` performs SCRIPT and tells each acknowledged operation; `golden` is what a reader sees after each of them. Whatever stops the life
after k acknowledgements, a reader must see exactly what stood after k operations or after k + 1.

Run as a program (`python -m tests.simulators.state_victim ROOT PORT FIRST LAST STRIDE`) it lives once for each n, in a forked child that
kills itself with SIGKILL at the n-th call of a port: `files` (sbctl.base.fs), `before` or `after` (SQL statements), `migration`. ROOT/<n>
keeps the files, ROOT/<n>.acks one byte for each acknowledgement; a life that reached its end has an `.end` as well.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sbctl.base import fs
from sbctl.base.digests import fingerprint
from sbctl.base.strict_json import loads
from sbctl.state import database
from sbctl.state.document import dump_document
from sbctl.state.migrations import MIGRATIONS, Migration
from sbctl.state.run import Run
from sbctl.state.store import StateStore
from tests.simulators.state_world import APPLY, StateWorld, address, change, desired, recorded, step

__all__ = [
    "NEXT_FORMAT",
    "SCRIPT",
    "CountingConnection",
    "CountingFiles",
    "golden",
    "play",
    "seen",
    "use_counting_connection",
]

SCRIPT = (
    "create", "begin", "intent", "outcome", "record", "intent", "record again", "allocate", "trust", "forget", "finish",
    "begin", "record", "intent", "reopen", "begin", "record other", "finish", "remove", "adopt", "push",
)  # fmt: skip


def _pushed(store: StateStore) -> bytes:
    raw: dict[str, Any] = loads(store.export(), max_bytes=1 << 20)
    raw.pop("digest")
    raw["serial"] += 5
    raw["resources"] = raw["resources"][:1]
    return dump_document({**raw, "digest": fingerprint(raw)})


class _Life:
    def __init__(self, world: StateWorld, acknowledged: Callable[[str], None]) -> None:
        self.world = world
        self.acknowledged = acknowledged

    def live(self) -> None:
        operations = iter(SCRIPT)
        while self._process(operations):
            pass

    def _process(self, operations: Iterator[str]) -> bool:
        """What one process does; True when another one follows it."""
        run: Run | None = None
        with self.world.locked() as store:
            for operation in operations:
                if operation == "reopen":
                    self.acknowledged(operation)
                    return True
                if operation == "begin":
                    run = store.begin_run(APPLY, [desired(1), desired(2)])
                elif operation in _IN_RUN:
                    assert run is not None
                    _IN_RUN[operation](run)
                else:
                    _ON_STORE[operation](store)
                self.acknowledged(operation)
        return False


_IN_RUN: Mapping[str, Callable[[Run], object]] = {
    "intent": lambda run: run.intent(step("a#1"), change(1)),
    "outcome": lambda run: run.outcome("a#1", "done"),
    "record": lambda run: run.record(recorded(1)),
    "record again": lambda run: run.record(recorded(1, "again")),
    "record other": lambda run: run.record(recorded(2)),
    "allocate": lambda run: run.allocate_revision("gpu-1"),
    "forget": lambda run: run.forget(address(1)),
    "finish": lambda run: run.finish("applied"),
}
_ON_STORE: Mapping[str, Callable[[StateStore], object]] = {
    "create": lambda store: store.create("fleet"),
    "trust": lambda store: store.set_trust({"ops": "ed25519:A"}, 1),
    "remove": lambda store: store.remove(address(2)),
    "adopt": lambda store: store.adopt(recorded(3)),
    "push": lambda store: store.import_document(_pushed(store)),
}


def play(world: StateWorld, acknowledged: Callable[[str], None]) -> None:
    """Live SCRIPT to its end, or to the first error."""
    _Life(world, acknowledged).live()


def seen(world: StateWorld) -> object:
    """What a reader sees, without what differs from life to life; None when nothing is there."""
    store = world.store()
    if not store.exists():
        return None
    store.verify()
    view = store.read()
    return {
        "serial": view.serial,
        "resources": {str(key): value.spec["content"] for key, value in view.resources.items()},
        "intents": [intent.step_key for intent in view.open_intents],
        "revisions": dict(view.revisions),
        "signers": dict(view.signers),
        "runs": [(run.serial, run.status, run.resources, dict(run.counts)) for run in store.history()],
        "snapshots": [
            sorted(map(str, store.snapshot(run.serial).resources)) for run in store.history() if run.finished_at
        ],
    }


def golden(world: StateWorld) -> list[object]:
    """What is seen before the first operation and after each."""
    trace: list[object] = [None]
    play(world, lambda _operation: trace.append(seen(world)))
    return trace


class CountingFiles(fs.FileOps):
    """Calls `strike` before the call number `when`, counted from 1 over all of them."""

    def __init__(self, when: int, strike: Callable[[], None]) -> None:
        self.count = 0
        self._when = when
        self._strike = strike

    def _tick(self) -> None:
        self.count += 1
        if self.count == self._when:
            self._strike()

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._tick()
        return super().open(path, flags, mode)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._tick()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._tick()
        super().fsync(fd)

    def rename(self, source: str, target: str) -> None:
        self._tick()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._tick()
        super().unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        self._tick()
        super().mkdir(path, mode)

    def chmod(self, fd: int, mode: int) -> None:
        self._tick()
        super().chmod(fd, mode)


class CountingConnection(sqlite3.Connection):
    """Calls `strike` before or after the statement number `when` of all connections of the process."""

    count = 0
    when = 0
    after = False

    @staticmethod
    def strike() -> None:
        raise NotImplementedError

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        cls = CountingConnection
        cls.count += 1
        struck = cls.count == cls.when
        if struck and not cls.after:
            cls.strike()
        cursor = super().execute(sql, *parameters)
        if struck and cls.after:
            cursor.close()
            cls.strike()
        return cursor


def use_counting_connection(when: int, strike: Callable[[], None], *, after: bool) -> AbstractContextManager[None]:
    CountingConnection.count, CountingConnection.when, CountingConnection.after = 0, when, after
    CountingConnection.strike = staticmethod(strike)  # type: ignore[method-assign]
    return database.use_connection(CountingConnection)


def _add_table(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY)")


def _add_rows(connection: sqlite3.Connection) -> None:
    for number in range(3):
        connection.execute("INSERT INTO extra (id) VALUES (?)", (number,))


NEXT_FORMAT: tuple[Migration, ...] = (*MIGRATIONS, _add_table, _add_rows)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _child(root: Path, port: str, number: int) -> None:
    world = StateWorld(root / str(number))
    world.directory.parent.mkdir()
    acks = os.open(root / f"{number}.acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if port == "migration":
        world.applied(1, 2)
        database.MIGRATIONS = NEXT_FORMAT  # type: ignore[misc]
        with use_counting_connection(number, _die, after=False), world.locked():
            pass
    elif port == "files":
        with fs.use_ops(CountingFiles(number, _die)):
            play(world, lambda _operation: os.write(acks, b"."))
    else:
        with use_counting_connection(number, _die, after=port == "after"):
            play(world, lambda _operation: os.write(acks, b"."))
    (root / f"{number}.end").touch()


def main(arguments: list[str]) -> None:
    root, port, (first, last, stride) = Path(arguments[0]), arguments[1], map(int, arguments[2:5])
    for number in range(first, last, stride):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _child(root, port, number)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"life {number} ended with an error")
        if (root / f"{number}.end").exists():
            return


if __name__ == "__main__":
    main(sys.argv[1:])
