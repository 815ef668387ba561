"""What became of an operator's action in a cluster: one sentence, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sbctl.base.clock import rfc3339
from sbctl.node.cluster_actions import ActionName, ClusterActed
from sbctl.node.cluster_status import StatusAction

__all__ = ["acted_body", "acted_text", "action_text"]

_DONE: Final[Mapping[ActionName, str]] = {
    "evacuate": "{0} is being evacuated: it gets nothing new, and serves until its replicas are ready elsewhere",
    "restore": "{0} gets replicas again, as one that just joined",
    "confirm_lost": "{0} counts as gone for good: what it ran is placed elsewhere now; over when it is heard again",
    "retry": "{0} is begun once more; sbctl cluster status --watch shows how it goes",
}
_IN_FORCE: Final = {
    "evacuate": "{0} is being evacuated",
    "confirm_lost": "{0} counts as gone for good",
    "retry": "{0} is begun once more",
}


def acted_text(answer: ClusterActed) -> str:
    """In the past where it stood so already."""
    if answer.changed:
        return _DONE[answer.action].format(answer.subject)
    if answer.action == "restore":
        return f"{answer.subject} was not being evacuated"
    return (
        f"{_IN_FORCE[answer.action].format(answer.subject)} already, {_by(answer.by, answer.at_unix_ms, answer.reason)}"
    )


def action_text(action: StatusAction) -> str:
    """One that is in force."""
    said = _IN_FORCE.get(action.action, f"{action.action} {{0}}").format(action.subject)
    return f"{said}, {_by(action.by, action.at_unix_ms, action.reason)}"


def acted_body(host: str, answer: ClusterActed, left: Sequence[str] | None) -> dict[str, Any]:
    return {"asked": host, **answer.model_dump(mode="json"), "left": None if left is None else list(left)}


def _by(name: str, at_unix_ms: int, reason: str) -> str:
    at = rfc3339(datetime.fromtimestamp(at_unix_ms / 1000, UTC)) if at_unix_ms else "an unknown time"
    return f"asked by {name or 'an operator'} at {at}" + (f": {reason}" if reason else "")
