"""Locks of the cache, all kernel locks on files under `locks/`, shared by every process on the host.

<artifact>.lock         exclusive   one pull, import, verify or removal of that artifact
lease-<artifact>.lock   shared      while a deployment is configured or resident; removal tries exclusive
cache-mutation.lock     shared for publishing, exclusive for removal

Some network filesystems grant every lock to everybody. There nothing is removed, and what is published is read once more; `locks_work` tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import LockedError, RefusedError
from sbctl.base.flock import FileLock

__all__ = [
    "artifact_lock_path",
    "hold",
    "hold_async",
    "is_free",
    "lease_path",
    "locks_work",
    "mutation_lock_path",
    "require_locks",
]

_POLL_S: Final = 0.1
_PATIENCE_S: Final = 600.0


def artifact_lock_path(root: Path, artifact: str) -> Path:
    return root / "locks" / f"{artifact}.lock"


def lease_path(root: Path, artifact: str) -> Path:
    return root / "locks" / f"lease-{artifact}.lock"


def mutation_lock_path(root: Path) -> Path:
    return root / "locks" / "cache-mutation.lock"


def locks_work(root: Path) -> bool:
    """Whether a second holder of an exclusive lock is turned away on this filesystem."""
    first, second = (FileLock(root / "locks" / "probe.lock") for _ in range(2))
    try:
        # Somebody else who holds it at this moment has proven the same.
        return not first.try_acquire() or not second.try_acquire()
    finally:
        first.release()
        second.release()


def require_locks(root: Path) -> None:
    """Raises RefusedError `cache.locks_unreliable` where a removal could not see who uses what it removes."""
    if not locks_work(root):
        raise RefusedError(
            "cache.locks_unreliable",
            "the filesystem of the model cache grants one lock to everybody, so nothing is removed from it",
            place=str(root),
            next_step="mount it with locks (Lustre: -o flock), or move the cache to a disk of this host",
        )


def is_free(path: Path) -> bool:
    """Whether nobody holds this lock at the moment; a lock that was never taken is free."""
    if not path.exists():
        return True
    lock = FileLock(path)
    try:
        return lock.try_acquire()
    finally:
        lock.release()


@contextlib.contextmanager
def hold(path: Path, clock: Clock, *, shared: bool = False, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Wait for a lock in a thread that may wait. Raises LockedError `cache.locked` after `patience_s`."""
    lock = FileLock(path)
    began = clock.monotonic_s()
    while not lock.try_acquire(shared=shared):
        if clock.monotonic_s() - began >= patience_s:
            raise LockedError(
                "cache.locked",
                f"another process works on the model cache, for {patience_s:.0f} s by now",
                place=str(path),
                next_step="wait until it ends, then run the command again",
                retryable=True,
            )
        clock.sleep_s(_POLL_S)
    try:
        yield
    finally:
        lock.release()


@contextlib.asynccontextmanager
async def hold_async(path: Path) -> AsyncIterator[None]:
    """Wait for a lock without blocking the loop, as long as it takes: the holder may be downloading."""
    import asyncio

    lock = FileLock(path)
    while not lock.try_acquire():  # noqa: ASYNC110 - a kernel lock wakes nobody
        await asyncio.sleep(_POLL_S)
    try:
        yield
    finally:
        lock.release()
