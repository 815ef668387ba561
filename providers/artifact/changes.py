"""Compare: fetch or send what is missing or damaged, remove what nobody needs."""

from __future__ import annotations

from typing import Any

from providers.artifact.observe import find_artifact
from providers.artifact.spec import fields_for_reader
from providers.comparison import Call, Comparison, gone_leaves, new_leaves, transfer_deadline_s
from providers.members import artifact_name
from sbctl.base.display import format_bytes
from sbctl.base.truths import Desired, Recorded
from sbctl.catalog.licenses import license_of
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed

__all__ = ["diff"]

_BROKEN = {
    "partial": "the artifact on the host is incomplete",
    "corrupt": "the artifact on the host is damaged",
    "absent": "the artifact is gone from the host",
}


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        gone = comparison.left_to_cluster("the host's cache keeps it until it needs the room: sbctl models prune")
        return (
            gone
            or comparison.kept_for_others()
            or comparison.held_by_others()
            or comparison.goes_with_host()
            or _removed(comparison)
        )
    return _wanted(comparison, desired)


def _wanted(comparison: Comparison, desired: Desired) -> Change:
    recorded, replace = comparison.recorded, comparison.context.replace
    facts, fetched = desired.spec["facts"], bool(desired.spec["fetched"])
    state = find_artifact(comparison.snapshot, facts["artifact"])
    ready = state is not None and state.state == "ready"
    leaves = _leaves(recorded, desired)
    drift = _drift(recorded, facts["artifact"], "absent" if state is None else state.state) if fetched else ()
    if recorded is not None and not (leaves or drift or replace):
        return comparison.unchanged()
    action: Action = "replace" if replace else "create" if recorded is None or drift else "update"
    calls = [_remove(facts)] if replace and state is not None else []
    if (fetched and not ready) or replace:
        calls.append(_fetch(desired))
    total = sum(file["size_bytes"] for file in facts["files"])
    return comparison.change(
        action,
        _reason(comparison, drift),
        calls=calls,
        leaves=(*leaves, *drift),
        blast_radius=action_radius("artifact", action),
        download_bytes=total if calls else 0 if ready else None,
        memory_bytes=facts["min_memory_bytes"] or None,
        notes=_notes(comparison, facts, fetched, ready and not replace, total),
        drifted=bool(drift),
    )


def _leaves(recorded: Recorded | None, desired: Desired) -> tuple[Leaf, ...]:
    if recorded is not None and recorded.fingerprint == desired.fingerprint:
        return ()
    wanted = fields_for_reader(desired.spec)
    return new_leaves(wanted) if recorded is None else leaf_changes(fields_for_reader(recorded.spec), wanted)


def _drift(recorded: Recorded | None, artifact: str, state: str) -> tuple[Leaf, ...]:
    if (
        recorded is None
        or recorded.spec["facts"]["artifact"] != artifact
        or not recorded.spec["fetched"]
        or state == "ready"
    ):
        return ()
    return (Leaf("state", state, "ready", _BROKEN[state]),)


def _reason(comparison: Comparison, drift: tuple[Leaf, ...]) -> str:
    if comparison.context.replace:
        return "asked for by --replace"
    if drift:
        return drift[0].reason
    return "deployments of this host serve it" if comparison.recorded is None else "sb.yml asks for something else"


def _notes(comparison: Comparison, facts: dict[str, Any], fetched: bool, ready: bool, total: int) -> tuple[str, ...]:
    pinned = facts["revision"] and facts["revision"] not in facts["source"]
    source = f"{facts['source']}@{facts['revision']}" if pinned else facts["source"]
    notes = [", ".join(part for part in (_license(facts["license"]), source) if part)]
    if ready:
        notes.append("already in the host's cache")
    elif not fetched:
        notes.append(f"{format_bytes(total)} are fetched when first asked for")
    recorded = comparison.recorded
    if recorded is not None and recorded.spec["facts"]["artifact"] != facts["artifact"]:
        notes.append(f"the bytes of {recorded.spec['facts']['artifact'][:12]} stay in the cache: they still serve")
    return tuple(notes)


def _license(text: str) -> str:
    return license_of(text).phrase if text else ""


def _fetch(desired: Desired) -> Call:
    facts, push = desired.spec["facts"], desired.spec["delivery"] == "push"
    total = sum(file["size_bytes"] for file in facts["files"])
    return Call(
        Method.ARTIFACT_IMPORT if push else Method.ARTIFACT_PULL,
        {"facts": facts},
        f"{'send' if push else 'fetch'} {desired.address.name} ({format_bytes(total)})",
        deadline_s=transfer_deadline_s(total),
    )


def _remove(facts: dict[str, Any]) -> Call:
    title = f"remove {artifact_name(facts)} from the cache"
    return Call(Method.ARTIFACT_REMOVE, {"artifact": facts["artifact"]}, title)


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    facts = recorded.spec["facts"]
    if recorded.keep:
        return comparison.forgotten("kept: the weights stay in the host's cache")
    if comparison.observed.status != "present":
        return comparison.forgotten("the artifact is not in the host's cache")
    if _used_under_another_name(comparison, facts["artifact"]):
        return comparison.forgotten("the same bytes serve under another name")
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "no deployment of this host serves it",
        calls=[_remove(facts)],
        leaves=gone_leaves(fields_for_reader(recorded.spec)),
        blast_radius=action_radius("artifact", "delete"),
    )


def _used_under_another_name(comparison: Comparison, artifact: str) -> bool:
    return any(
        address.kind == "artifact" and spec["facts"]["artifact"] == artifact
        for address, spec in comparison.context.desired_specs.items()
    )
