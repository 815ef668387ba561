"""Compare: create, let other nodes in, restart with other settings or another version, repair, remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from providers.comparison import Blocked, Call, Comparison, new_leaves, transfer_deadline_s
from providers.store.spec import fields_for_reader, users_only
from sbctl.base.errors import EngineError
from sbctl.base.truths import Desired, Recorded
from sbctl.engines.store_pins import StorePin, store_pin
from sbctl.node.messages import Method
from sbctl.node.store_server import LEAST_VERSION_TEXT, PROGRAM_NAME, lacks, parse_version
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed

__all__ = ["diff"]

_DEADLINE_S: Final = 600.0
_FILES: Final = {
    "content_sha256": ("files", "files of the store were changed on the host"),
    "unit_sha256": ("unit", "the unit of the store was changed on the host"),
}


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return comparison.held_by_others() or _removed(comparison)
    if context.replace:
        return _install(comparison, desired, "update", "asked for by --replace", ())
    if recorded is None or observed.status != "present":
        gone = recorded is not None and bool(recorded.record)
        reason = "the store is gone from the host" if gone else "the cluster's nodes meet here"
        return _install(
            comparison, desired, "create", reason, new_leaves(fields_for_reader(desired.spec)), drifted=gone
        )
    same = desired.fingerprint == recorded.fingerprint
    other = () if same else leaf_changes(fields_for_reader(recorded.spec), fields_for_reader(desired.spec))
    drift = tuple(_drift(comparison))
    if not other and not drift:
        return comparison.unchanged()
    reason = drift[0].reason if drift else _reason(other)
    return _install(comparison, desired, "update", reason, (*other, *drift), drifted=bool(drift))


def _reason(other: tuple[Leaf, ...]) -> str:
    paths = [leaf.path for leaf in other]
    if users_only(paths):
        return "other nodes may use the store; nobody who is connected notices"
    if any(path.startswith("members") for path in paths):
        return "other hosts are members, or elsewhere: the store begins anew, and nodes fill it again"
    return "the store restarts with other settings, one host after another"


def _drift(comparison: Comparison) -> Iterator[Leaf]:
    shown = comparison.observed.decisive
    yield from comparison.edited(_FILES)
    if not shown["running"]:
        yield Leaf("running", False, True, "the store does not run, or takes no writes")
    elif not shown["up_to_date"]:
        yield Leaf("up_to_date", False, True, "the store runs with an older configuration than was installed")


def _install(
    comparison: Comparison,
    desired: Desired,
    action: Action,
    reason: str,
    leaves: tuple[Leaf, ...],
    *,
    drifted: bool = False,
) -> Change:
    spec = desired.spec
    blocked, pin = _program(comparison, spec)
    params: Mapping[str, Any] = {**spec, "wheel": None if pin is None else asdict(pin)}
    size = 0 if pin is None else pin.size_bytes
    is_new = pin is not None and comparison.observed.decisive["version"] != spec["version"]
    call = Call(
        Method.STORE_INSTALL,
        params,
        "install the store, and see it whole",
        retry="read_first",
        deadline_s=_DEADLINE_S + transfer_deadline_s(size),
    )
    return comparison.change(
        action,
        reason,
        calls=[call],
        leaves=leaves,
        blast_radius=action_radius("store", action, leaves),
        download_bytes=size if is_new else None,
        notes=_notes(comparison, spec),
        drifted=drifted,
        blocked=blocked,
    )


def _notes(comparison: Comparison, spec: Mapping[str, Any]) -> tuple[str, ...]:
    count = len(spec["members"])
    said = "the only member: while it is down, what runs goes on" if count == 1 else f"one of {count} members"
    problem = comparison.observed.informative.get("problem")
    return (said, *((f"now: {problem}",) if problem and comparison.observed.status == "present" else ()))


def _program(comparison: Comparison, spec: Mapping[str, Any]) -> tuple[Blocked | None, StorePin | None]:
    """Why no server can run on this host, and the wheel that it is installed from."""
    facts = comparison.snapshot.host
    if facts.arch and facts.init not in ("systemd_system", "none"):
        return Blocked(
            "store.no_systemd",
            f"the store runs as a unit with an account of its own, and {comparison.subject.host} is reached as a user",
            "reach it as root or by sudo (fleet.ssh.become), or give the role authority to another host",
        ), None
    if spec["program"] is not None:
        return _own_program(comparison, spec["program"]), None
    if not facts.arch:
        return None, None
    try:
        return None, store_pin(spec["version"], facts.arch)
    except EngineError as error:
        return Blocked.by(error), None


def _own_program(comparison: Comparison, wanted: str) -> Blocked | None:
    """Of a program that the snapshot tells of; one elsewhere is judged when it is installed."""
    found = comparison.observed.informative.get("program")
    if found is None:
        if wanted != PROGRAM_NAME or not comparison.bootstrapped:
            return None
        return Blocked(
            "store.no_program",
            f"no {PROGRAM_NAME} is on the PATH of {comparison.subject.host}",
            "install one, or leave proxy.cluster.store.path out: then sbctl installs it",
        )
    version = parse_version(found["version"])
    missing = None if version is None else lacks(version)
    if wanted not in (PROGRAM_NAME, found["path"]) or missing is None:
        return None
    return Blocked(
        "store.too_old",
        f"nats-server {found['version']} at {found['path']} on {comparison.subject.host} cannot be the cluster's store: {missing}",
        f"use {LEAST_VERSION_TEXT} or newer, or leave proxy.cluster.store.path out: then sbctl installs one",
    )


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    params = {"lineage": recorded.spec["lineage"]}
    call = Call(Method.STORE_REMOVE, params, "stop the store, remove its data", deadline_s=_DEADLINE_S)
    return comparison.removed(
        call,
        fields_for_reader(recorded.spec),
        gone="no store is on the host any more",
        why="the host is no authority of a cluster any more",
    )
