"""GET /admin/cluster/status as who reads it sees it: SBproxy's field names, and what sbctl says beside them.

A node of another version may say more or less: what is unknown here is left out, what is missing has its default.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ClusterStatus",
    "PlacedRow",
    "RejectionRow",
    "ReplicaRow",
    "StatusAction",
    "StatusDeployment",
    "StatusNode",
    "StatusStore",
]


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class StatusStore(_Told):
    """`state`: connected, no_quorum, no_writes, lost; `since` when, RFC 3339."""

    state: str = "unknown"
    since: str = ""
    server: str | None = None
    problem: str | None = None


class ReplicaRow(_Told):
    deployment: str
    deployment_generation: int = 0
    slot: int | None = None
    state: str = ""
    reason_code: str | None = None


class StatusNode(_Told):
    """`health`: healthy, degraded, unhealthy. Ages are counted by the node that answered."""

    node_id: str
    local: bool = False
    membership_state: str = ""
    health: str = "unhealthy"
    unhealthy: bool = True
    unhealthy_reasons: tuple[str, ...] = ()
    exclusion_reason: str | None = None
    problem: str | None = None
    snapshot_age_ms: int | None = None
    model_eligible: bool = False
    removed: bool = False
    evacuating: bool = False
    authority_stale: bool = False
    roles: tuple[str, ...] = ()
    model_endpoint: str | None = None
    runtime_version: str = ""
    replicas: tuple[ReplicaRow, ...] = ()


class PlacedRow(_Told):
    node_id: str
    slot: int
    generation: int
    devices: tuple[int, ...] = ()
    deadline_unix_ms: int | None = None


class RejectionRow(_Told):
    reason: str
    variant: str = ""
    facts: dict[str, int | str] = Field(default_factory=dict)


class StatusAction(_Told):
    """What an operator asked, and is in force."""

    action: str
    subject: str
    by: str = ""
    reason: str = ""
    authority: str = ""
    at_unix_ms: int = 0


class StatusDeployment(_Told):
    deployment_id: str
    model: str = ""
    generation: int
    desired_replicas: int = 0
    placed_replicas: int = 0
    ready_replicas: int = 0
    unplaced_replicas: int = 0
    phase: str = ""
    target_ready: bool = False
    timed_out: bool = False
    handoff_deadline_unix_ms: int | None = None
    assignments: tuple[PlacedRow, ...] = ()
    retained: tuple[PlacedRow, ...] = ()
    draining: tuple[PlacedRow, ...] = ()
    rejections: dict[str, RejectionRow] = Field(default_factory=dict)
    rejections_left_out: int = 0


class ClusterStatus(_Told):
    """`brake`: why nothing is moved although nodes are lost. `problem`: why the node that answered stands alone."""

    cluster_id: str
    local_node_id: str
    generated_at_unix_ms: int
    directory_age_ms: int | None = None
    directory_stale_since_unix_ms: int | None = None
    summary: dict[str, int] = Field(default_factory=dict)
    deployment_authority: dict[str, Any] = Field(default_factory=dict)
    deployments: tuple[StatusDeployment, ...] = ()
    nodes: tuple[StatusNode, ...] = ()
    store: StatusStore = StatusStore()
    actions: tuple[StatusAction, ...] = ()
    local_problems: dict[str, str] = Field(default_factory=dict)
    is_authority: bool = False
    is_lease_holder: bool = False
    lease_epoch: int | None = None
    placed_at_unix_ms: int | None = None
    brake: str | None = None
    problem: str | None = None
