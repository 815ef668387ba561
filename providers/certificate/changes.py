"""Compare: create, re-issue, renew, and renew only what stands around a certificate (trusted CAs, revocations)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from providers.certificate.spec import fields_for_reader, is_own, issued_fields, surrounding_fields
from providers.comparison import Blocked, Call, Comparison, new_leaves
from providers.runtime_wheels import delivery_problem, install_call
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed, Unknown
from sbctl.trust.certificates import renewal_time

__all__ = ["diff"]

_DEADLINE_S: Final = 120.0


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return comparison.held_by_others() or _removed(comparison)
    if context.replace:
        return _issued(comparison, desired, "replace", "asked for by --replace", _epoch_leaves(comparison, desired))
    if recorded is None or observed.status != "present":
        gone = recorded is not None and bool(recorded.record)
        reason = "the identity is gone from the host" if gone else "a new identity"
        return _issued(comparison, desired, "create", reason, new_leaves(fields_for_reader(desired.spec)), drifted=gone)
    if not recorded.record:
        reason = "an identity was asked for before, and whether it arrived is unknown"
        return _issued(comparison, desired, "update", reason, _epoch_leaves(comparison, desired))
    return _updated(comparison, desired, recorded)


def _updated(comparison: Comparison, desired: Desired, recorded: Recorded) -> Change:
    same = desired.fingerprint == recorded.fingerprint
    other = () if same else leaf_changes(issued_fields(recorded.spec), issued_fields(desired.spec))
    around = () if same else leaf_changes(surrounding_fields(recorded.spec), surrounding_fields(desired.spec))
    drift = tuple(_drift(comparison, recorded))
    around_drift = tuple(_surrounding_drift(comparison, recorded))
    due = _renewal_due(comparison, desired)
    if other or drift or due is not None:
        epoch = () if is_own(desired.spec) else _epoch_leaves(comparison, desired)
        leaves = (*other, *drift, *((due,) if due else ()), *around, *around_drift, *epoch)
        reason = _reason(other, drift)
        return _issued(comparison, desired, "update", reason, leaves, drifted=bool(drift or around_drift))
    if around or around_drift:
        leaves = (*around, *around_drift)
        return comparison.change(
            "update",
            _surrounding_reason(leaves),
            calls=[_install_call(comparison, desired, issue=False, title="install trusted CAs and revocations")],
            leaves=leaves,
            blast_radius=action_radius("certificate", "update", leaves),
            drifted=bool(around_drift),
        )
    return comparison.unchanged()


def _reason(other: tuple[Leaf, ...], drift: tuple[Leaf, ...]) -> str:
    paths = {leaf.path.partition(".")[0] for leaf in other}
    if "attestation" in paths:
        return "another way to prove who the host is"
    if "fingerprint" in paths:
        return "your PKI issued another certificate"
    if "issuer" in paths:
        return "the CA is taken over: the identity is issued by the next one"
    if paths == {"rotation"}:
        return "a new identity was asked for: sbctl cluster rotate"
    if paths:
        return "who the host is changes, so it gets a new identity"
    return drift[0].reason if drift else "half of its life is over"


def _surrounding_reason(leaves: tuple[Leaf, ...]) -> str:
    added = any(leaf.path.startswith("ca.") and leaf.before is None for leaf in leaves)
    gone = any(leaf.path.startswith("ca.") and leaf.after is None for leaf in leaves)
    if added or gone:
        return "another CA is trusted" if added else "a CA is trusted no more"
    return "the revocation list changed" if not leaves[0].reason else leaves[0].reason


def _drift(comparison: Comparison, recorded: Recorded) -> Iterator[Leaf]:
    """What is on the host instead of the installed certificate; `before` is what is there, `after` what will be."""
    shown, wanted = comparison.observed.decisive, recorded.record.get("fingerprint")
    if shown["problem"] is not None:
        yield Leaf("usable", False, True, f"the identity on the host cannot be used: {shown['problem']}")
    elif wanted is not None and shown["fingerprint"] != wanted:
        reason = "the certificate on the host is not the one that was installed"
        yield Leaf("fingerprint", str(shown["fingerprint"])[:16], Unknown("when it is issued"), reason)


def _surrounding_drift(comparison: Comparison, recorded: Recorded) -> Iterator[Leaf]:
    shown, record = comparison.observed.decisive, recorded.record
    if list(shown["ca"]) != list(record.get("ca", shown["ca"])):
        reason = "the trusted CAs on the host are not those that were installed"
        yield Leaf("ca_file", "edited", "as desired", reason)
    if shown["revocations"] != record.get("revocations", shown["revocations"]):
        reason = "the revocation list on the host is not the one that was installed"
        yield Leaf("revocations_file", shown["revocations"], record["revocations"], reason)
    used = comparison.observed.informative.get("used")
    if used is not None and used != shown["fingerprint"] and shown["problem"] is None:
        yield Leaf("used", used[:16], str(shown["fingerprint"])[:16], "the runtime holds another certificate")


def _renewal_due(comparison: Comparison, desired: Desired) -> Leaf | None:
    """Only where sb.yml rules: time that passes is no drift."""
    shown = comparison.observed.decisive
    if is_own(desired.spec) or (
        comparison.context.mode not in ("apply", "rollback")
        or shown["not_after"] is None
        or shown["not_before"] is None
    ):
        return None
    begins, ends = datetime.fromisoformat(shown["not_before"]), datetime.fromisoformat(shown["not_after"])
    if comparison.context.now < renewal_time(begins, ends, desired.spec["renew_before_days"]):
        return None
    return Leaf("not_after", shown["not_after"], Unknown("when it is issued"), "half of its life is over")


def _epoch_leaves(comparison: Comparison, desired: Desired) -> tuple[Leaf, ...]:
    epoch = _least_epoch(comparison)
    after = desired.spec["identity_epoch"] if is_own(desired.spec) else Unknown("when it is issued")
    return (Leaf("identity_epoch", epoch, after),) if epoch else ()


def _least_epoch(comparison: Comparison) -> int:
    recorded = comparison.recorded
    known = int(recorded.record.get("identity_epoch") or 0) if recorded is not None else 0
    return max(known, int(comparison.observed.decisive["identity_epoch"]))


def _issued(
    comparison: Comparison,
    desired: Desired,
    action: Action,
    reason: str,
    leaves: tuple[Leaf, ...],
    *,
    drifted: bool = False,
) -> Change:
    """A key and a request on the host, a signature here, the identity on the host; of an own PKI the identity alone."""
    spec = desired.spec
    own = is_own(spec)
    calls: list[Call] = []
    if not comparison.bootstrapped or spec["version"] not in comparison.snapshot.runtime.installed_versions:
        calls.append(install_call(spec["version"], spec))
    asked = {"lineage": spec["lineage"], "node_id": spec["node_id"]}
    if not own:
        calls.append(
            Call(Method.CERTIFICATE_REQUEST, asked, "make a key and a certificate request", deadline_s=_DEADLINE_S)
        )
    title = "install the identity of your PKI" if own else "sign and install the identity"
    calls.append(_install_call(comparison, desired, issue=not own, title=title))
    return comparison.change(
        action,
        reason,
        calls=calls,
        leaves=leaves,
        blast_radius=action_radius("certificate", action, leaves),
        notes=(_life(spec),),
        drifted=drifted,
        blocked=(_behind(comparison, spec) if own else None) or delivery_problem(comparison, spec),
    )


def _life(spec: Mapping[str, Any]) -> str:
    if is_own(spec):
        return f"valid until {spec['not_after']}; your PKI renews it"
    if spec["renew_before_days"] is None:
        return f"valid for {spec['validity_days']} days; every apply past its half renews it"
    return f"valid for {spec['validity_days']} days; renewed {spec['renew_before_days']} days before its end"


def _behind(comparison: Comparison, spec: Mapping[str, Any]) -> Blocked | None:
    """The host would refuse it: it has seen a later identity, or another one of this epoch, by the same way to prove it."""
    recorded, shown = comparison.recorded, comparison.observed.decisive
    if recorded is None or not is_own(recorded.spec) or recorded.spec["cluster_id"] != spec["cluster_id"]:
        return None
    epoch, seen = spec["identity_epoch"], _least_epoch(comparison)
    known = shown["fingerprint"] or recorded.record.get("fingerprint")
    if epoch > seen or (epoch == seen and spec["fingerprint"] == known):
        return None
    return Blocked(
        "identity.epoch_behind",
        f"the certificate of {comparison.subject.host} has identity_epoch {epoch}, and the host has seen {seen} with another certificate",
        f"have your PKI issue it with identity_epoch {seen + 1} or higher",
    )


def _install_call(comparison: Comparison, desired: Desired, *, issue: bool, title: str) -> Call:
    spec = desired.spec
    if is_own(spec):
        named = {name: spec[name] for name in ("lineage", "node_id", "fingerprint", "ca", "key")}
        return Call(Method.CERTIFICATE_INSTALL, {**named, "own": True}, title, deadline_s=_DEADLINE_S)
    params: Mapping[str, Any] = {
        "lineage": spec["lineage"],
        "own": False,
        "issue": issue,
        "grant": {name: spec[name] for name in ("node_id", "roles", "labels")},
        "ca": spec["ca"],
        "issuer": spec["issuer"],
        "validity_days": spec["validity_days"],
        "least_epoch": _least_epoch(comparison),
    }
    return Call(Method.CERTIFICATE_INSTALL, params, title, deadline_s=_DEADLINE_S)


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    params = {"lineage": recorded.spec["lineage"]}
    call = Call(Method.CERTIFICATE_REMOVE, params, "remove keys and certificates", deadline_s=_DEADLINE_S)
    return comparison.removed(
        call,
        fields_for_reader(recorded.spec),
        gone="no identity is on the host any more",
        why="sb.yml or a revocation takes the identity away",
    )
