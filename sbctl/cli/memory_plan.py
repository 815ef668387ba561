"""A plan with what its deployments need: rows say how much and how that is known, and hosts that cannot hold all of theirs are named. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sbctl.base.display import format_bytes, plural
from sbctl.cli.memory_needs import DeploymentNeed, HostNeeds, needs_of
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Plan

__all__ = ["with_memory"]

_MAKES = ("create", "update", "replace")


def with_memory(plan: Plan, config: CompiledConfig | None, snapshots: Mapping[str, NodeSnapshot | None]) -> Plan:
    """Nothing changes where there is no configuration (a rollback, a destroy), where a host was not asked, and in a cluster, where placement
    says what fits (`placement_plan`)."""
    if config is None or config.cluster is not None or plan.mode != "apply":
        return plan
    made = {change.host for change in plan.changes if _is_made(change)}
    needs: dict[str, HostNeeds] = {}
    for name in sorted(made & config.hosts.keys()):
        snapshot = snapshots.get(name)
        if snapshot is not None and snapshot.host.memory_total_bytes:
            needs[name] = needs_of(config.hosts[name], snapshot)
    if not needs:
        return plan
    changes = tuple(
        _told(change, needs[change.host], snapshots[change.host])
        if _is_made(change) and change.host in needs
        else change
        for change in plan.changes
    )
    return replace(plan, changes=changes, unfit=tuple(said for one in needs.values() for said in _unfit(one)))


def _is_made(change: Change) -> bool:
    return change.address.kind == "deployment" and change.action in _MAKES


def _told(change: Change, needs: HostNeeds, snapshot: NodeSnapshot | None) -> Change:
    need = needs.of(change.address.name or "")
    if need is None or snapshot is None:
        return change
    others = [said for said in change.notes if not said.startswith("memory")]
    if any(said.startswith("rollout rolling") for said in others):
        others += _both(change, needs, snapshot)
    return replace(change, memory_bytes=need.figure.total_bytes, notes=(_sentence(need, needs, snapshot), *others))


def _both(change: Change, needs: HostNeeds, snapshot: NodeSnapshot) -> Iterator[str]:
    """While the new replica is proven the old one still has its memory."""
    state = next((one for one in snapshot.deployments if one.deployment == change.address.name), None)
    held = 0 if state is None else max((replica.memory_bytes or 0 for replica in state.replicas), default=0)
    need = needs.of(change.address.name or "")
    new = 0 if need is None or need.deployment.model.warm else need.host_bytes
    short = needs.warm_host_bytes + new + held - needs.usable_host_bytes
    if held and not needs.short_bytes and short > 0:
        yield f"old and new together are {format_bytes(short)} more than may be used here; rollout: recreate stops the old one first"


def _sentence(need: DeploymentNeed, needs: HostNeeds, snapshot: NodeSnapshot) -> str:
    figure, replicas = need.figure, need.deployment.model.replicas
    each = (
        f" a replica, {format_bytes(figure.total_bytes * replicas)} for {plural(replicas, 'replica')}"
        if replicas > 1
        else " a replica"
    )
    lies = "" if need.layout is None else f"; {need.layout.said}"
    free = f"; {format_bytes(snapshot.host.memory_available_bytes)} free on {needs.host}"
    return f"memory: {format_bytes(figure.total_bytes)}{each}, {figure.words}{lies}{free}"


def _unfit(needs: HostNeeds) -> Iterator[str]:
    short = [need for need in needs.deployments if need.short_bytes]
    for need in short:
        yield f"{needs.host} cannot hold {need.deployment.id}: {need.said}; {need.remedy()}"
    if needs.short_bytes and not short:
        yield (
            f"{needs.host} cannot hold all that is warm: {needs.said}; unset warm of one, lower its max_context or max_concurrency, "
            "set kv_quant: int8, or move it to another host (required_labels)"
        )
