"""What a host tells of its past: lines of logs, events, and whether its audit chain holds. All of it is foreign until these models accepted it.

A cursor is the host's own: whoever asks again hands back what he got, and gets what came since.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "EVENTS_MAX",
    "LINES_MAX",
    "AuditAnswer",
    "EventKind",
    "EventsAnswer",
    "LogLine",
    "LogsAnswer",
    "NodeEvent",
    "log_fields",
]

LINES_MAX: Final = 10_000
"""Of one answer."""
EVENTS_MAX: Final = 1_000
"""Of one answer."""


class EventKind(StrEnum):
    """What a runtime remembers."""

    RUNTIME_STARTED = "runtime.started"
    RUNTIME_STOPPED = "runtime.stopped"
    RUNTIME_ACTIVATED = "runtime.activated"
    RUNTIME_ROLLED_BACK = "runtime.rolled_back"
    BUNDLE_ACCEPTED = "bundle.accepted"
    BUNDLE_REFUSED = "bundle.refused"
    BUNDLE_CLEARED = "bundle.cleared"
    CONFIG_TAKEN = "config.taken"
    CONFIG_REFUSED = "config.refused"
    REPLICA_CHANGED = "replica.changed"
    ENGINE_STARTED = "engine.started"
    ENGINE_ADOPTED = "engine.adopted"
    ENGINE_STOPPED = "engine.stopped"
    ENGINE_CRASHED = "engine.crashed"
    HOST_DRAINED = "host.drained"
    HOST_RESUMED = "host.resumed"
    CERTIFICATE_INSTALLED = "certificate.installed"
    PUBLIC_CERTIFICATE_CHANGED = "certificate.public_changed"
    CERTIFICATE_RENEWAL_FAILED = "certificate.renewal_failed"
    WEIGHTS_QUARANTINED = "weights.quarantined"
    WEIGHTS_REPLACED = "weights.replaced"
    WEIGHTS_COLLECTED = "weights.collected"
    CLUSTER_NODE_JOINED = "cluster.node_joined"
    CLUSTER_NODE_LEFT = "cluster.node_left"
    CLUSTER_NODE_UNREACHABLE = "cluster.node_unreachable"
    CLUSTER_NODE_LOST = "cluster.node_lost"
    CLUSTER_NODE_BACK = "cluster.node_back"
    CLUSTER_BRAKE_ENGAGED = "cluster.brake_engaged"
    CLUSTER_BRAKE_RELEASED = "cluster.brake_released"
    CLUSTER_LEASE_TAKEN = "cluster.lease_taken"
    CLUSTER_LEASE_LOST = "cluster.lease_lost"
    CLUSTER_PLACEMENT_CHANGED = "cluster.placement_changed"
    CLUSTER_REPLICAS_UNPLACED = "cluster.replicas_unplaced"
    CLUSTER_ROLLOUT_STARTED = "cluster.rollout_started"
    CLUSTER_ROLLOUT_DONE = "cluster.rollout_done"
    CLUSTER_ROLLOUT_TIMED_OUT = "cluster.rollout_timed_out"
    CLUSTER_ROLLOUT_TAKEN_BACK = "cluster.rollout_taken_back"
    CLUSTER_STORE_LOST = "cluster.store_lost"
    CLUSTER_STORE_BACK = "cluster.store_back"
    CLUSTER_ACTION = "cluster.action"


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class LogLine(_Told):
    """One line as it was printed. `at` is RFC 3339 in the host's time, empty where the line says none."""

    at: str = Field(default="", max_length=40)
    source: Literal["runtime", "launcher", "engine"]
    deployment: str | None = Field(default=None, max_length=128)
    replica: int | None = Field(default=None, ge=0)
    text: str = Field(max_length=8192)


def log_fields(text: str) -> dict[str, Any]:
    """What a line of a program of ours says, by field; nothing for any other text."""
    if not text.startswith("{"):
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


class LogsAnswer(_Told):
    """`more`: ask again at once, the answer was full. `lost`: lines were rotated away before they were read."""

    lines: tuple[LogLine, ...] = Field(max_length=LINES_MAX)
    cursor: dict[str, Annotated[str, Field(max_length=512)]] = Field(max_length=1024)
    more: bool = False
    lost: bool = False


class NodeEvent(_Told):
    """`kind` is one of `EventKind`, or of a newer runtime's. `seq` grows by one an event, on its host."""

    seq: int = Field(ge=0)
    at: str = Field(max_length=40)
    kind: str = Field(max_length=64)
    message: str = Field(default="", max_length=1024)
    deployment: str | None = Field(default=None, max_length=128)
    replica: int | None = Field(default=None, ge=0)
    generation: int | None = Field(default=None, ge=0)


class EventsAnswer(_Told):
    """`more`: ask again at once, the answer was full."""

    events: tuple[NodeEvent, ...] = Field(max_length=EVENTS_MAX)
    cursor: int = Field(ge=0)
    more: bool = False


class AuditAnswer(_Told):
    """A walk along the audit chain. It holds up to entry number `entries`, whose digest is `head`; of these the first `trimmed` were old and are not
    kept. `broken_at`: the number of the first that does not hold."""

    entries: int = Field(ge=0)
    trimmed: int = Field(default=0, ge=0)
    head: str = Field(max_length=64)
    last_at: str = Field(default="", max_length=40)
    broken_at: int | None = Field(default=None, ge=1)
    why: str | None = Field(default=None, max_length=1024)
