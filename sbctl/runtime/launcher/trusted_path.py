"""Whether a program or a directory of libraries can be replaced by anybody but root: every step of the way to it is looked at."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["why_untrusted"]

_MAX_LINKS: Final = 40


def why_untrusted(path: Path, *, owner: int = 0, is_directory: bool = False) -> str | None:
    """Why somebody else than root (or `owner`) could change what is at `path`, in a phrase; None for a file that only they can change.

    Links are followed as the kernel does, and the directory of each of them counts too.
    """
    pending = list(reversed(path.parts[1:]))
    current, links = Path("/"), 0
    status = os.lstat(current)
    while True:
        if (problem := _problem(status, owner)) is not None:
            return f"{current} {problem}"
        if not pending:
            break
        name = pending.pop()
        if name == "..":
            current = current.parent
            status = os.lstat(current)
            continue
        try:
            status = os.lstat(current / name)
            target = os.readlink(current / name) if stat.S_ISLNK(status.st_mode) else None
        except OSError as error:
            return f"{current / name} cannot be read: {error.strerror}"
        if target is None:
            current = current / name
            continue
        links += 1
        if links > _MAX_LINKS or status.st_uid not in (0, owner):
            return f"{current / name} is a link that does not belong to root, or one of too many"
        pending += [part for part in reversed(Path(target).parts) if part != "/"]
        current = Path("/") if os.path.isabs(target) else current
        status = os.lstat(current)
    if is_directory:
        return None if stat.S_ISDIR(status.st_mode) else f"{current} is not a directory"
    return None if stat.S_ISREG(status.st_mode) else f"{current} is not a file"


def _problem(status: os.stat_result, owner: int) -> str | None:
    if status.st_uid not in (0, owner):
        return f"belongs to user {status.st_uid}"
    group_may = bool(status.st_mode & stat.S_IWGRP) and status.st_gid not in (0, owner)
    # A sticky directory keeps others from replacing what is root's.
    is_sticky = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
    if (status.st_mode & stat.S_IWOTH or group_may) and not is_sticky:
        return "can be written by others"
    return None
