"""Where an operator's actions come in, by the control socket and the admin API alike: judged, audited, written down.

An action that makes no sense now is refused with what would: nothing is written then. One that stands already is answered as it stands.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sbctl.base.display import format_duration_s
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.node.actions_document import OperatorAction
from sbctl.node.cluster_actions import ActionName, ClusterAct, ClusterActed
from sbctl.node.placement_document import PlacementDocument
from sbctl.node.records import EventKind
from sbctl.placement.operator_actions import ActionKind, OperatorActions
from sbctl.runtime.audit import Note
from sbctl.runtime.cluster.publication import not_an_authority
from sbctl.runtime.cluster.status import Facts

if TYPE_CHECKING:
    from sbctl.runtime.cluster.node import ClusterNode

__all__ = ["OperatorDoor", "standing"]

_KINDS: Final[dict[ActionName, ActionKind]] = {
    "confirm_lost": "losses",
    "retry": "retries",
    "evacuate": "evacuations",
    "restore": "evacuations",
}
_STUCK: Final = frozenset({"timed_out", "no_room", "restoring", "restored"})


class OperatorDoor:
    """Of one node; only authorities let anything in."""

    def __init__(self, node: ClusterNode, note: Note) -> None:
        self._node = node
        self._note = note

    async def ask(self, asked: ClusterAct) -> ClusterActed:
        """In the store when it returns. Raises as `ClusterAct` says."""
        leading = self._node.leading
        if leading is None:
            raise not_an_authority()
        known = standing(asked, self._node.facts(), self._node.config.unreachable_after_ms)
        if known is not None:
            return known
        action = f"cluster_{asked.action}"
        told: dict[str, str | int | None] = {"by": asked.by, "reason": asked.reason}
        await asyncio.to_thread(self._note, action, asked.subject, {**told, "outcome": "asked"})
        try:
            written = await leading.actions.add(
                _KINDS[asked.action],
                asked.subject,
                by=asked.by,
                reason=asked.reason,
                is_over=asked.action == "restore",
                outcome="restored by an operator" if asked.action == "restore" else "",
            )
        except SbctlError as error:
            await asyncio.to_thread(self._note, action, asked.subject, {**told, "outcome": error.code})
            raise
        await asyncio.to_thread(
            self._note, action, asked.subject, {**told, "outcome": "done", "number": written.number}
        )
        why = f": {asked.reason}" if asked.reason else ""
        said = f"{asked.action.replace('_', '-')} {asked.subject}, by {asked.by or 'an operator'}{why}"
        self._node.host.events.tell(EventKind.CLUSTER_ACTION, said)
        return _acted(asked, written, changed=True)


def standing(asked: ClusterAct, facts: Facts, unreachable_after_ms: int) -> ClusterActed | None:
    """What is answered without writing anything; None: it is to be written. Raises RefusedError for what makes no sense now."""
    if asked.action == "retry":
        return _retried(asked, facts)
    row, plan = facts.view.rows.get(asked.subject), facts.plan
    if (row is None or row.snapshot is None) and asked.subject not in _known_nodes(plan, facts.actions):
        raise RefusedError(
            "unknown_node",
            f"no node of this cluster is called {asked.subject}",
            place=asked.subject,
            next_step="sbctl cluster status names them",
        )
    known = facts.actions.kind(_KINDS[asked.action]).get(asked.subject)
    in_force = known is not None and not known.is_over
    if asked.action == "restore":
        return None if in_force else _acted(asked, known, changed=False)
    if in_force:
        return _acted(asked, known, changed=False)
    if asked.action == "confirm_lost":
        _refuse_heard(asked.subject, facts, unreachable_after_ms)
    elif row is not None and row.snapshot is not None and "worker" not in row.snapshot.node.roles:
        raise RefusedError(
            "not_a_worker",
            f"{asked.subject} runs no replicas that could be moved",
            place=asked.subject,
            next_step=f"sbctl host drain {asked.subject} takes it out of service",
        )
    return None


def _known_nodes(plan: PlacementDocument | None, actions: OperatorActions) -> set[str]:
    """Nodes that were heard some time, though nobody here knows their word any more."""
    if plan is None:
        return {*actions.evacuations, *actions.losses}
    placed = {one.node_id for each in plan.deployments.values() for one in (*each.assignments, *each.retained)}
    return {*plan.known_nodes, *plan.lost_nodes, *placed, *actions.evacuations, *actions.losses}


def _refuse_heard(node: str, facts: Facts, unreachable_after_ms: int) -> None:
    row = facts.view.rows.get(node)
    if row is None or row.snapshot is None or not row.heard_at_ms:
        return
    age_ms = facts.now_ms - row.heard_at_ms
    if age_ms < unreachable_after_ms:
        raise RefusedError(
            "node_is_heard",
            f"{node} was heard {format_duration_s(max(0, age_ms) / 1000)} ago, so it may be running what would be started elsewhere",
            place=node,
            next_step=f"sbctl cluster evacuate {node} moves it without an outage; a node counts as silent after "
            f"{format_duration_s(unreachable_after_ms / 1000)}",
        )


def _retried(asked: ClusterAct, facts: Facts) -> ClusterActed | None:
    placed = None if facts.plan is None else facts.plan.deployments.get(asked.subject)
    if placed is None:
        raise RefusedError(
            "unknown_deployment",
            f"the cluster's placement has no deployment {asked.subject}",
            place=asked.subject,
            next_step="sbctl cluster status names them",
        )
    known = facts.actions.retries.get(asked.subject)
    if known is not None and known.number > placed.tried_again:
        return _acted(asked, known, changed=False)
    failed = any(
        (one.deployment, one.deployment_generation, one.state) == (asked.subject, placed.generation, "failed")
        for row in facts.view.rows.values()
        if row.snapshot is not None
        for one in row.snapshot.replicas
    )
    if placed.rollout.phase not in _STUCK and not placed.rollout.timed_out and not failed:
        raise RefusedError(
            "nothing_to_retry",
            f"{asked.subject} is {placed.rollout.phase} at generation {placed.generation}, and nothing of it has failed",
            place=asked.subject,
            next_step="sbctl cluster status shows how far it is",
        )
    return None


def _acted(asked: ClusterAct, written: OperatorAction | None, *, changed: bool) -> ClusterActed:
    if written is None:
        return ClusterActed(action=asked.action, subject=asked.subject, changed=changed)
    return ClusterActed(
        action=asked.action,
        subject=asked.subject,
        changed=changed,
        number=written.number,
        by=written.by,
        reason=written.reason,
        authority=written.authority,
        at_unix_ms=written.at_unix_ms,
    )
