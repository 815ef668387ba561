"""When an artifact was last used and whether it is pinned: `metadata/<artifact>.json`, beside the snapshot, since a snapshot never changes.

Losing such a file loses no weights. One that cannot be read counts as pinned: what it said might have been that. Noting a use is a courtesy
to the collection, so a disk that refuses it stops nobody.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.limits import JSON_INT_MAX

__all__ = ["Usage", "forget_usage", "note_use", "read_usage", "set_pinned", "usage_path"]

_MAX_BYTES: Final = 4096
_COARSE_MS: Final = 60_000
"""A use that follows another so soon is not written down again."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Milliseconds since 1970. `pinned`: no collection takes it."""

    created_at_ms: int
    last_accessed_ms: int
    pinned: bool = False


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: Literal[1] = 1
    created_at_ms: int = Field(ge=0, le=JSON_INT_MAX)
    last_accessed_ms: int = Field(ge=0, le=JSON_INT_MAX)
    pinned: bool = False


def usage_path(root: Path, artifact: str) -> Path:
    """`artifact` is a digest already."""
    return root / "metadata" / f"{artifact}.json"


def read_usage(root: Path, artifact: str) -> Usage:
    """What is known; without a file, as old as the snapshot or the unfinished download."""
    path = usage_path(root, artifact)
    try:
        document = _Document.model_validate_json(fs.read_bounded(path, max_bytes=_MAX_BYTES))
    except InputError as error:
        if error.code == "file.missing":
            return _by_age(root, artifact, pinned=False)
    except ValidationError:
        pass
    else:
        return Usage(document.created_at_ms, document.last_accessed_ms, document.pinned)
    return _by_age(root, artifact, pinned=True)


def _by_age(root: Path, artifact: str, *, pinned: bool) -> Usage:
    for parent in ("snapshots", "partials"):
        with contextlib.suppress(OSError):
            at_ms = max(0, os.lstat(root / parent / artifact).st_mtime_ns // 1_000_000)
            return Usage(at_ms, at_ms, pinned)
    return Usage(0, 0, pinned)


def note_use(root: Path, artifact: str, now_ms: int) -> None:
    """It was published, found or launched at this moment."""
    with contextlib.suppress(SbctlError):
        known = read_usage(root, artifact) if usage_path(root, artifact).exists() else Usage(now_ms, 0)
        if not 0 <= now_ms - known.last_accessed_ms < _COARSE_MS:
            _write(root, artifact, Usage(known.created_at_ms, now_ms, known.pinned))


def set_pinned(root: Path, artifact: str, *, pinned: bool) -> None:
    """Raises SbctlError `disk.*`."""
    known = read_usage(root, artifact)
    _write(root, artifact, Usage(known.created_at_ms, known.last_accessed_ms, pinned))


def _write(root: Path, artifact: str, usage: Usage) -> None:
    path = usage_path(root, artifact)
    fs.ensure_directory(path.parent, mode=0o755)
    document = _Document(
        created_at_ms=usage.created_at_ms, last_accessed_ms=usage.last_accessed_ms, pinned=usage.pinned
    )
    fs.write_atomic(path, canonical_json(document.model_dump(mode="json")), mode=0o644)


def forget_usage(root: Path, artifact: str) -> None:
    """With the artifact. Quiet: a file that stays is harmless."""
    with contextlib.suppress(SbctlError):
        fs.remove_file(usage_path(root, artifact))
