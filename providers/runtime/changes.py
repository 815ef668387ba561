"""Compare: install another version, activate, start what does not run, repair what was edited by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from providers.comparison import Blocked, Call, Comparison, Downtime, gone_leaves, new_leaves
from providers.runtime.certificate import (
    certificate_call,
    certificate_drift,
    certificate_note,
    used_drift,
)
from providers.runtime.cluster_node import leaving_note, left_authorities
from providers.runtime.provider_keys import keys_call
from providers.runtime.spec import fields_for_reader
from providers.runtime_wheels import delivery_problem, install_call, runs_on
from providers.standalone_python import standalone_label
from sbctl import __version__
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed

__all__ = ["diff"]

_ACTIVATE_DEADLINE_S: Final = 600.0
"""Stop, start, prove, and all of it once more for the old one when the new one does not."""
_PORTS: Final = frozenset(
    {"http_bind_address", "http_bind_port", "https_bind_port", "admin_enabled", "admin_bind", "admin_port", "admin_tls"}
)
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "unit_sha256": ("unit", "the unit on the host is not the one that was written"),
    "config_sha256": ("configuration", "the configuration on the host is not the one that was written"),
    "trust_digest": ("trust", "the signer set on the host is not the one that was written"),
}
"""Recorded digest → how the reader calls the file, and what a difference means."""
_TAKEN_UP: Final[Mapping[str, str]] = {
    Method.RUNTIME_CERTIFICATE: "another public certificate",
    Method.RUNTIME_KEYS: "another key of an external provider",
}


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    by_hand = _started_by_hand(comparison) if observed.decisive["started_by_hand"] else None
    if desired is None:
        return comparison.held_by_others() or _removed(comparison, by_hand)
    if by_hand is not None:
        return comparison.change("update", "somebody runs it by hand", blocked=by_hand)
    if context.replace:
        return comparison.change("replace", "asked for by --replace", blocked=_not_replaceable(desired.host))
    if recorded is None or observed.status != "present":
        return _created(comparison, desired)
    return _updated(comparison, desired, recorded)


def _created(comparison: Comparison, desired: Desired) -> Change:
    gone = comparison.recorded is not None
    reason = "the runtime is gone from the host" if gone else "a new runtime"
    return comparison.change(
        "create",
        reason,
        calls=_activation(comparison, desired, "start the runtime"),
        leaves=new_leaves(fields_for_reader(desired.spec)),
        blast_radius=action_radius("runtime", "create"),
        notes=(*_python_note(desired), *certificate_note(desired), *_reboot_note(comparison)),
        drifted=gone,
        blocked=delivery_problem(comparison, desired.spec),
    )


def _updated(comparison: Comparison, desired: Desired, recorded: Recorded) -> Change:
    leaves = () if desired.fingerprint == recorded.fingerprint else _differences(recorded.spec, desired.spec)
    drift = (*_drift(comparison.observed.decisive, recorded), *used_drift(comparison, recorded))
    if not leaves and not drift:
        return comparison.unchanged()
    down = not comparison.observed.decisive["running"]
    action: Action = "update"
    title = "start the runtime" if down else "activate the new configuration" if leaves else "repair the runtime"
    radius = action_radius("runtime", action, (*leaves, *drift))
    taken_up = [] if down else _taken_up(desired, recorded, leaves, drift)
    if taken_up:
        return _changed_alive(comparison, taken_up, leaves, drift)
    change = comparison.change(
        action,
        "sb.yml asks for something else" if leaves else drift[0].reason,
        calls=_activation(comparison, desired, title, downtime="none" if down else _downtime(comparison, leaves)),
        leaves=(*leaves, *drift),
        # Whoever is down already loses nothing by being started.
        blast_radius=action_radius("runtime", "create") if down else radius,
        notes=(*leaving_note(recorded.spec, desired.spec), *_reboot_note(comparison)),
        drifted=bool(drift),
        blocked=_cache_in_use(comparison, leaves) or delivery_problem(comparison, desired.spec),
    )
    return replace(change, leaves_cluster=left_authorities(recorded.spec, desired.spec))


def _taken_up(
    desired: Desired, recorded: Recorded, leaves: tuple[Leaf, ...], drift: tuple[Leaf, ...]
) -> list[tuple[Call, str]]:
    """What a running runtime takes up as it is, each with what that means; empty where something else differs too."""
    calls = {
        "certificate": (certificate_call(desired), "shown from the next handshake on"),
        "provider_keys": (keys_call(desired, recorded), "the new key is used from the next request on"),
    }
    differing = {leaf.path.partition(".")[0] for leaf in (*leaves, *drift)}
    found = [(call, note) for name, (call, note) in calls.items() if name in differing and call is not None]
    return found if len(found) == len(differing) else []


def _changed_alive(
    comparison: Comparison, taken_up: list[tuple[Call, str]], leaves: tuple[Leaf, ...], drift: tuple[Leaf, ...]
) -> Change:
    what = " and ".join(_TAKEN_UP[call.method] for call, _note in taken_up)
    return comparison.change(
        "update",
        what if leaves else drift[0].reason,
        calls=[call for call, _note in taken_up],
        leaves=(*leaves, *drift),
        blast_radius=action_radius("runtime", "update", (*leaves, *drift)),
        notes=(f"{'; '.join(note for _call, note in taken_up)}; no restart, and open connections go on",),
        drifted=bool(drift),
    )


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Leaf, ...]:
    was, now = fields_for_reader(before), fields_for_reader(after)
    old, new = before["admin_password"], after["admin_password"]
    if old and new and None in (old["fingerprint"], new["fingerprint"]) and old["reference"] == new["reference"]:
        # A fingerprint that is not known on one side says nothing; the reference is the same.
        was["admin_password"] = now["admin_password"]
    for name, secret in before.get("egress_secrets", {}).items():
        other = after.get("egress_secrets", {}).get(name)
        unknown = other is not None and None in (secret["fingerprint"], other["fingerprint"])
        if unknown and other["reference"] == secret["reference"]:
            was["egress"][name] = now["egress"][name]
    for name, secret in before.get("provider_keys", {}).items():
        other = after.get("provider_keys", {}).get(name)
        if other is not None and None in (secret["fingerprint"], other["fingerprint"]):
            was["provider_keys"][secret["reference"]] = now["provider_keys"][secret["reference"]]
    return leaf_changes(was, now)


def _drift(decisive: Mapping[str, Any], recorded: Recorded) -> Iterator[Leaf]:
    """What the host shows otherwise than the last apply left it; `before` is what is there, `after` what will be."""
    for digest, (name, reason) in _FILES.items():
        wanted, found = recorded.record.get(digest), decisive[digest]
        if wanted is not None and found != wanted:
            yield Leaf(name, "missing" if found is None else f"edited ({found[:12]})", wanted[:12], reason)
    yield from certificate_drift(decisive, recorded)
    if not decisive["running"]:
        yield Leaf("running", False, True, "the runtime does not run")
        return
    if not decisive["healthy"]:
        yield Leaf("healthy", False, True, "the runtime runs but does not answer")
    version = recorded.spec["version"]
    if decisive["version_running"] not in (None, version):
        yield Leaf("version_running", decisive["version_running"], version, "another version runs than was activated")


def _downtime(comparison: Comparison, leaves: tuple[Leaf, ...]) -> Downtime:
    """systemd keeps ports open over a restart, so that callers wait; ports that change are closed, and without systemd all are.
    A runtime that does not answer has let its callers down already."""
    observed = comparison.observed
    kept = observed.informative["supervision"] in ("system", "user") and observed.decisive["healthy"]
    return "queue" if kept and not any(leaf.path in _PORTS for leaf in leaves) else "refuse"


def _activation(comparison: Comparison, desired: Desired, title: str, *, downtime: Downtime = "none") -> list[Call]:
    """Install when the version is missing, or stands on another Python than is wanted, or nothing of ours answers; then activate."""
    version = desired.spec["version"]
    calls: list[Call] = []
    if not comparison.bootstrapped or not runs_on(comparison.snapshot.runtime, version, desired.spec.get("standalone")):
        calls.append(install_call(version, desired.spec))
    certificate = certificate_call(desired)
    if certificate is not None:
        calls.append(certificate)
    params = {name: desired.spec[name] for name in ("version", "config", "trust", "admin_password")}
    params["sent_secrets"] = {**desired.spec.get("egress_secrets", {}), **desired.spec.get("provider_keys", {})}
    calls.append(
        Call(
            Method.RUNTIME_ACTIVATE,
            params,
            title,
            downtime=downtime,
            deadline_s=_ACTIVATE_DEADLINE_S,
        )
    )
    return calls


def _cache_in_use(comparison: Comparison, leaves: tuple[Leaf, ...]) -> Blocked | None:
    """SBproxy's foundation rule: the cache's place changes only while nothing is served from it."""
    moved = next((leaf for leaf in leaves if leaf.path == "cache_directory"), None)
    served = sorted(address.name or "" for address in comparison.context.recorded_specs if address.kind == "deployment")
    if moved is None or not served:
        return None
    return Blocked(
        "runtime.cache_in_use",
        f"the cache directory cannot move while deployments are served from it ({', '.join(served)})",
        "apply an empty deployments map first, then move the cache, then bring the deployments back",
    )


def _python_note(desired: Desired) -> tuple[str, ...]:
    label = standalone_label(desired.spec.get("standalone"))
    return () if label is None else (f"python {label}, sent to the host",)


def _reboot_note(comparison: Comparison) -> tuple[str, ...]:
    facts = comparison.snapshot.host
    if facts.init != "none" or not facts.arch:
        return ()
    return ("nothing survives a reboot: this host has no systemd, so only a small parent process restarts the runtime",)


def _removed(comparison: Comparison, by_hand: Blocked | None) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    marker = comparison.snapshot.marker
    # Without its programs the host cannot say what else is left (a unit, a configuration); they are repaired to remove the rest.
    broken = not comparison.bootstrapped and marker is not None
    if comparison.observed.status != "present" and not broken:
        return comparison.forgotten("nothing of the runtime is on the host any more")
    calls = [install_call(__version__, recorded.spec)] if broken else []
    lineage = recorded.spec["config"]["lineage"]
    calls.append(Call(Method.RUNTIME_REMOVE, {"lineage": lineage}, "stop the runtime and remove it", downtime="refuse"))
    change = comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "the host is not in sb.yml any more",
        calls=calls,
        leaves=gone_leaves(fields_for_reader(recorded.spec)),
        blast_radius=action_radius("runtime", "delete"),
        blocked=by_hand,
        notes=leaving_note(recorded.spec, None),
    )
    return replace(change, leaves_cluster=left_authorities(recorded.spec, None))


def _started_by_hand(comparison: Comparison) -> Blocked:
    return Blocked(
        "runtime.started_by_hand",
        f"the runtime on {comparison.subject.host} was started by hand (sbctl-runtime serve --config): its own file rules it",
        "stop it, then plan again",
    )


def _not_replaceable(host: str) -> Blocked:
    return Blocked(
        "runtime.not_replaceable",
        "a runtime is updated in place, never replaced",
        f"leave out --replace; to start over, run destroy --target runtime.{host} and apply",
    )
