"""The plan as JSON: one shape for `plan --format json`, saved plans, events and whoever reads them later.

Format version 1.0. A minor step only adds fields, so readers ignore what they do not know; a major step is refused. One vocabulary of
actions everywhere. There is no secret value to mask: none ever enters a plan. Lists are sorted or in run order, so equal plans are
equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl import __version__
from sbctl.base.clock import rfc3339
from sbctl.base.errors import InputError
from sbctl.plan.model import Action, Change, Leaf, Plan, PlanMode, Unknown
from sbctl.plan.policy import Limits, Refusal, applyable, complete, refusals

__all__ = [
    "PLAN_FORMAT_VERSION",
    "ChangeDocument",
    "LeafDocument",
    "PlanDocument",
    "SummaryDocument",
    "change_document",
    "document_of",
    "plan_document",
    "read_plan_document",
    "summary_document",
]

PLAN_FORMAT_VERSION: Final = "1.0"

Radius = Literal["hitless", "reload", "restart", "breaking"]
Downtime = Literal["none", "queue", "refuse"]
_DOWNTIME_ORDER: Final = ("none", "queue", "refuse")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class LeafDocument(_Part):
    """One differing value. `after_unknown` says why `after` cannot be known yet ("after bootstrap"); `after` is null then."""

    path: str
    before: Any = None
    after: Any = None
    after_unknown: str | None = None
    reason: str = ""


class BlockedDocument(_Part):
    """Why a change cannot be carried out."""

    code: str
    message: str


class RefusalDocument(_Part):
    """Why an apply would refuse this plan."""

    code: str
    message: str
    next_step: str
    place: str | None = None
    only_apply: bool = False
    """`plan` itself does not count it in its exit code."""


class ChangeDocument(_Part):
    """What would happen to one resource."""

    address: str
    kind: str
    host: str
    name: str | None = None
    action: Action
    reason: str = ""
    blast_radius: Radius = "hitless"
    leaves: tuple[LeafDocument, ...] = ()
    download_bytes: int | None = None
    memory_bytes: int | None = None
    downtime: Downtime = "none"
    steps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    member_of: str | None = None
    members: tuple[str, ...] = ()
    carries_only: bool = False
    """A bundle that is sent anew only for its members; not counted."""
    drifted: bool = False
    blocked: BlockedDocument | None = None


class SummaryDocument(_Part):
    """Counts by action, and the worst and the sum over all changes. `unknown` counts hosts that gave no answer."""

    create: int = 0
    update: int = 0
    replace: int = 0
    delete: int = 0
    forget: int = 0
    unknown: int = 0
    blocked: int = 0
    unchanged: int = 0
    drifted: int = 0
    blast_radius: Radius = "hitless"
    download_bytes: int = 0
    downtime: Downtime = "none"


class PlacedOnDocument(_Part):
    """One replica of a deployment and the worker that gets it."""

    slot: int
    node: str
    variant: str = ""
    devices: tuple[int, ...] = ()


class NodeStandingDocument(_Part):
    """How one worker stands to a deployment. `reason` and `facts`: why it gets none, with what is short by how much; `message` says it."""

    node: str
    standing: Literal["placed", "held", "possible", "refused"]
    variant: str = ""
    score: float = 0.0
    has_weights: bool = False
    slots: tuple[int, ...] = ()
    domains: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    facts: dict[str, int | str] = Field(default_factory=dict)


class RolloutDocument(_Part):
    """How far a deployment's rollout came in its cluster."""

    phase: str
    message: str = ""


class PlacedDeploymentDocument(_Part):
    """One deployment of a cluster. `memory_bytes`: of one replica, as it is placed by, of which `device_bytes` on each of `devices`."""

    deployment: str
    replicas: int
    unplaced: int = 0
    memory_bytes: int | None = None
    devices: int = 0
    device_bytes: int = 0
    assignments: tuple[PlacedOnDocument, ...] = ()
    rollout: RolloutDocument
    nodes: tuple[NodeStandingDocument, ...] = ()


