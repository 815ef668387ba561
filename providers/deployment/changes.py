"""Compare: one row of the bundle, with what its change means for callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from providers.comparison import Blocked, Comparison, Downtime, gone_leaves, new_leaves
from providers.deployment.spec import fields_for_reader
from providers.members import is_cluster_member, superseded
from sbctl.base.display import format_bytes, plural
from sbctl.base.truths import Desired, Recorded
from sbctl.plan.blast_radius import action_radius, routed_deployments
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed
from sbctl.plan.paths import split_path

__all__ = ["diff"]

_ENGINE_FIELDS: Final = frozenset(
    {
        "model", "variant", "engine", "max_concurrency", "context_length", "threads", "mode", "kv_quant", "adapters", "extra_args",
    }
)  # fmt: skip
"""A change of one of these needs another engine process; the others change how requests are queued."""


_NOT_HERE: Final = Blocked(
    "cluster.no_replace",
    "replicas of a cluster run on its workers, and this address is of the authority that publishes them",
    "leave out --replace: sbctl models stop and sbctl models load restart a deployment where it runs",
)


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    unmanaged = comparison.unmanaged()
    if unmanaged is not None:
        return unmanaged
    if desired is None:
        return comparison.held_by_others() or superseded(comparison) or _removed(comparison)
    if recorded is None:
        return _created(comparison, desired, "a new deployment", drifted=False)
    if _gone(observed):
        return _created(comparison, desired, "the runtime does not serve it any more", drifted=True)
    return _updated(comparison, desired, recorded)


def _gone(observed: Observed) -> bool:
    return observed.status == "not_bootstrapped" or (observed.status == "absent" and observed.decisive["known"])


def _created(comparison: Comparison, desired: Desired, reason: str, *, drifted: bool) -> Change:
    return comparison.change(
        "create",
        reason,
        leaves=new_leaves(fields_for_reader(desired.spec)),
        blast_radius=action_radius("deployment", "create"),
        memory_bytes=_memory_bytes(desired.spec),
        notes=(*_memory_note(comparison, desired.spec), *_warm_note(desired.spec)),
        drifted=drifted,
    )


def _updated(comparison: Comparison, desired: Desired, recorded: Recorded) -> Change:
    drift = _drift(comparison.observed, recorded)
    leaves: tuple[Leaf, ...] = ()
    if desired.fingerprint != recorded.fingerprint:
        leaves = leaf_changes(fields_for_reader(recorded.spec), fields_for_reader(desired.spec))
    replace = comparison.context.replace
    if replace and is_cluster_member(desired.spec):
        return comparison.change("replace", "asked for by --replace", blocked=_NOT_HERE)
    if desired.fingerprint == recorded.fingerprint and not drift and not replace:
        return comparison.unchanged()
    rollout = desired.spec["rollout"]
    restarts = replace or any(_needs_engine(leaf) for leaf in leaves) or any(leaf.path == "content" for leaf in drift)
    action: Action = "replace" if replace else "update"
    # What an operator stopped serves nobody, so nobody notices that it starts.
    felt = [leaf for leaf in (*leaves, *drift) if leaf.path != "stopped"]
    reason = "asked for by --replace" if replace else "sb.yml asks for something else" if leaves else drift[0].reason
    return comparison.change(
        action,
        reason,
        leaves=(*leaves, *drift),
        blast_radius=action_radius("deployment", action, felt, rollout=rollout if restarts else "rolling"),
        downtime=_downtime(rollout) if restarts and not replace else "queue" if replace else "none",
        memory_bytes=_memory_bytes(desired.spec),
        notes=(*_memory_note(comparison, desired.spec), *(_rollout_note(desired.spec) if restarts else ())),
        drifted=bool(drift),
    )


def _drift(observed: Observed, recorded: Recorded) -> tuple[Leaf, ...]:
    if not observed.decisive["known"]:
        return ()
    found = observed.decisive["content_digest"]
    leaves = []
    if found and found != recorded.fingerprint:
        leaves.append(Leaf("content", found[:12], recorded.fingerprint[:12], "the runtime serves something else"))
    if observed.decisive["stopped_by_operator"]:
        leaves.append(Leaf("stopped", True, False, "an operator stopped it"))
    return tuple(leaves)


def _needs_engine(leaf: Leaf) -> bool:
    segments = split_path(leaf.path)
    return segments[0] in _ENGINE_FIELDS or segments[:2] == ("artifact", "content")


def _downtime(rollout: str) -> Downtime:
    return "none" if rollout == "rolling" else "queue"


def _memory_bytes(spec: Mapping[str, Any]) -> int | None:
    return spec["artifact"]["min_memory_bytes"] or None


def _memory_note(comparison: Comparison, spec: Mapping[str, Any]) -> tuple[str, ...]:
    if is_cluster_member(spec):
        return ()
    needed = _memory_bytes(spec)
    free = comparison.snapshot.host.memory_available_bytes
    if needed is None or not free:
        return ()
    replicas = spec["replicas"]
    total = f" ({format_bytes(needed * replicas)} for {plural(replicas, 'replica')})" if replicas > 1 else ""
    known = "the catalog's figure, which knows nothing of context or requests"
    free_here = f"{format_bytes(free)} free on {comparison.subject.host}"
    return (f"memory: {format_bytes(needed)} a replica{total}, {known}; {free_here}",)


def _rollout_note(spec: Mapping[str, Any]) -> tuple[str, ...]:
    if spec["rollout"] == "recreate":
        return ("rollout recreate: the old replica drains first, requests wait meanwhile",)
    count = spec["replicas"]
    which = f"one of {count} replicas at a time" if count > 1 else "the new replica is proven before the old one drains"
    return (f"rollout rolling: {which}, no request refused",)


def _warm_note(spec: Mapping[str, Any]) -> tuple[str, ...]:
    does = "produced a token" if spec["mode"] == "chat" else "answered"
    return (f"warm: apply returns once it has {does}",) if spec["warm"] else ()


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if _gone(comparison.observed):
        return comparison.forgotten("the runtime does not serve it any more")
    routed = routed_deployments(
        spec for address, spec in comparison.context.recorded_specs.items() if address.kind == "origin"
    )
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "not in sb.yml any more",
        leaves=gone_leaves(fields_for_reader(recorded.spec)),
        blast_radius=action_radius("deployment", "delete", routed=recorded.address.name in routed),
        downtime="refuse",
    )
