"""The private directory of a `run`, and what a run left that could not clean up after itself.

    <temp>/sbctl-run-xxxxxxxx/sb.yml              written after the lock was taken
    <temp>/sbctl-run-xxxxxxxx/node/owner.lock     held by the kernel for the run as long as it lives, whatever ends it

The runtime's parent process watches the lock and ends when nobody holds it; the next run removes the directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sbctl.base.errors import LockedError, SbctlError
from sbctl.base.flock import FileLock, held
from sbctl.base.fs import ensure_directory
from sbctl.node.paths import OWNER_LOCK
from sbctl.views.console import note

__all__ = ["private_directory", "remove_abandoned"]

_PREFIX: Final = "sbctl-run-"
_STOP_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.1


@contextlib.contextmanager
def private_directory() -> Iterator[Path]:
    """An empty directory with `node/` in it, ours alone until the block ends; then it is removed."""
    remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = FileLock(directory / "node" / OWNER_LOCK)
    try:
        ensure_directory(directory / "node")
        if not lock.try_acquire():
            raise LockedError(
                "run.place_taken",
                "another process took the directory of this run",
                place=str(directory),
                next_step="run the command again: it takes another one",
            )
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.release()


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of runs that were killed. What cannot be removed is said in one line each."""
    for directory in sorted(parent.glob(f"{_PREFIX}*")):
        lock = directory / "node" / OWNER_LOCK
        if not _is_ours(directory) or not lock.is_file() or not (directory / "sb.yml").is_file():
            continue
        with contextlib.suppress(SbctlError), held(lock) as abandoned:
            if abandoned and _stopped(directory / "node" / "state"):
                shutil.rmtree(directory, ignore_errors=True)
                note(f"removed what an earlier run left: {directory}")
            elif abandoned:
                note(f"an earlier run was killed and its runtime does not end: {directory}")


def _is_ours(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        status = directory.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _stopped(state: Path) -> bool:
    """Whether neither the runtime nor its parent runs any more; they end by themselves once the owner is gone."""
    end_s = time.monotonic() + _STOP_DEADLINE_S
    while not all(_is_free(state / name) for name in ("supervisor.lock", "serve.lock")):
        if time.monotonic() > end_s:
            return False
        time.sleep(_POLL_S)
    return True


def _is_free(path: Path) -> bool:
    if not path.exists():
        return True
    with held(path) as free:
        return free
