"""What a snapshot says about a plan: before the first step, whether its facts still hold; after the last, whether the change is true.

Pure: snapshots in, sentences and errors out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sbctl.apply.schedule import Unit
from sbctl.base.digests import canonical_json
from sbctl.base.errors import HostError, SbctlError, StalePlanError
from sbctl.base.ids import Address
from sbctl.base.truths import ATTEMPTED, Desired, Recorded
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import BlastRadius, Change, DiffContext, Leaf, Plan, Step
from sbctl.provider import Provider

__all__ = ["Verifier", "attempt_of", "degraded_replicas", "recorded_of"]

_SHOWN_MAX_CHARS: Final = 160


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}…"


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON: a saved plan has lists where a fresh one has tuples."""
    if left is right:
        return True
    try:
        return canonical_json(left) == canonical_json(right)
    except (TypeError, ValueError):
        return bool(left == right)


def degraded_replicas(snapshot: NodeSnapshot) -> tuple[str, ...]:
    """One sentence for each replica or deployment that the runtime reports as failed, and, of the authority that decides, for each worker that
    never came."""
    found = []
    for deployment in snapshot.deployments:
        failed = [replica for replica in deployment.replicas if replica.state == "failed"]
        for replica in failed:
            cause = replica.cause or replica.reason_code or "the runtime gave no cause"
            found.append(f"deployment {deployment.deployment}: replica {replica.replica} failed: {cause}")
        if deployment.state == "failed" and not failed:
            found.append(f"deployment {deployment.deployment} failed: {deployment.last_error or 'no cause given'}")
    absent = () if snapshot.cluster is None else snapshot.cluster.absent
    found += [f"{name} was never heard in its cluster: sbctl status {name} says how its runtime is" for name in absent]
    return tuple(found)


