"""Compare: send a new revision, take note of one that is there already, start again what an operator stopped, clear.

A revision is sent when the runtime does not hold the desired content under the desired key epoch, or serves less than it holds. When it
does hold it and only the state does not know (an answer was lost, the state is older than the host), the state takes note; nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from providers.bundle.cluster import held_by, is_cluster, of_another_kind, scope_of
from providers.bundle.observe import facts_of
from providers.bundle.spec import digest_of, own_fields_for_reader
from providers.comparison import Call, Comparison, gone_leaves, new_leaves, transfer_deadline_s, worst_downtime
from providers.members import superseded
from sbctl.base.limits import ENGINE_READY_DEADLINE_S, NODE_CALL_DEADLINE_S
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed

__all__ = ["diff"]

_PUBLISH_WAIT_S: Final = 3 * ENGINE_READY_DEADLINE_S
"""For the nodes of a cluster: weights come, engines start, what they replace ends. They go on after it."""
_SETTLED: Final = ("no-op", "unreachable")


@dataclass(frozen=True, slots=True)
class _Situation:
    """What the host holds and serves against what is desired."""

    holds: bool
    """The desired content under the desired key epoch."""
    serves: bool
    """Every deployment of it is there with the right content. True as well while the runtime is down: nothing is known."""
    lost: bool
    """It was applied once, and the runtime has none."""
    untold: bool
    """It was applied once, and the runtime is down and does not say whether it still has it."""
    foreign: bool
    """The runtime holds another revision or content than the last apply left there."""
    changed: bool
    """sb.yml asks for something else than was applied, or nothing was."""
    stopped: tuple[str, ...]
    """Deployments that an operator stopped."""
    replaced: tuple[str, ...]
    """Deployments that --replace names."""

    @property
    def sends(self) -> bool:
        return not (self.holds and self.serves)


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return comparison.held_by_others() or superseded(comparison) or _cleared(comparison)
    change = _wanted(_of_its_kind(comparison, desired), desired)
    return replace(change, decisive=observed.decisive, is_fleet_wide=is_cluster(desired.spec))


def _of_its_kind(comparison: Comparison, desired: Desired) -> Comparison:
    """A bundle of a host and one of its cluster are different documents under one address: each is compared with what is of its kind alone."""
    recorded = comparison.recorded
    held = facts_of(held_by(comparison.snapshot, desired.spec))
    if recorded is not None and of_another_kind(recorded.spec, desired.spec):
        recorded = None
    return replace(comparison, recorded=recorded, observed=replace(comparison.observed, decisive=held))


def _wanted(comparison: Comparison, desired: Desired) -> Change:
    context = comparison.context
    situation = _situation(comparison, desired)
    members_settled = all(change.action in _SETTLED for change in context.member_changes)
    asked = situation.changed or situation.lost or situation.foreign or situation.stopped or situation.replaced
    if members_settled and not asked and not situation.sends and not context.replace:
        return comparison.unchanged()
    return _applied(comparison, desired, situation)


def _situation(comparison: Comparison, desired: Desired) -> _Situation:
    recorded, held, snapshot = comparison.recorded, comparison.observed.decisive, comparison.snapshot
    known = recorded.record.get("content_digest") if recorded is not None else None
    changed = recorded is None or recorded.fingerprint != desired.fingerprint
    wanted = digest_of(desired.spec) if changed or known is None else known
    holds = held["content_digest"] == wanted and held["key_epoch"] == desired.spec["key_epoch"]
    joined = is_cluster(desired.spec)
    states = () if joined else snapshot.deployments
    served = {state.deployment: state.stopped_by for state in states}
    up = comparison.bootstrapped and snapshot.runtime.healthy
    if joined:
        up = up and snapshot.cluster is not None
        served = dict.fromkeys(snapshot.cluster.members if snapshot.cluster is not None else ())
    revision = recorded.record.get("revision") if recorded is not None else None
    decided = () if comparison.is_admin_managed else tuple(desired.spec["deployments"])
    return _Situation(
        holds=holds,
        serves=not up or all(name in served for name in decided),
        lost=recorded is not None and held["revision"] is None and (up or not comparison.bootstrapped),
        untold=recorded is not None and held["revision"] is None and comparison.bootstrapped and not up,
        foreign=held["revision"] is not None
        and (revision not in (None, held["revision"]) or known not in (None, held["content_digest"])),
        changed=changed,
        stopped=tuple(name for name in decided if served.get(name) == "operator"),
        replaced=tuple(
            change.address.name or ""
            for change in comparison.context.member_changes
            if change.action == "replace" and change.address.kind == "deployment"
        ),
    )


def _applied(comparison: Comparison, desired: Desired, situation: _Situation) -> Change:
    recorded, context = comparison.recorded, comparison.context
    own = _own_leaves(recorded, desired)
    drift = _drift(comparison, situation)
    sends = situation.sends or context.replace
    action: Action = "replace" if context.replace else "create" if recorded is None or situation.lost else "update"
    members = context.member_changes
    radius = action_radius("bundle", action, own)
    return comparison.change(
        action,
        _reason(comparison, situation),
        calls=_calls(comparison, desired, situation, sends=sends),
        leaves=(*own, *drift, *(_revision_leaf(comparison) if sends and not situation.untold else ())),
        blast_radius=max([radius, *(member.blast_radius for member in members)]),
        downtime=worst_downtime(["refuse" if context.replace else "none", *(member.downtime for member in members)]),
        notes=_notes(comparison),
        drifted=bool(drift) or any(member.drifted for member in members),
    )


def _own_leaves(recorded: Recorded | None, desired: Desired) -> tuple[Leaf, ...]:
    if recorded is not None and recorded.fingerprint == desired.fingerprint:
        return ()
    wanted = own_fields_for_reader(desired.spec)
    return new_leaves(wanted) if recorded is None else leaf_changes(own_fields_for_reader(recorded.spec), wanted)


def _drift(comparison: Comparison, situation: _Situation) -> tuple[Leaf, ...]:
    recorded, held = comparison.recorded, comparison.observed.decisive
    leaves: list[Leaf] = []
    if recorded is not None and situation.foreign:
        known, found = recorded.record.get("content_digest"), held["content_digest"]
        if known not in (None, found):
            leaves.append(Leaf("content", found[:12], known[:12], f"{held['signer'] or 'somebody'} sent another one"))
        if recorded.record.get("revision") not in (None, held["revision"]):
            leaves.append(Leaf("held_revision", held["revision"], recorded.record["revision"], "not what was applied"))
    if recorded is not None and situation.lost:
        leaves.append(Leaf("held_revision", None, recorded.record.get("revision"), "the runtime has no bundle"))
    leaves.extend(Leaf(f"stopped.{name}", True, False, "an operator stopped it") for name in situation.stopped)
    return tuple(leaves)


def _revision_leaf(comparison: Comparison) -> tuple[Leaf, ...]:
    held = comparison.observed.decisive["revision"]
    known = comparison.recorded.record.get("revision") if comparison.recorded is not None else None
    next_one = max(held or 0, known or 0) + 1
    return (Leaf("revision", held, next_one, "numbered when it is signed; numbers may be skipped"),)


def _reason(comparison: Comparison, situation: _Situation) -> str:
    joined = comparison.desired is not None and is_cluster(comparison.desired.spec)
    if comparison.context.replace:
        return "asked for by --replace"
    if comparison.recorded is None:
        if not situation.sends:
            return "the state takes note of it"
        return "the first bundle of its cluster" if joined else "the first bundle of this host"
    if situation.lost:
        return "the runtime has no bundle any more" if comparison.bootstrapped else "the runtime is gone from the host"
    if situation.changed:
        return "sb.yml asks for something else"
    if situation.untold:
        return "the runtime is down; what it comes back with is looked at then"
    if situation.foreign:
        return "the host holds another bundle than was applied"
    return "what an operator stopped starts again" if situation.stopped else "a member changes"


def _notes(comparison: Comparison) -> tuple[str, ...]:
    notes = []
    recorded, held = comparison.recorded, comparison.observed.decisive["revision"]
    known = recorded.record.get("revision") if recorded is not None else None
    if known is not None and held is not None and held > known:
        notes.append(
            f"the host holds revision {held} and the state remembers {known}: an apply was cut off before it heard the answer, "
            "the state is older than the host, or another operator applied from elsewhere"
        )
    return tuple(notes)


def _calls(comparison: Comparison, desired: Desired, situation: _Situation, *, sends: bool) -> list[Call]:
    held = comparison.observed.decisive["revision"]
    calls: list[Call] = []
    if comparison.context.replace and held is not None and not is_cluster(desired.spec):
        calls.append(_clear(comparison))
        held = None
    if sends:
        calls.append(_publish(desired, held) if is_cluster(desired.spec) else _send(desired, held))
    elif situation.changed or situation.foreign:
        calls.append(Call(Method.SNAPSHOT, {}, f"take note of revision {held}"))
    calls.extend(_act(desired, name, "stop") for name in situation.replaced)
    calls.extend(_act(desired, name, "load") for name in dict.fromkeys((*situation.replaced, *situation.stopped)))
    return calls


def _send(desired: Desired, held_revision: int | None) -> Call:
    count = len(desired.spec["deployments"])
    return Call(
        Method.BUNDLE_APPLY,
        {"scope": desired.address.scope, "expected_revision": held_revision},
        f"apply bundle to {desired.host}",
        retry="read_first",
        deadline_s=NODE_CALL_DEADLINE_S + count * (ENGINE_READY_DEADLINE_S + NODE_CALL_DEADLINE_S),
    )


def _publish(desired: Desired, held_revision: int | None) -> Call:
    scope = scope_of(desired.spec, desired.address)
    wait_s = _PUBLISH_WAIT_S if desired.spec["deployments"] else NODE_CALL_DEADLINE_S
    return Call(
        Method.CLUSTER_PUBLISH,
        {"scope": scope, "expected_revision": held_revision, "wait_s": wait_s},
        f"publish the bundle of cluster {scope} at {desired.host}",
        retry="read_first",
        deadline_s=wait_s + NODE_CALL_DEADLINE_S,
    )


def _act(desired: Desired, name: str, action: str) -> Call:
    files = desired.spec["deployments"][name]["artifact"]["files"]
    deadline_s = ENGINE_READY_DEADLINE_S + transfer_deadline_s(sum(file["size_bytes"] for file in files))
    return Call(
        Method.DEPLOYMENT_ACTION,
        {"deployment": name, "action": action},
        f"{action} {name}",
        downtime="queue" if action == "stop" else "none",
        deadline_s=deadline_s,
    )


def _clear(comparison: Comparison) -> Call:
    return Call(Method.BUNDLE_CLEAR, {}, f"stop all deployments on {comparison.subject.host}", downtime="refuse")


def _cleared(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if is_cluster(recorded.spec):
        return comparison.forgotten(
            "the host is no authority of the cluster any more; nodes keep what they were assigned"
        )
    runtime_stays = any(address.kind == "runtime" for address in comparison.context.desired_specs)
    up = comparison.bootstrapped and comparison.snapshot.runtime.healthy
    if not comparison.bootstrapped or (up and comparison.observed.status == "absent"):
        return comparison.forgotten("the runtime has no bundle any more")
    if not up and not runtime_stays:
        return comparison.forgotten("the runtime is down, and the bundle goes with it")
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "this host serves nothing any more",
        calls=[_clear(comparison)],
        leaves=gone_leaves(own_fields_for_reader(recorded.spec)),
        blast_radius=action_radius("bundle", "delete"),
    )
