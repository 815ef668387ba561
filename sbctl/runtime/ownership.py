"""Ownership records: which engines this state directory started. A record is durable before its engine may exec and goes when the tree is gone.

<state>/engines/<token>.json     one engine
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.fs import ensure_directory, read_bounded, remove_file, write_atomic
from sbctl.base.limits import ENGINE_STOP_GRACE_S
from sbctl.runtime.engine_cgroup import EngineCgroup, open_cgroup
from sbctl.runtime.log import get_log
from sbctl.runtime.processes import ProcessIdentity, boot_id, process_identity, signal_process, tree_of

__all__ = ["OwnershipRecord", "OwnershipRecords", "end_tree", "members_of"]

_RECORD_MAX_BYTES: Final = 64 * 1024
_POLL_S: Final = 0.05
_KILL_WAIT_S: Final = 5.0
_REAP_GRACE_S: Final = 2.0
"""Shorter than for an engine in use: nobody waits for its answers, and serving waits for this."""


class OwnershipRecord(BaseModel):
    """One engine process that we started; `token` is in the environment of its whole tree."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    schema_version: int = 1
    token: str = Field(pattern="^[0-9a-f]{16}$")
    pid: int = Field(gt=1)
    start_ticks: int
    boot_id: str
    deployment: str
    replica: int
    generation: int
    program: str
    address: str
    cgroup: str = ""
    """Path of its control group; empty where none could be made."""

    @property
    def leader(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)

    @property
    def group(self) -> EngineCgroup | None:
        return open_cgroup(self.cgroup, self.token) if self.cgroup else None


def members_of(leader: ProcessIdentity, token: str, group: EngineCgroup | None) -> tuple[ProcessIdentity, ...]:
    """Every live process of an engine: of its session, with its environment, in its control group."""
    found = dict.fromkeys(tree_of(leader, token))
    for pid in group.pids() if group is not None else ():
        if (identity := process_identity(pid)) is not None:
            found[identity] = None
    return tuple(found)


async def end_tree(
    leader: ProcessIdentity, token: str, *, group: EngineCgroup | None = None, grace_s: float = ENGINE_STOP_GRACE_S
) -> None:
    """SIGTERM, after `grace_s` SIGKILL, until no process of the engine is left. Its control group goes with it.

    Raises EngineError `engine_shutdown_failed` when one outlives SIGKILL by 5 s (it hangs in the kernel).
    """
    loop = asyncio.get_running_loop()
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_WAIT_S)):
        deadline = loop.time() + wait_s
        signalled: set[ProcessIdentity] = set()
        while members := await asyncio.to_thread(members_of, leader, token, group):
            if group is not None and number is signal.SIGKILL:
                group.kill()
            for member in members:
                if member not in signalled:
                    signal_process(member, number)
                    signalled.add(member)
            if loop.time() >= deadline:
                break
            await asyncio.sleep(_POLL_S)
        if not members:
            if group is not None:
                group.remove()
            return
    raise EngineError(
        "engine_shutdown_failed",
        f"{len(members)} processes of the engine outlive SIGKILL",
        place=f"pid {members[0].pid}",
        next_step="look at its state in /proc (a hanging disk or device driver); a reboot may be needed",
    )


class OwnershipRecords:
    """The directory of records."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = get_log("ownership")

    def write(self, record: OwnershipRecord) -> None:
        """Durable when it returns. Raises SbctlError `disk.*`."""
        ensure_directory(self._directory)
        write_atomic(self._path(record.token), record.model_dump_json().encode())

    def remove(self, token: str) -> None:
        remove_file(self._path(token))

    def read(self) -> Iterator[tuple[Path, OwnershipRecord | None]]:
        """Every record; None for a file that is none (a record is never half there, so this is foreign or damaged)."""
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield path, OwnershipRecord.model_validate(json.loads(read_bounded(path, max_bytes=_RECORD_MAX_BYTES)))
            except (ValidationError, ValueError, RecursionError, SbctlError):
                yield path, None

    async def reap(self) -> int:
        """Stop what a dead daemon left, forget records of other boots. Returns how many engines were found running.

        Call only while holding the serve lock: then every record is of a daemon that is gone.
        """
        found = 0
        this_boot = boot_id()
        for path, record in list(self.read()):
            if record is not None and record.boot_id == this_boot:
                group = record.group
                if members_of(record.leader, record.token, group):
                    self._log.warning("engine of a dead daemon", pid=record.pid, deployment=record.deployment)
                    found += 1
                await end_tree(record.leader, record.token, group=group, grace_s=_REAP_GRACE_S)
            remove_file(path)
        return found

    def _path(self, token: str) -> Path:
        return self._directory / f"{token}.json"