class PlaceChangeDocument(_Part):
    """One replica that comes, goes or moves; null: it was or will be nowhere."""

    deployment: str
    slot: int
    from_node: str | None = None
    to_node: str | None = None
    why: str
    message: str = ""


class PlacementPart(_Part):
    """Where the bundle of a cluster leads, by what hosts told: a forecast."""

    cluster_id: str
    workers: int
    deployments: tuple[PlacedDeploymentDocument, ...] = ()
    changes: tuple[PlaceChangeDocument, ...] = ()
    deferred_moves: int = 0


class PlanDocument(_Part):
    """A whole plan. `applyable`: an apply would do something and may; `complete`: it would leave nothing undone; `errored`: planning failed."""

    format_version: str = Field(pattern=r"^[0-9]+\.[0-9]+$")
    sbctl_version: str
    created_at: str
    mode: PlanMode
    lineage: str | None = None
    serial: int
    config_digest: str
    catalog_digest: str
    applyable: bool
    complete: bool
    errored: bool = False
    offline: bool = False
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    unreachable: dict[str, str] = Field(default_factory=dict)
    summary: SummaryDocument
    resource_changes: tuple[ChangeDocument, ...] = ()
    """In run order; members stand behind their bundle, which lists their addresses."""
    resource_drift: tuple[str, ...] = ()
    """Addresses that changed behind our back."""
    refusals: tuple[RefusalDocument, ...] = ()
    notes: tuple[str, ...] = ()
    placement: PlacementPart | None = None
    """Of a cluster alone."""
    header: dict[str, str] = Field(default_factory=dict)


def document_of(plan: Plan, limits: Limits | None = None) -> PlanDocument:
    """The plan as every view takes it."""
    return PlanDocument.model_validate(plan_document(plan, limits))


def plan_document(plan: Plan, limits: Limits | None = None) -> dict[str, Any]:
    """The plan as plain JSON data, valid as `PlanDocument`."""
    limits = limits or Limits()
    acting, counted = ({change.address for change in rows} for rows in (plan.actionable, plan.counted))
    members: dict[str, list[str]] = {}
    for change in plan.changes:
        if change.member_of is not None:
            members.setdefault(str(change.member_of), []).append(str(change.address))
    return {
        "format_version": PLAN_FORMAT_VERSION,
        "sbctl_version": __version__,
        "created_at": rfc3339(plan.created_at),
        "mode": plan.mode,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "config_digest": plan.config_digest,
        "catalog_digest": plan.catalog_digest,
        "applyable": applyable(plan, limits) and not plan.unfit,
        "complete": complete(plan),
        "errored": False,
        "offline": plan.offline,
        "targets": list(plan.targets),
        "excludes": list(plan.excludes),
        "replaces": list(plan.replaces),
        "hosts": sorted(plan.hosts),
        "unreachable": dict(sorted(plan.unreachable.items())),
        "summary": summary_document(plan),
        "resource_changes": [
            change_document(
                change, members.get(str(change.address), ()), carries_only=change.address in acting - counted
            )
            for change in plan.changes
        ],
        "resource_drift": sorted(str(change.address) for change in plan.changes if change.drifted),
        "refusals": [asdict(refusal) for refusal in (*_unfit(plan), *refusals(plan, limits))],
        "notes": list(plan.notes),
        "placement": None if plan.placement is None else dict(plan.placement),
        "header": dict(sorted(plan.header.items())),
    }


def _unfit(plan: Plan) -> Iterator[Refusal]:
    """What an apply says too, unless its caller takes it on."""
    code = "doctor.blocked" if plan.placement is None else "cluster.no_place"
    for found, sentences in ((code, plan.unfit), ("doctor.blocked", plan.taken)):
        for said in sentences:
            yield Refusal(found, said, "apply --accept-blockers goes on all the same")


