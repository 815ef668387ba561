"""Whether a cache root can be trusted: nobody but us and root can replace anything along its path.

Rule: the root is a directory of ours, not a link, not writable by group or others; every directory above it belongs to us or root and is
either not writable by others or sticky. A group that is the owner's private one (gid = uid) or root's counts as the owner.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.fs import disk_error

__all__ = ["check_root"]


def check_root(root: Path) -> None:
    """Raises RefusedError `cache.unsafe_permissions` with the directory and the remedy; what does not exist yet is not judged."""
    if not root.is_absolute() or ".." in root.parts:
        raise InputError(
            "cache.path_invalid",
            "the cache directory must be an absolute path without ..",
            place=str(root),
            next_step="write the whole path (proxy.model_host.cache.directory, --cache-dir)",
        )
    owner = os.geteuid()
    for directory in (root, *root.parents):
        try:
            status = os.lstat(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise disk_error(error, directory) from error
        problem = _problem(status, owner, is_root=directory == root)
        if problem is not None:
            raise RefusedError(
                "cache.unsafe_permissions",
                f"the model cache is not safe here: {directory} {problem[0]}",
                place=str(directory),
                next_step=problem[1].format(path=directory),
            )


def _problem(status: os.stat_result, owner: int, *, is_root: bool) -> tuple[str, str] | None:
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        if is_root or status.st_uid not in (0, owner):
            return "is a symbolic link", "name the directory it points to"
        return None
    if not stat.S_ISDIR(mode):
        return "is not a directory", "choose another cache directory"
    if status.st_uid not in ((owner,) if is_root else (0, owner)):
        return f"belongs to user {status.st_uid}", "chown it, or choose a directory of your own"
    shared_group = bool(mode & stat.S_IWGRP) and status.st_gid not in (0, owner)
    writable = bool(mode & stat.S_IWOTH) or shared_group
    if writable and (is_root or not mode & stat.S_ISVTX):
        return "can be written by others", "chmod go-w {path}, or choose another directory"
    return None
