"""The file of a runtime that was started by hand, read again while it serves.

    SIGHUP, POST /admin/reload, or the file changed and lay still for half a second
      ► read ► the same settings? ► locked models? ► prepare ► start ► swap ► retire

One reading at a time. A file that cannot be read, needs a restart or names what cannot be started changes nothing: what serves goes on, and
why is logged, kept as an event and answered to who asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.node.messages import RuntimeConfig
from sbctl.node.records import EventKind
from sbctl.runtime.audit import Note
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.log import get_log
from sbctl.runtime.provision import Progress, quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.settings import Settings
from sbctl.trust.bundle import BundleContent

__all__ = ["ConfigFile"]

_LOOK_S: Final = 1.0
_STILL_S: Final = 0.5
_Mark = tuple[int, int, int] | None


class ConfigFile:
    """`read` loads and checks the file (it may block); `settings` are those that the daemon began with."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        reconciler: Reconciler,
        *,
        events: EventSink,
        audit: Note,
    ) -> None:
        assert settings.file is not None, "only a daemon that was started by hand has a file"
        self._path = settings.file
        self._settings = settings
        self._read = read
        self._reconciler = reconciler
        self._events = events
        self._audit = audit
        self._lock = asyncio.Lock()
        self._seen = _mark(self._path)
        self._log = get_log("config")

    @property
    def is_reloading(self) -> bool:
        return self._lock.locked()

    async def reload(self, by: str, progress: Progress = quiet) -> dict[str, Any]:
        """Read it now and make it so; the report of the change. `by` is for the log.

        Raises InputError `file.*`, `json.*`, `runtime.config_invalid`; RefusedError `runtime.restart_needed`, `models_lock.drift`; what
        preparing and starting raise; SbctlError `store_failed` where the audit could not be written. Nothing changed then.
        """

        async def noted() -> None:
            await asyncio.to_thread(self._audit, "config.reload", "config", {"file": str(self._path)})

        async with self._lock:
            self._seen = await asyncio.to_thread(_mark, self._path)
            try:
                content = self._content(await asyncio.to_thread(self._read))
                report = await self._reconciler.apply_content(content, progress, noted)
            except SbctlError as error:
                self._log.error(
                    "the file is not taken: what served before goes on", by=by, code=error.code, why=str(error)
                )
                self._events.tell(EventKind.CONFIG_REFUSED, f"{error.code}: {error.message}")
                raise
            self._log.info("the file is taken", by=by)
            self._events.tell(EventKind.CONFIG_TAKEN, f"{self._path}, by {by}")
            return report

    async def watch(self) -> None:
        """Take the file up when it changed and lies still. Runs until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            found = await asyncio.to_thread(_mark, self._path)
            if found in (None, self._seen):
                # A file that is gone for now is about to be replaced, or was taken away: what it said last holds.
                continue
            await asyncio.sleep(_STILL_S)
            if await asyncio.to_thread(_mark, self._path) != found:
                continue
            try:
                await self.reload("a change of the file")
            except SbctlError:
                continue

    def _content(self, found: Settings) -> BundleContent:
        changed = _differing(self._settings.config, found.config)
        if changed:
            raise RefusedError(
                "runtime.restart_needed",
                f"{', '.join(changed)} of the file changed, which a running runtime cannot take up",
                place=str(self._path),
                next_step="restart it, or put back what changed",
            )
        if found.content is None:
            raise InputError(
                "runtime.config_invalid",
                "content: Field required",
                place=str(self._path),
                next_step="write what is to be served under content, or restart without a file",
            )
        return found.content


def _differing(old: RuntimeConfig, new: RuntimeConfig) -> list[str]:
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return [name for name in before if fingerprint(before[name]) != fingerprint(after[name])]


def _mark(path: Path) -> _Mark:
    """What changes when the file does, also by a rename or a link that is switched; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
