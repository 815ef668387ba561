"""A copy that shares its blocks with the original until one of them changes: instant, and independent of whoever owns the original."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from sbctl.base import fs

__all__ = ["reflink"]

_FICLONE: Final = 0x40049409


def reflink(source: Path, target: Path) -> bool:
    """Make the new file `target`, mode 0600. False, and no target, where the filesystem cannot or the two are on different ones.

    Raises SbctlError when `source` cannot be read or `target` cannot be made.
    """
    try:
        reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise fs.disk_error(error, source) from error
    try:
        writer = fs.OPS.open(str(target), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        os.close(reader)
        raise fs.disk_error(error, target) from error
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError:
        fs.remove_file(target)
        return False
    else:
        return True
    finally:
        os.close(writer)
        os.close(reader)