class Verifier:
    """Judges snapshots of the hosts of one plan by its providers."""

    def __init__(self, plan: Plan, providers: Mapping[str, Provider]) -> None:
        self._plan = plan
        self._providers = providers
        self._rows: dict[str, list[Change]] = {}
        self._recorded_specs: dict[str, dict[Address, Mapping[str, Any]]] = {}
        self._desired_specs: dict[str, dict[Address, Mapping[str, Any]]] = {}
        for change in plan.changes:
            if change.recorded is not None:
                self._recorded_specs.setdefault(change.host, {})[change.address] = change.recorded.spec
            if change.desired is not None:
                self._desired_specs.setdefault(change.host, {})[change.address] = change.desired.spec
            if change.action not in ("unreachable", "forget"):
                self._rows.setdefault(change.host, []).append(change)

    def check_facts(self, host: str, snapshot: NodeSnapshot, now: datetime) -> None:
        """Raises StalePlanError `plan.facts_changed` at the first decisive fact that is not as planned, also of rows that do not change.

        What concerns all hosts changes on each as soon as one has it, so its own step compares. What came back by itself is as it was wanted.
        """
        rows = self._rows.get(host, ())
        shared = {change.address for change in rows if change.is_fleet_wide}
        for change in rows:
            if change.address in shared or change.member_of in shared:
                continue
            provider = self._providers[change.address.kind]
            found = provider.interpret(snapshot, change.address, change.recorded).decisive
            for fact in sorted(change.decisive.keys() | found.keys()):
                planned, there = change.decisive.get(fact), found.get(fact)
                if _same(planned, there):
                    continue
                if self._came_back(change, snapshot, now):
                    break
                raise StalePlanError(
                    "plan.facts_changed",
                    f"{change.address} is not as it was planned: {fact} was {_shown(planned)}, now it is {_shown(there)}",
                    place=host,
                    next_step="plan again; nothing was changed on this host",
                    detail={"address": str(change.address), "fact": fact, "planned": planned, "found": there},
                )

    def _came_back(self, change: Change, snapshot: NodeSnapshot, now: datetime) -> bool:
        """Whether the host repaired what was to be repaired, as a runtime does that fetches removed weights anew. Only of what nobody notices
        when it is done once more."""
        is_repair = change.drifted and change.recorded is not None and change.blast_radius is BlastRadius.HITLESS
        return is_repair and self._diff(change, snapshot, change.recorded, now).action == "no-op"

    def check_converged(
        self, unit: Unit, snapshot: NodeSnapshot, recorded: Mapping[Address, Recorded], now: datetime
    ) -> None:
        """Raises HostError `apply.not_converged` unless the host shows the unit and all its members as recorded or, for deletes, gone."""
        member_diffs = []
        for member in (*unit.members, *unit.kept_members):
            left = self._diff(member, snapshot, recorded.get(member.address, member.recorded), now)
            self._require_settled(member, left, snapshot)
            if left.action == "no-op":
                member_diffs.append(left)
        change = unit.change
        left = self._diff(change, snapshot, recorded.get(change.address, change.recorded), now, tuple(member_diffs))
        self._require_settled(change, left, snapshot)

    def still_asks_for(self, unit: Unit, step: Step, snapshot: NodeSnapshot, now: datetime) -> bool:
        """Whether `step`, whose answer was lost, did not happen. In doubt it did not.

        It did when a fresh comparison with the record of before asks for it no more. A resource without a record is always asked for; there
        it did when the facts moved since the plan and a comparison with the record to come asks for nothing.
        """
        change = unit.change
        if not self._asks(unit, step, snapshot, {}, now):
            return False
        found = self._providers[change.address.kind].interpret(snapshot, change.address, change.recorded).decisive
        moved = any(
            not _same(change.decisive.get(fact), found.get(fact)) for fact in change.decisive.keys() | found.keys()
        )
        if step is not change.steps[0] or change.action == "delete" or not moved:
            return True
        to_come = self._records_to_come(unit, step)
        return to_come is None or self._asks(unit, step, snapshot, to_come, now)

    def _records_to_come(self, unit: Unit, step: Step) -> Mapping[Address, Recorded] | None:
        rows = [row for row in unit.rows if row.desired is not None]
        with contextlib.suppress(LookupError, TypeError, ValueError):
            return {row.address: recorded_of(row, self._providers[row.address.kind], {step.key: {}}) for row in rows}
        return None

    def _asks(
        self,
        unit: Unit,
        step: Step,
        snapshot: NodeSnapshot,
        recorded: Mapping[Address, Recorded],
        now: datetime,
    ) -> bool:
        members = tuple(
            self._diff(member, snapshot, recorded.get(member.address, member.recorded), now)
            for member in (*unit.members, *unit.kept_members)
        )
        change = unit.change
        left = self._diff(change, snapshot, recorded.get(change.address, change.recorded), now, members)
        return any(other.method == step.method for other in left.steps)

    def _diff(
        self,
        change: Change,
        snapshot: NodeSnapshot,
        recorded: Recorded | None,
        now: datetime,
        member_changes: tuple[Change, ...] = (),
    ) -> Change:
        provider = self._providers[change.address.kind]
        observed = provider.interpret(snapshot, change.address, recorded)
        context = DiffContext(
            now=now,
            mode=self._plan.mode,
            snapshot=snapshot,
            member_changes=member_changes,
            recorded_specs=self._recorded_specs.get(change.host, {}),
            desired_specs=self._desired_specs.get(change.host, {}),
        )
        desired = None if change.action == "delete" else change.desired
        return provider.diff(desired, recorded, observed, context)

    def _require_settled(self, change: Change, left: Change, snapshot: NodeSnapshot) -> None:
        if left.action in ("no-op", "forget"):
            return
        if change.action == "delete":
            observed = self._providers[change.address.kind].interpret(snapshot, change.address, change.recorded)
            if observed.status != "present" or (not left.steps and change.member_of is None):
                return
            leaf = Leaf("", "still there", "gone")
        else:
            leaf = left.leaves[0] if left.leaves else Leaf("", left.reason or left.action, "nothing left to do")
        raise _not_converged(change, leaf)


def _not_converged(change: Change, leaf: Leaf) -> SbctlError:
    what = f"{change.address} {leaf.path}".strip()
    return HostError(
        "apply.not_converged",
        f"all steps were carried out, but {what} is {_shown(leaf.before)} on the host; expected {_shown(leaf.after)}",
        place=change.host,
        next_step="look what changes it on the host (sbctl drift, the runtime's log), then run apply again",
        detail={
            "address": str(change.address),
            "leaf": leaf.path,
            "expected": _shown(leaf.after),
            "got": _shown(leaf.before),
        },
    )


def recorded_of(change: Change, provider: Provider, results: Mapping[str, Mapping[str, Any]]) -> Recorded:
    """What the state keeps of a change whose desired state is now true."""
    assert change.desired is not None
    return _recorded(change.desired, provider, provider.record(change.desired, results), change.desired.fingerprint)


def attempt_of(change: Change, provider: Provider) -> Recorded | None:
    """What the state keeps while a resource is being created, so that it is never lost; None when it has a record already."""
    if change.recorded is not None or change.desired is None or not change.steps:
        return None
    return _recorded(change.desired, provider, {}, ATTEMPTED)


def _recorded(desired: Desired, provider: Provider, record: Mapping[str, Any], fingerprint: str) -> Recorded:
    return Recorded(
        address=desired.address,
        record=record,
        record_version=provider.record_version,
        fingerprint=fingerprint,
        spec=desired.spec,
        host=desired.host,
        connection=desired.connection,
        after=desired.after,
        member_of=desired.member_of,
        keep=desired.keep,
        prevent_destroy=desired.prevent_destroy,
    )
