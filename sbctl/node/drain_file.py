"""Whether an operator took this host out of service: `<state>/drain.json`. It stays until an operator takes it back, over every restart.

Written by the node interface, read by the runtime when it starts and when it is told to look, and by the snapshot also while no runtime runs.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from sbctl.base import fs
from sbctl.base.errors import InputError
from sbctl.node.paths import NodePaths

__all__ = ["clear_drain", "drain_path", "read_drain", "write_drain"]

_MAX_BYTES = 4096


def drain_path(paths: NodePaths) -> Path:
    return paths.state / "drain.json"


def read_drain(paths: NodePaths) -> dict[str, str] | None:
    """Who drained the host and since when; None while it is in service. What cannot be read counts as drained: nobody takes that back by
    accident."""
    try:
        data = fs.read_bounded(drain_path(paths), max_bytes=_MAX_BYTES)
    except InputError as error:
        return None if error.code == "file.missing" else {"by": "unknown", "since": ""}
    told: Any = None
    with contextlib.suppress(ValueError):
        told = json.loads(data)
    if not isinstance(told, dict):
        return {"by": "unknown", "since": ""}
    return {name: str(told.get(name) or "")[:200] for name in ("by", "since")}


def write_drain(paths: NodePaths, *, by: str, since: str) -> dict[str, str]:
    """Durable when it returns; one that stands already is kept with its first author. Raises SbctlError `disk.*`."""
    found = read_drain(paths)
    if found is not None:
        return found
    told = {"by": by[:200], "since": since}
    fs.ensure_directory(paths.state, mode=0o755)
    fs.write_atomic(drain_path(paths), (json.dumps(told, sort_keys=True) + "\n").encode(), mode=0o644)
    return told


def clear_drain(paths: NodePaths) -> None:
    """The host is in service again, durably. Raises SbctlError `disk.*`."""
    fs.remove_file(drain_path(paths))
