"""The one port that starts engines, and its implementation by child processes (`unit_host` has the one by systemd units).

    start   record durable ► exec ► running          stop   SIGTERM ► grace ► SIGKILL ► tree gone ► record gone

A child engine dies with its daemon; what a killed daemon leaves is reaped from the records before listeners bind (`ownership.reap`).
An engine gets an environment built from empty, no descriptor but its own stdio, a session of its own, and no way to gain privileges.
What it prints goes to a ring of 64 KiB, whose last lines explain an exit, and to a bounded log: output cannot fill memory or disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypedDict

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError
from sbctl.base.fs import remove_file
from sbctl.base.limits import ENGINE_STDERR_RING_BYTES, ENGINE_STOP_GRACE_S
from sbctl.base.secret import redact
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.node.records import EventKind
from sbctl.runtime.engine_cgroup import EngineCgroup, make_cgroup
from sbctl.runtime.engine_exit import EngineExit, OomEvidence
from sbctl.runtime.engine_output import EngineOutput, prune_engine_logs
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.listener_proof import prove_listener
from sbctl.runtime.ownership import OwnershipRecord, OwnershipRecords, end_tree, members_of
from sbctl.runtime.processes import (
    TOKEN_VARIABLE,
    ProcessIdentity,
    ProcessMemory,
    boot_id,
    effort_of,
    memory_of,
    process_identity,
)

__all__ = ["ChildEngineHost", "EngineHost", "EngineLabel", "OutputRing", "RunningEngine", "Slot"]

Slot = tuple[str, int]
"""A deployment and the number of a replica of it."""

_GATE_PROGRAM: Final = str(Path(__file__).with_name("exec_gate.py"))
_LINE_MAX_CHARS: Final = 400
_READ_BYTES: Final = 64 * 1024


class _Told(TypedDict):
    deployment: str
    replica: int
    generation: int


@dataclass(frozen=True, slots=True)
class EngineLabel:
    """Whose engine it is: for records, logs and status."""

    deployment: str
    replica: int
    generation: int

    @property
    def slot(self) -> Slot:
        return self.deployment, self.replica

    def told(self) -> _Told:
        """As events name it."""
        return {"deployment": self.deployment, "replica": self.replica, "generation": self.generation}


class OutputRing:
    """The last bytes that an engine printed, at most `max_bytes`."""

    def __init__(self, max_bytes: int = ENGINE_STDERR_RING_BYTES) -> None:
        self._max_bytes = max_bytes
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data[-self._max_bytes :])
        self._size += len(self._chunks[-1])
        while self._size - len(self._chunks[0]) >= self._max_bytes:
            self._size -= len(self._chunks.popleft())

    def lines(self, count: int) -> tuple[str, ...]:
        """The last non-empty lines, made safe to show: credentials masked, control characters visible, each at most 400 characters."""
        text = b"".join(self._chunks)[-self._max_bytes :].decode("utf-8", errors="replace")
        kept = [line.strip() for line in text.splitlines() if line.strip()][-count:]
        return tuple(display_safe(redact(line), max_chars=_LINE_MAX_CHARS) for line in kept)


class RunningEngine(Protocol):
    """An engine process between its start and its exit."""

    @property
    def pid(self) -> int: ...

    @property
    def address(self) -> EngineAddress: ...

    async def prove_listener(self) -> None:
        """Return when a process of its own listens at its address. Raises EngineError as `listener_proof.prove_listener`."""
        ...

    async def last_lines(self, count: int) -> tuple[str, ...]:
        """What it printed last, safe to show; empty when that cannot be read."""
        ...

    def effort(self) -> int | None:
        """A number that grows while it computes or reads: what a start that takes long is told from one that hangs by. None: not known."""
        ...

    async def memory(self) -> ProcessMemory | None:
        """What its processes have of the host now; None when that cannot be seen."""
        ...

    async def wait(self) -> EngineExit:
        """Returns when the first process has ended; may be called by many."""
        ...


class EngineHost(Protocol):
    """Starts and stops engines. Nothing else in the runtime does."""

    @property
    def outlives_daemon(self) -> bool:
        """Whether engines that are left at the daemon's end run on, for the next one to adopt."""
        ...

    def new_socket(self) -> Path:
        """A fresh path for an engine that listens on a UNIX socket."""
        ...

    async def start(self, spec: LaunchSpec, label: EngineLabel) -> RunningEngine:
        """Running, not yet ready, and its record durable. An adopted engine of this deployment that was started in the same way is given
        instead of a new one, that of this slot first: its address is then another than `spec` says.

        Raises EngineError `engine_spawn_failed`, SbctlError `disk.*`.
        """
        ...

    async def adopt(self) -> frozenset[Slot]:
        """Find the engines of a former daemon; whatever cannot be continued is stopped. Before anything is served, under the serve lock.

        Returns the slots whose engines wait for their `start`.
        """
        ...

    def adopted_devices(self, slot: Slot) -> tuple[str, ...] | None:
        """The devices of an adopted engine that waits for this slot's start, or for another's of its deployment; None when none waits."""
        ...

    async def drop_unclaimed(self) -> None:
        """Stop the adopted engines that no `start` asked for."""
        ...

    async def leave(self, engine: RunningEngine) -> None:
        """Let go of an engine without ending it. Only where engines outlive the daemon."""
        ...

    async def close(self) -> None:
        """The daemon ends; engines that were left run on."""
        ...

    async def stop(self, engine: RunningEngine, *, grace_s: float = ENGINE_STOP_GRACE_S) -> None:
        """Returns when the whole tree is gone; at once when it already is. Raises EngineError `engine_shutdown_failed`."""
        ...


