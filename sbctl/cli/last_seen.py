"""When each host answered last, and which machine it was: `.sbctl/seen.json`, this operator's own memory, beside the state and no part of it.

It informs: "last seen 2026-11-26 17:40". Where it cannot be read or written, nobody remembers, and nothing fails.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.base.limits import MIB
from sbctl.cli.workspace import Workspace
from sbctl.node.snapshot import NodeSnapshot

__all__ = ["Seen", "last_seen", "remember_seen", "seen_words"]

_NAME: Final = "seen.json"


@dataclass(frozen=True, slots=True)
class Seen:
    """`at` as every document of ours writes time."""

    at: str
    machine_id: str = ""


def last_seen(workspace: Workspace) -> dict[str, Seen]:
    """By host; empty when nobody remembers."""
    try:
        raw = json.loads(fs.read_bounded(workspace.store.paths.directory / _NAME, max_bytes=4 * MIB))
        return {str(host): Seen(str(told["at"]), str(told["machine_id"])) for host, told in raw.items()}
    except (SbctlError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def remember_seen(workspace: Workspace, snapshots: Mapping[str, NodeSnapshot]) -> None:
    """All these hosts answered just now. Called under the state's lock."""
    now = rfc3339(workspace.clock.now())
    seen = {**last_seen(workspace), **{host: Seen(now, one.host.machine_id) for host, one in snapshots.items()}}
    text = json.dumps(
        {host: {"at": one.at, "machine_id": one.machine_id} for host, one in sorted(seen.items())}, indent=1
    )
    with contextlib.suppress(SbctlError):
        fs.write_atomic(workspace.store.paths.directory / _NAME, text.encode() + b"\n", mode=0o600)


def seen_words(seen: Seen | None) -> str:
    """` (last seen 2026-11-26 17:40 UTC)`, or nothing."""
    return f" (last seen {seen.at[:16].replace('T', ' ')} UTC)" if seen is not None else ""
