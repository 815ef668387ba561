"""What root fixed on this host for engines: where their programs, weights and sockets are. `<etc>/launcher.json`, root's own file.

The file is trusted only when nobody but root can have written it, so a runtime that was taken over cannot widen what it may start.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.errors import InputError

__all__ = [
    "AWAY_S",
    "ENGINE_SOCKETS",
    "RUN_DIRECTORY",
    "SITE_FILE",
    "SOCKET_PATH",
    "UNIT_GLOB",
    "Site",
    "engine_socket",
    "read_site",
    "site_document",
]

SITE_FILE: Final = "launcher.json"
RUN_DIRECTORY: Final = Path("/run/sbctl")
SOCKET_PATH: Final = RUN_DIRECTORY / "launcher.sock"
ENGINE_SOCKETS: Final = RUN_DIRECTORY / "engines"
"""One directory an engine: `<token>/engine.sock`."""
UNIT_GLOB: Final = "sbctl-engine-*.service"

_MAX_BYTES: Final = 64 * 1024
AWAY_S: Final = 60.0
"""Unless the file says otherwise."""
_KEYS: Final = frozenset({"schema_version", "engines", "weights", "programs", "away_s"})


@dataclass(frozen=True, slots=True)
class Site:
    """`programs` are executables of the user's that may be engines; `away_s`: so long engines outlive whoever attends to them."""

    engines: Path
    weights: tuple[Path, ...]
    programs: tuple[Path, ...] = ()
    away_s: float = AWAY_S


def engine_socket(token: str, sockets: Path = ENGINE_SOCKETS) -> Path:
    """Where the engine with this token listens."""
    return sockets / token / "engine.sock"


def site_document(
    *, weights: Collection[Path], programs: Collection[Path], engines: Path, away_s: float = AWAY_S
) -> dict[str, Any]:
    """The file's content."""
    return {
        "schema_version": 1,
        "engines": str(engines),
        "weights": sorted(map(str, weights)),
        "programs": sorted(map(str, programs)),
        "away_s": away_s,
    }


def read_site(path: Path, *, owner: int = 0) -> Site:
    """Raises InputError `launcher.site_unsafe` when others may write it, `launcher.site_invalid`, `file.*`."""
    data = _read_own(path, owner)
    document = strict_json.loads(data, max_bytes=_MAX_BYTES)
    if not isinstance(document, dict) or document.get("schema_version") != 1 or not set(document) <= _KEYS:
        raise _invalid(path, "it does not have its form")
    away_s = document.get("away_s", AWAY_S)
    if isinstance(away_s, bool) or not isinstance(away_s, int | float) or not 0 < away_s <= 86_400:
        raise _invalid(path, "away_s is a number of seconds, at most a day")
    return Site(
        _absolute(path, document.get("engines")),
        tuple(_absolute(path, entry) for entry in _list(path, document.get("weights"))),
        tuple(_absolute(path, entry) for entry in _list(path, document.get("programs"))),
        float(away_s),
    )


def _read_own(path: Path, owner: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise InputError(
            "file.missing", "there is no such file", place=str(path), next_step="run sbctl apply"
        ) from error
    except OSError as error:
        raise InputError("file.unreadable", f"the file cannot be opened: {error.strerror}", place=str(path)) from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, owner) or status.st_mode & 0o022:
            raise InputError(
                "launcher.site_unsafe",
                "somebody else than root may write this file",
                place=str(path),
                next_step="look who changed it, remove it, then run sbctl apply",
            )
        return file.read(_MAX_BYTES + 1)


def _list(path: Path, value: object) -> list[object]:
    if not isinstance(value, list) or len(value) > 256:
        raise _invalid(path, "weights and programs are lists")
    return value


def _absolute(path: Path, value: object) -> Path:
    if not isinstance(value, str) or not os.path.isabs(value) or os.path.normpath(value) != value or value == "/":
        raise _invalid(path, "it names a path that is not absolute and plain")
    return Path(value)


def _invalid(path: Path, why: str) -> InputError:
    return InputError(
        "launcher.site_invalid", f"the launcher's list is unusable: {why}", place=str(path), next_step="run sbctl apply"
    )
