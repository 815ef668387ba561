"""What files that are to come need of a disk, and what downloads have of it already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sbctl.artifacts.partial_journal import read_journal
from sbctl.base import fs
from sbctl.base.display import format_bytes
from sbctl.base.errors import ArtifactError
from sbctl.base.limits import MIB

__all__ = ["fetched_bytes", "held_bytes", "require_space", "space_missing", "taken_bytes"]

_SPACE_MARGIN_BYTES: Final = 16 * MIB
_BLOCK_BYTES: Final = 512
"""Of st_blocks, whatever the filesystem's own are."""


def require_space(directory: Path, need_bytes: int) -> None:
    """Raises ArtifactError `disk.full`, with both figures, when `directory` cannot take `need_bytes` more and a margin."""
    free = fs.free_bytes(directory)
    if need_bytes > 0 and free is not None and free < need_bytes + _SPACE_MARGIN_BYTES:
        raise space_missing(directory, need_bytes + _SPACE_MARGIN_BYTES, free)


def held_bytes(target: Path) -> int:
    """What unfinished files of `target` take on the disk, space that is reserved for what has not come included: whoever goes on with
    them, or begins anew in their place, does not need it once more. Never fails."""
    return _blocks(target.parent, lambda name: name.startswith(f"{target.name}.") and name.endswith(".part"))


def taken_bytes(directory: Path) -> int:
    """The same of all downloads in a directory, with files that are whole already. Never fails."""
    return _blocks(directory, lambda name: name.endswith(".part") or _is_whole(name))


def fetched_bytes(directory: Path) -> int:
    """What downloads in a directory have so far: those that go on by their journals, those that are whole by their length. Never fails."""
    total = 0
    try:
        for entry in os.scandir(directory):
            if entry.name.endswith(".journal"):
                record = read_journal(Path(entry.path))
                total += record.done_bytes if record is not None else 0
            elif entry.is_file(follow_symlinks=False) and _is_whole(entry.name):
                total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return total
    return total


def space_missing(directory: Path, need_bytes: int, free: int) -> ArtifactError:
    """`disk.full`, with both figures."""
    return ArtifactError(
        "disk.full",
        f"{format_bytes(need_bytes)} are needed here and {format_bytes(free)} are free",
        place=str(directory),
        next_step="free space on this filesystem or choose another cache directory, then run again: what was fetched is kept",
        detail={"need_bytes": need_bytes, "free_bytes": free},
    )


def _blocks(directory: Path, counts: Callable[[str], bool]) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(directory):
            if counts(entry.name):
                total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
    return total


def _is_whole(name: str) -> bool:
    return not (name.endswith((".part", ".journal")) or ".claim-" in name)