def summary_document(plan: Plan) -> dict[str, Any]:
    """The plan's counts as plain JSON data, valid as `SummaryDocument`. A bundle that only carries its members' changes is not counted."""
    counts = dict.fromkeys(("create", "update", "replace", "delete", "forget", "no-op", "unreachable"), 0)
    for change in (*plan.counted, *(row for row in plan.changes if row.action in ("no-op", "unreachable"))):
        counts[change.action] += 1
    downtimes = [change.downtime for change in plan.actionable]
    return {
        "create": counts["create"],
        "update": counts["update"],
        "replace": counts["replace"],
        "delete": counts["delete"],
        "forget": counts["forget"],
        "unknown": counts["unreachable"],
        "unchanged": counts["no-op"],
        "blocked": sum(change.blocked is not None for change in plan.counted),
        "drifted": sum(change.drifted for change in plan.changes),
        "blast_radius": str(plan.blast_radius),
        "download_bytes": sum(change.download_bytes or 0 for change in plan.actionable),
        "downtime": max(downtimes, key=_DOWNTIME_ORDER.index, default="none"),
    }


def change_document(
    change: Change, members: tuple[str, ...] | list[str] = (), *, carries_only: bool = False
) -> dict[str, Any]:
    """One change as plain JSON data, valid as `ChangeDocument`."""
    return {
        "address": str(change.address),
        "kind": change.address.kind,
        "host": change.host,
        "name": change.address.name,
        "action": change.action,
        "reason": change.reason,
        "blast_radius": str(change.blast_radius),
        "leaves": [_leaf_document(leaf) for leaf in change.leaves],
        "download_bytes": change.download_bytes,
        "memory_bytes": change.memory_bytes,
        "downtime": change.downtime,
        "steps": [step.title for step in change.steps],
        "notes": list(change.notes),
        "after": sorted(map(str, change.after)),
        "member_of": None if change.member_of is None else str(change.member_of),
        "members": list(members),
        "carries_only": carries_only,
        "drifted": change.drifted,
        "blocked": None
        if change.blocked is None
        else {"code": change.blocked_code or "plan.blocked", "message": change.blocked},
    }


def read_plan_document(raw: Mapping[str, Any]) -> PlanDocument:
    """A document that some sbctl wrote. Raises InputError `plan.foreign_format` for another major version, `plan.invalid` for anything else."""
    version = raw.get("format_version")
    if not isinstance(version, str) or version.split(".")[0] != PLAN_FORMAT_VERSION.split(".")[0]:
        raise InputError(
            "plan.foreign_format",
            f"the plan has format {version!s:.20}; this sbctl reads {PLAN_FORMAT_VERSION}",
            next_step="plan again with this sbctl",
        )
    try:
        return PlanDocument.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            "plan.invalid",
            f"the plan is not one that sbctl writes: {place}: {first['msg']}",
            next_step="plan again with this sbctl",
        ) from None


def _leaf_document(leaf: Leaf) -> dict[str, Any]:
    after = leaf.after
    if isinstance(after, Unknown):
        return {
            "path": leaf.path,
            "before": leaf.before,
            "after": None,
            "after_unknown": after.why,
            "reason": leaf.reason,
        }
    known, why = _without_unknown(after)
    return {"path": leaf.path, "before": leaf.before, "after": known, "after_unknown": why, "reason": leaf.reason}


def _without_unknown(value: Any) -> tuple[Any, str | None]:
    """The value with null where an Unknown stands inside it, and the first one's reason."""
    if isinstance(value, Unknown):
        return None, value.why
    if isinstance(value, dict):
        pairs = {key: _without_unknown(inner) for key, inner in value.items()}
        return {key: known for key, (known, _) in pairs.items()}, next((why for _, why in pairs.values() if why), None)
    if isinstance(value, (list, tuple)):
        items = [_without_unknown(inner) for inner in value]
        return [known for known, _ in items], next((why for _, why in items if why), None)
    return value, None
