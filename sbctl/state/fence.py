"""The memory beside the lock: a state.db that holds less than this was cut, restored or swapped.

Written after each commit, so it may lag behind the database by what was never acknowledged, and is never ahead of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbctl.base import fs, strict_json
from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError
from sbctl.base.limits import KIB
from sbctl.state import refusals
from sbctl.state.location import StatePaths

__all__ = ["Fence", "check_fence", "read_fence", "write_fence"]

_MAX_BYTES = 4 * KIB
_FIELDS = frozenset({"schema_version", "lineage", "serial", "changes", "digest"})


@dataclass(frozen=True, slots=True)
class Fence:
    """`changes` counts transactions over a lineage's life; 0 means that creation never came to its end."""

    lineage: str
    serial: int
    changes: int


def _content(fence: Fence) -> dict[str, object]:
    return {
        "schema_version": 1,
        "lineage": fence.lineage,
        "serial": fence.serial,
        "changes": fence.changes,
    }


def write_fence(paths: StatePaths, fence: Fence) -> None:
    """Durable when it returns. Raises SbctlError."""
    content = _content(fence)
    document = strict_json.dump_pretty({**content, "digest": fingerprint(content)})
    fs.write_atomic(paths.fence, document.encode())


def read_fence(paths: StatePaths) -> Fence | None:
    """None when there is no such file. Raises StateError `state.corrupt` or `state.too_new`; SbctlError when it cannot be read."""
    try:
        data = fs.read_bounded(paths.fence, max_bytes=_MAX_BYTES)
    except InputError as error:
        if error.code == "file.missing":
            return None
        if error.code == "file.unreadable":
            raise
        raise refusals.corrupt(paths, "fence.json is not a small regular file", fence=True) from error
    try:
        raw = strict_json.loads(data, max_bytes=_MAX_BYTES)
    except InputError as error:
        raise refusals.corrupt(paths, "fence.json cannot be read", fence=True) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("schema_version"), int):
        raise refusals.corrupt(paths, "fence.json is not a fence", fence=True)
    digest = raw.pop("digest", None)
    if fingerprint(raw) != digest:
        raise refusals.corrupt(paths, "the digest of fence.json does not match", fence=True)
    if raw["schema_version"] > 1:
        raise refusals.too_new(paths, raw["schema_version"], 1)
    if raw.keys() != _FIELDS - {"digest"}:
        raise refusals.corrupt(paths, "fence.json has other fields than it should", fence=True)
    return Fence(raw["lineage"], raw["serial"], raw["changes"])


def check_fence(paths: StatePaths, fence: Fence | None, *, lineage: str, serial: int, changes: int) -> None:
    """Whether a database with these numbers may follow `fence`. Raises StateError by name."""
    if fence is None:
        raise refusals.missing(paths, paths.fence.name)
    if fence.lineage != lineage:
        raise refusals.foreign(paths, f"found lineage {lineage}, expected {fence.lineage}")
    if changes < fence.changes or serial < fence.serial:
        raise refusals.regressed(
            paths, f"serial {serial}, change {changes}", f"serial {fence.serial}, change {fence.changes}"
        )