class _Identity(NamedTuple):
    """What tells an engine's processes from all others. `ceiling_bytes`: what its group may have of the host's memory, where that is held."""

    leader: ProcessIdentity
    token: str
    group: EngineCgroup | None
    ceiling_bytes: int | None


class _ChildEngine:
    def __init__(
        self,
        process: asyncio.subprocess.Process,
        identity: _Identity,
        address: EngineAddress,
        output: EngineOutput | None,
    ) -> None:
        self.leader, self.token, self.group, self._ceiling_bytes = identity
        self.is_stopping = False
        self._evidence = OomEvidence.before(self.group)
        self._process = process
        self._address = address
        self._ring = OutputRing()
        self._output = output
        self._reader = asyncio.create_task(self._read_output(), name=f"engine-output-{self.leader.pid}")

    @property
    def pid(self) -> int:
        return self.leader.pid

    @property
    def address(self) -> EngineAddress:
        return self._address

    def pids(self) -> frozenset[int]:
        """Its whole tree, now."""
        return frozenset(member.pid for member in members_of(self.leader, self.token, self.group))

    def effort(self) -> int | None:
        return effort_of(self.pids())

    async def memory(self) -> ProcessMemory | None:
        return await asyncio.to_thread(lambda: memory_of(self.pids()))

    async def prove_listener(self) -> None:
        await asyncio.to_thread(lambda: prove_listener(self._address, self.pids()))

    async def last_lines(self, count: int) -> tuple[str, ...]:
        return self._ring.lines(count)

    async def wait(self) -> EngineExit:
        returncode = await self._process.wait()
        # The last words arrive beside the exit; a grandchild that keeps the pipe open must not hold this up.
        await asyncio.wait({self._reader}, timeout=0.2)
        return EngineExit.told(returncode, self._evidence, by_us=self.is_stopping, ceiling_bytes=self._ceiling_bytes)

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.wait({self._reader})

    async def _read_output(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        try:
            with contextlib.suppress(OSError):
                while data := await stream.read(_READ_BYTES):
                    self._ring.add(data)
                    if self._output is not None:
                        self._output.add(data)
        finally:
            if self._output is not None:
                self._output.close()


class ChildEngineHost:
    """Engines as children of this process, each dying with it. Start from the main thread only: the kernel ties the death signal to a thread."""

    def __init__(
        self,
        records: OwnershipRecords,
        working_directory: Path,
        *,
        logs: Path | None = None,
        events: EventSink = NO_EVENTS,
        make_cgroup: Callable[[str], EngineCgroup | None] = make_cgroup,
    ) -> None:
        """`logs` is the directory for what engines print; without it nothing of that is kept on disk."""
        self._make_cgroup = make_cgroup
        self._records = records
        self._working_directory = working_directory
        self._logs = logs
        self._events = events

    @property
    def outlives_daemon(self) -> bool:
        return False

    def new_socket(self) -> Path:
        return self._working_directory / f"{secrets.token_hex(4)}.sock"

    async def start(self, spec: LaunchSpec, label: EngineLabel) -> RunningEngine:
        token = secrets.token_hex(8)
        if spec.address.unix_path is not None:
            remove_file(spec.address.unix_path)
        gate_read, gate_write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                process = await self._spawn(spec, {**spec.env, TOKEN_VARIABLE: token}, gate_read)
            finally:
                os.close(gate_read)
            leader = process_identity(process.pid) or ProcessIdentity(process.pid, 0)
            output = None if self._logs is None else EngineOutput(self._logs, label.deployment, label.replica)
            group, ceiling_bytes = self._group(token, leader.pid, spec.memory_max_bytes)
            identity = _Identity(leader, token, group, ceiling_bytes)
            engine = _ChildEngine(process, identity, spec.address, output)
            try:
                self._records.write(_record(spec, label, identity))
                os.write(gate_write, b"1")
            except BaseException:
                # The gate closes unwritten below: the engine never came to be.
                await engine.close()
                if group is not None:
                    process.kill()
                    await process.wait()
                    group.remove()
                raise
            self._events.tell(EventKind.ENGINE_STARTED, f"pid {engine.pid}", **label.told())
            return engine
        finally:
            os.close(gate_write)

    async def adopt(self) -> frozenset[Slot]:
        """Children die with their daemon, so there is nothing to take over: what is left of them is stopped."""
        await self._records.reap()
        if self._logs is not None:
            prune_engine_logs(self._logs)
        return frozenset()

    def adopted_devices(self, slot: Slot) -> tuple[str, ...] | None:  # noqa: ARG002 - nothing is adopted here
        return None

    async def drop_unclaimed(self) -> None:
        """There are none."""

    async def leave(self, engine: RunningEngine) -> None:
        """A child cannot be left, so it is stopped."""
        await self.stop(engine)

    async def close(self) -> None:
        """Nothing is held."""

    async def stop(self, engine: RunningEngine, *, grace_s: float = ENGINE_STOP_GRACE_S) -> None:
        if not isinstance(engine, _ChildEngine):
            raise TypeError("an engine is stopped by the host that started it")
        engine.is_stopping = True
        await end_tree(engine.leader, engine.token, group=engine.group, grace_s=grace_s)
        await engine.wait()
        await engine.close()
        self._records.remove(engine.token)
        if engine.address.unix_path is not None:
            remove_file(engine.address.unix_path)

    def _group(self, token: str, pid: int, max_bytes: int | None) -> tuple[EngineCgroup | None, int | None]:
        """And its ceiling, where one is held. The engine waits at its gate, so all that it ever starts will be in the group."""
        group = self._make_cgroup(token)
        if group is None:
            return None, None
        limited = max_bytes is not None and group.limit_memory(max_bytes)
        if not group.add(pid):
            group.remove()
            return None, None
        return group, max_bytes if limited else None

    async def _spawn(self, spec: LaunchSpec, env: Mapping[str, str], gate: int) -> asyncio.subprocess.Process:
        argv = (sys.executable, "-I", "-S", _GATE_PROGRAM, str(gate), str(os.getpid()), *spec.argv)
        try:
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(env),
                cwd=self._working_directory,
                pass_fds=(gate,),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise EngineError(
                "engine_spawn_failed",
                f"the engine's process cannot be created: {error}",
                place=spec.argv[0],
                next_step="look at the memory of the host, and at what the runtime may start (TasksMax of its unit, ulimit -u)",
                retryable=True,
            ) from error


def _record(spec: LaunchSpec, label: EngineLabel, identity: _Identity) -> OwnershipRecord:
    leader, token, group, _ceiling = identity
    return OwnershipRecord(
        token=token,
        pid=leader.pid,
        start_ticks=leader.start_ticks,
        boot_id=boot_id(),
        deployment=label.deployment,
        replica=label.replica,
        generation=label.generation,
        program=spec.argv[0],
        address=str(spec.address),
        cgroup="" if group is None else str(group.path),
    )
