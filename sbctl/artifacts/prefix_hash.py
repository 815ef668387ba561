"""SHA-256 of a file that is still growing: a thread of its own reads behind the writers, in order, from the very inode that is published."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Final

from sbctl.base.fs import disk_error

__all__ = ["PrefixHash"]

_READ_BYTES: Final = 1 << 20
_THREAD_FROM_BYTES: Final = 8 << 20
"""Less is read in one go at the end: a thread costs more."""


class PrefixHash:
    """One file of `path`, open as `fd`, from its first byte. `close` before the descriptor is closed."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._digest = hashlib.sha256()
        self._hashed = 0
        self._limit = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure: OSError | None = None

    @property
    def behind_bytes(self) -> int:
        """How much is there and not hashed yet."""
        return self._limit - self._hashed

    def advance(self, to: int) -> None:
        """The file is whole up to `to`."""
        with self._changed:
            self._limit = max(self._limit, to)
            self._changed.notify()
        if self._thread is None and to >= _THREAD_FROM_BYTES:
            self._thread = threading.Thread(target=self._follow, daemon=True, name="download-hash")
            self._thread.start()

    def hexdigest(self) -> str:
        """Of everything up to the last `advance`; waits for the thread, so it is called in one that may wait. Raises SbctlError `disk.*`."""
        if self._thread is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._hashed >= self._limit or self._failure is not None)
        else:
            self._catch_up()
        if self._failure is not None:
            raise disk_error(self._failure, self._path) from self._failure
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread; the digest is void from here on."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._hashed < self._limit)
                if self._closed:
                    return
            self._catch_up()
            if self._failure is not None:
                return

    def _catch_up(self) -> None:
        buffer = memoryview(bytearray(min(_READ_BYTES, max(1, self._limit - self._hashed))))
        try:
            while not self._closed and self._hashed < self._limit:
                wanted = min(len(buffer), self._limit - self._hashed)
                count = os.preadv(self._fd, [buffer[:wanted]], self._hashed)
                if count == 0:
                    raise OSError(0, "the file became shorter")
                self._digest.update(buffer[:count])
                self._hashed += count
        except OSError as error:
            self._failure = error
        with self._changed:
            self._changed.notify_all()
