"""A download that is not finished: a file of its full length that fills up, and a journal of the ranges that are in it.

    <target>.<token>.part        the bytes, written at their place
    <target>.<token>.journal     what they are of, which ranges were written, and what of that is on the disk (`partial_journal`)

Rules: both are of one process, made O_EXCL|O_NOFOLLOW under a name that nobody can guess. What a process leaves is adopted by rename, which
one can do; of a process that may still live it is copied, so that nobody else writes into what is hashed. The digest covers the whole file
and decides in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.claim import Claim, Owner, fate, is_local
from sbctl.artifacts.disk_space import space_missing
from sbctl.artifacts.partial_journal import UNKNOWN_LENGTH, JournalRecord, first_lines, left_behind
from sbctl.artifacts.prefix_hash import PrefixHash
from sbctl.artifacts.ranges import Pieces
from sbctl.base import fs
from sbctl.base.errors import SbctlError

__all__ = ["Partial", "Validator"]

_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Validator:
    """What a source said of the file when it was asked: `place` names the source, `etag` is its strong ETag or empty."""

    place: str
    etag: str


class Partial:
    """One unfinished file, written by its maker only. `write_at` and `mark` are called by one thread at a time."""

    def __init__(self, target: Path, claim: Claim, sha256: str, size_bytes: int | None) -> None:
        self.target = target
        self.path = target.with_name(f"{target.name}.{claim.token}.part")
        self.journal_path = target.with_name(f"{target.name}.{claim.token}.journal")
        self.places: set[str] = set()
        """Of all sources that brought bytes."""
        self.pieces = Pieces(UNKNOWN_LENGTH)
        self._sha256 = sha256
        self._size_bytes = size_bytes
        self._validators: dict[str, str] = {}
        self._fd = -1
        self._journal = -1
        self._hash: PrefixHash | None = None
        self._marks = self._synced_marks = 0
        self._names_synced = False

    @property
    def total(self) -> int | None:
        """Length of the whole file; None while nobody has said it."""
        return None if self.pieces.total == UNKNOWN_LENGTH else self.pieces.total

    def open(self) -> None:
        """Go on with what an earlier process left, if it is of the same bytes; else with nothing. Raises SbctlError `disk.*`."""
        best: tuple[str, JournalRecord] | None = None
        for stem, record in left_behind(self.target):
            if record is not None and not (record.released or _is_gone(record.owner, self.target.parent)):
                best = best or ((stem, record) if self._fits(record) else None)
            elif record is None or not self._fits(record) or not self.target.with_name(stem + ".part").exists():
                _remove(self.target.with_name(stem + ".part"), self.target.with_name(stem + ".journal"))
            elif best is None or record.done_bytes > best[1].done_bytes:
                best = (stem, record)
        try:
            if best is not None and self._adopt(*best):
                return
            self._create()
        except OSError as error:
            raise fs.disk_error(error, self.path) from error

    def _fits(self, record: JournalRecord) -> bool:
        known = record.total != UNKNOWN_LENGTH and self._size_bytes in (None, record.total)
        return known and record.sha256 == self._sha256 != "" and bool(record.ranges)

    def _create(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = fs.OPS.open(str(self.path), flags, 0o600)
        self._hash = PrefixHash(self._fd, str(self.path))

    def _adopt(self, stem: str, record: JournalRecord) -> bool:
        """False when it is gone, or is not the file it was."""
        part, journal = self.target.with_name(stem + ".part"), self.target.with_name(stem + ".journal")
        self.pieces, self._validators, self.places = (
            Pieces(record.total, record.ranges),
            dict(record.validators),
            set(record.places),
        )
        if record.released or _is_gone(record.owner, self.target.parent):
            self._begin_journal(record.synced)
            fs.OPS.fdatasync(self._journal)
            try:
                fs.OPS.rename(str(part), str(self.path))
                self._fd = fs.OPS.open(str(self.path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                self.discard_content()
                return False
            fs.fsync_directory(self.target.parent)
            self._names_synced = True
            _remove(journal)
        else:
            self._begin_journal()
            self._create()
            _copy(part, self._fd, self.pieces.done)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
            raise SbctlError(
                "disk.symlink_refused",
                "something else stands where an unfinished download of ours belongs",
                place=str(self.path),
                next_step="look who placed it and remove it",
            )
        self._hash = self._hash or PrefixHash(self._fd, str(self.path))
        self._hash.advance(self.pieces.prefix)
        return True

    def etag_of(self, place: str) -> str | None:
        """The validator under which this source's bytes are continued: empty when it gave none, None when it was never asked."""
        return self._validators.get(place)

    def begin(self, total: int | None, validator: Validator) -> None:
        """A source answered with the whole file: what is here so far is not of it. `total` None: it ends when it ends."""
        if self.pieces.done:
            self.discard_content()
            self._create_again()
        self.pieces = Pieces(UNKNOWN_LENGTH if total is None else total)
        self._validators = {validator.place: validator.etag}
        self.places = {validator.place}
        self._begin_journal()
        if total is not None:
            self._reserve(total)

    def _reserve(self, total: int) -> None:
        """Take the space now where that costs nothing; elsewhere only the length."""
        try:
            if is_local(self.target.parent):
                os.posix_fallocate(self._fd, 0, total)
            else:
                fs.OPS.truncate(self._fd, total)
        except OSError as error:
            raise self._disk_error(error) from error

    def join(self, validator: Validator) -> None:
        """A source brings the missing ranges of what is here."""
        if self._validators.get(validator.place) != validator.etag or validator.place not in self.places:
            self._validators[validator.place] = validator.etag
            self.places.add(validator.place)
            self._append({"place": validator.place, "etag": validator.etag})

    def end_is_known(self, total: int) -> None:
        """The source ended: the file of unknown length has this one."""
        self.pieces = Pieces(total, self.pieces.done)

    def write_at(self, data: bytes, offset: int) -> None:
        """Raises SbctlError `disk.full` and its like; such an error is final."""
        view = memoryview(data)
        try:
            while view:
                written = fs.OPS.write_at(self._fd, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            raise self._disk_error(error) from error

    def mark(self, start: int, end: int) -> None:
        """`[start, end)` was written; a kill loses nothing of it."""
        if start < end:
            self._append({"r": [start, end]})
            self._marks += 1

    def sync(self) -> None:
        """What is marked by now is on the disk; a power cut loses nothing of it. May run beside the other calls. Raises SbctlError `disk.*`."""
        marks = self._marks
        if marks == self._synced_marks:
            return
        try:
            fs.OPS.fdatasync(self._fd)
            self._append({"synced": marks})
            fs.OPS.fdatasync(self._journal)
        except OSError as error:
            raise self._disk_error(error) from error
        if not self._names_synced:
            fs.fsync_directory(self.target.parent)
            self._names_synced = True
        self._synced_marks = marks

    def advance_hash(self) -> None:
        """Let the digest follow what is whole from the first byte."""
        assert self._hash is not None
        self._hash.advance(self.pieces.prefix)

    @property
    def unhashed_bytes(self) -> int:
        return self._hash.behind_bytes if self._hash is not None else 0

    def hexdigest(self) -> str:
        """Of all bytes; waits until they are read. Raises SbctlError `disk.*`."""
        assert self._hash is not None
        return self._hash.hexdigest()

    def finish(self) -> None:
        """Make the bytes durable under the target's name. The caller has checked the digest."""
        try:
            fs.OPS.truncate(self._fd, self.pieces.total)
        except OSError as error:
            raise self._disk_error(error) from error
        fs.install_file(self.path, self.target, mode=0o600)
        self._close()
        _remove(self.journal_path)

    def discard_content(self) -> None:
        """Forget the bytes."""
        self._close()
        _remove(self.path, self.journal_path)
        self.pieces = Pieces(UNKNOWN_LENGTH)
        self._validators, self.places = {}, set()

    def restart(self) -> None:
        """Forget the bytes and stand ready for others. Raises SbctlError `disk.*`."""
        self.discard_content()
        self._create_again()

    def leave(self) -> None:
        """End here. What can be continued stays for whoever comes next, the rest goes. Quiet."""
        if self._sha256 and self.total is not None and self.pieces.done and self._journal >= 0:
            with contextlib.suppress(SbctlError):
                self._append({"released": True})
            self._close()
        else:
            self.discard_content()

    def _create_again(self) -> None:
        try:
            self._create()
        except OSError as error:
            raise fs.disk_error(error, self.path) from error

    def _disk_error(self, error: OSError) -> SbctlError:
        found = fs.disk_error(error, self.path)
        free = fs.free_bytes(self.target.parent)
        if found.code != "disk.full" or free is None:
            return found
        missing = 0 if self.total is None else self.total - self.pieces.done_bytes
        return space_missing(self.target.parent, missing, free)

    def _begin_journal(self, on_disk: Sequence[tuple[int, int]] = ()) -> None:
        """The whole journal anew: what it is of, what is here, and what of that is on the disk."""
        lines = first_lines(self._sha256, self.total, self._validators, self.pieces.done, on_disk)
        self._marks, self._synced_marks = len(on_disk) + len(self.pieces.done), 0
        if self._journal >= 0:
            os.close(self._journal)
            self._journal = -1
        _remove(self.journal_path)
        self._names_synced = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._journal = fs.OPS.open(str(self.journal_path), flags, 0o600)
        except OSError as error:
            raise fs.disk_error(error, self.journal_path) from error
        for line in lines:
            self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            fs.OPS.write(self._journal, json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise self._disk_error(error) from error

    def _close(self) -> None:
        if self._hash is not None:
            self._hash.close()
            self._hash = None
        for fd in (self._fd, self._journal):
            if fd >= 0:
                os.close(fd)
        self._fd = self._journal = -1


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(SbctlError):
            fs.remove_file(path)


def _is_gone(owner: Owner | None, directory: Path) -> bool:
    """Whoever holds the claim of a disk of this machine has seen that the lock of the one before is free."""
    return fate(owner) == "gone" or is_local(directory)


def _copy(source: Path, fd: int, ranges: Sequence[tuple[int, int]]) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        for start, end in ranges:
            position = start
            while position < end:
                piece = os.pread(reader, min(_COPY_BYTES, end - position), position)
                if not piece:
                    raise OSError(0, "the unfinished file became shorter")
                position += fs.OPS.write_at(fd, piece, position)
    finally:
        os.close(reader)
