"""How every kind below the host reads a snapshot: what it decided on, and whose host it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed

__all__ = ["UNREACHABLE", "observation"]

UNREACHABLE: Final = Observed(status="unreachable")

_NOTHING: Final[Mapping[str, Any]] = {}


def observation(
    snapshot: NodeSnapshot,
    *,
    present: bool,
    decisive: Mapping[str, Any] = _NOTHING,
    informative: Mapping[str, Any] = _NOTHING,
) -> Observed:
    """Before the node interface answers nothing is called absent: it is not known. Another fleet's marker is judged by `host.H` alone."""
    return Observed(
        "not_bootstrapped" if not snapshot.bootstrapped else "present" if present else "absent",
        "unmarked" if snapshot.marker is None else "ours",
        decisive,
        informative,
    )
