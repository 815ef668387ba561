"""Compare: create, renew what the server may do, repair, restart with other settings, remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from providers.comparison import Blocked, Call, Comparison, new_leaves
from providers.enrollment.spec import fields_for_reader
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed, Unknown
from sbctl.trust.certificates import renewal_time

__all__ = ["diff"]

_DEADLINE_S: Final = 180.0
_FILES: Final = {
    "content_sha256": ("files", "files of the enrollment server were changed on the host"),
    "unit_sha256": ("unit", "the unit of the enrollment server was changed on the host"),
}


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return comparison.held_by_others() or _removed(comparison)
    if context.replace:
        return _run(comparison, desired, "update", "asked for by --replace", ())
    if recorded is None or observed.status != "present":
        gone = recorded is not None and bool(recorded.record)
        reason = "the enrollment server is gone from the host" if gone else "hosts without SSH can enroll here"
        leaves = new_leaves(fields_for_reader(desired.spec))
        return _run(comparison, desired, "create", reason, leaves, drifted=gone)
    same = desired.fingerprint == recorded.fingerprint
    other = () if same else leaf_changes(fields_for_reader(recorded.spec), fields_for_reader(desired.spec))
    drift = tuple(_drift(comparison))
    due = _renewal_due(comparison)
    if not other and not drift and due is None:
        return comparison.unchanged()
    leaves = (*other, *drift, *((due,) if due is not None else ()))
    reason = drift[0].reason if drift else _reason(other)
    return _run(comparison, desired, "update", reason, leaves, drifted=bool(drift))


def _reason(other: tuple[Leaf, ...]) -> str:
    paths = {leaf.path.partition(".")[0] for leaf in other}
    if not paths:
        return "half of the life of what it may do is over"
    if "issuer" in paths:
        return "the CA is taken over: the next one signs for the server"
    if paths <= {"ca", "signers", "revocations", "reserved"}:
        return "what it hands on or refuses changed"
    return "the server runs with other settings"


def _drift(comparison: Comparison) -> Iterator[Leaf]:
    shown = comparison.observed.decisive
    yield from comparison.edited(_FILES)
    if shown["running"] is False:
        yield Leaf("running", False, True, "the enrollment server does not run")


def _renewal_due(comparison: Comparison) -> Leaf | None:
    """Only where sb.yml rules: time that passes is no drift."""
    shown = comparison.observed.decisive
    if (
        comparison.context.mode not in ("apply", "rollback")
        or shown["not_after"] is None
        or shown["not_before"] is None
    ):
        return None
    begins, ends = datetime.fromisoformat(shown["not_before"]), datetime.fromisoformat(shown["not_after"])
    if comparison.context.now < renewal_time(begins, ends, None):
        return None
    return Leaf("not_after", shown["not_after"], Unknown("when it is signed"), "half of its life is over")


def _run(
    comparison: Comparison,
    desired: Desired,
    action: Action,
    reason: str,
    leaves: tuple[Leaf, ...],
    *,
    drifted: bool = False,
) -> Change:
    spec = desired.spec
    asked = {"lineage": spec["lineage"], "rotation": spec["rotation"]}
    install: Mapping[str, Any] = {name: value for name, value in spec.items() if name != "rotation"} | asked
    calls = [
        Call(Method.ENROLLMENT_REQUEST, asked, "make the server's keys, or find them", deadline_s=_DEADLINE_S),
        Call(Method.ENROLLMENT_INSTALL, install, "sign for them, and run the server", deadline_s=_DEADLINE_S),
    ]
    return comparison.change(
        action,
        reason,
        calls=calls,
        leaves=leaves,
        blast_radius=action_radius("enrollment", action, leaves),
        notes=(
            f"listens on {spec['bind_address']}:{spec['port']}; what it issues is good for {spec['validity_hours']} h",
        ),
        drifted=drifted,
        blocked=_no_systemd(comparison),
    )


def _no_systemd(comparison: Comparison) -> Blocked | None:
    facts = comparison.snapshot.host
    if not facts.arch or facts.init == "systemd_system":
        return None
    return Blocked(
        "enrollment.no_systemd",
        f"the enrollment server runs as a unit with an account of its own, and there is no systemd for that on {comparison.subject.host}",
        "name a host with systemd that is reached as root or by sudo (fleet.identity.enroll.host)",
    )


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    params = {"lineage": recorded.spec["lineage"]}
    call = Call(
        Method.ENROLLMENT_REMOVE, params, "stop the server, remove keys, tokens and ledger", deadline_s=_DEADLINE_S
    )
    return comparison.removed(
        call,
        fields_for_reader(recorded.spec),
        gone="no enrollment server is on the host any more",
        why="sb.yml names no enrollment server on this host",
    )
