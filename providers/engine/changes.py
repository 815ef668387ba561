"""Compare: install what is missing, judge a program of the host, remove what nobody needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from providers.comparison import Blocked, Call, Comparison, gone_leaves, new_leaves, transfer_deadline_s
from providers.engine.builds import builds_to_install, pin_for
from providers.engine.programs import find_program
from providers.engine.spec import fields_for_reader
from providers.runtime_wheels import python_problem
from sbctl.base.errors import EngineError
from sbctl.base.truths import Desired, Recorded
from sbctl.engines.pins import WheelPin
from sbctl.engines.release_pins import ArchivePin
from sbctl.node.messages import Method
from sbctl.plan.blast_radius import action_radius
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import UNKNOWN, Action, BlastRadius, Change, DiffContext, Leaf, Observed
from sbctl.plan.paths import join_path

__all__ = ["diff"]

_BYTES_WHEN_UNKNOWN = 64 * 1024 * 1024
BUILD_DEADLINE_S = 5400.0


def diff(desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext) -> Change:
    comparison = Comparison(desired, recorded, observed, context)
    if observed.status == "unreachable":
        return comparison.unreachable()
    if desired is None:
        return (
            comparison.kept_for_others()
            or comparison.held_by_others()
            or comparison.goes_with_host()
            or _removed(comparison)
        )
    if desired.spec["launch"] == "wheel":
        return _installed(comparison, desired, desired.spec["versions"])
    builds = builds_to_install(desired.spec, observed.informative["programs"] if comparison.bootstrapped else {})
    if desired.spec["path"] is not None or not builds:
        return _program(comparison, desired)
    return _installed(comparison, desired, builds)


def _leaves(comparison: Comparison, desired: Desired) -> tuple[Leaf, ...]:
    recorded = comparison.recorded
    if recorded is not None and recorded.fingerprint == desired.fingerprint:
        return ()
    wanted = fields_for_reader(desired.spec)
    return new_leaves(wanted) if recorded is None else leaf_changes(fields_for_reader(recorded.spec), wanted)


# Installed by us: from a wheel, a release, or its source


def _installed(comparison: Comparison, desired: Desired, versions: list[str]) -> Change:
    """`versions` are the names of builds."""
    recorded, installed = comparison.recorded, comparison.observed.decisive["installed"]
    missing = [version for version in versions if version not in installed]
    drift = _drift(recorded, installed, versions)
    leaves = _leaves(comparison, desired)
    if not (recorded is None or missing or drift or leaves or comparison.context.replace):
        return comparison.unchanged()
    try:
        pins = {version: _pin(comparison, desired.spec, version) for version in versions}
    except EngineError as error:
        return comparison.change("create", "no such build", leaves=leaves, blocked=Blocked.by(error))
    # What is there but not recorded is taken over: installing finds the work done and answers its digest.
    everything = recorded is None or comparison.context.replace
    redo = versions if everything else [version for version in versions if version in missing or version in drift]
    removed = redo if comparison.context.replace else _never_used_again(comparison, versions)
    gone = bool(drift) and not installed
    action: Action = "replace" if comparison.context.replace else "create" if recorded is None or gone else "update"
    radius = action_radius("engine", action)
    restarts = bool(drift) and _anything_runs(comparison)
    return comparison.change(
        action,
        _install_reason(comparison, bool(drift)),
        calls=[*_removals(comparison, removed), *_installs(desired, pins, redo)],
        leaves=(*leaves, *drift.values(), *(() if drift else _file_leaves(desired.spec, pins, redo))),
        blast_radius=max(radius, BlastRadius.RESTART) if restarts else radius,
        downtime="refuse" if restarts else None,
        download_bytes=sum(pin.size_bytes or 0 for version in missing if (pin := pins[version]) is not None) or None,
        notes=(
            *_leftover_note(comparison, versions),
            *_pin_notes(pins, redo),
            *(("deployments that run on what is replaced are restarted",) if restarts else ()),
        ),
        drifted=bool(drift),
        blocked=python_problem(comparison.snapshot.host, desired.spec["python"], desired.spec.get("standalone"))
        if redo and desired.spec["launch"] == "wheel"
        else None,
    )


def _anything_runs(comparison: Comparison) -> bool:
    return any(replica.pid is not None for row in comparison.snapshot.deployments for replica in row.replicas)


def _pin_notes(pins: Mapping[str, WheelPin | ArchivePin | None], redo: list[str]) -> tuple[str, ...]:
    chosen = [pin for version in redo if isinstance(pin := pins[version], ArchivePin)]
    if any(pin.is_source for pin in chosen):
        return ("it is built from its source on the host, which takes up to an hour; not tried on hardware yet",)
    return tuple(f"{pin.filename} was not tried on hardware yet" for pin in chosen if pin.acceleration != "cpu")


def _drift(recorded: Recorded | None, installed: Mapping[str, str | None], versions: list[str]) -> Mapping[str, Leaf]:
    """By version, what the last apply installed and the host does not show any more. A digest that one side does not know is not compared."""
    if recorded is None:
        return {}
    known = recorded.record.get("digests", {})
    found: dict[str, Leaf] = {}
    if (program := recorded.record.get("program")) is not None and not installed:
        found["program"] = Leaf("program", program, None, "the program on the host is gone, or another one")
    for version in versions:
        path = join_path(("installed", version))
        wanted = known.get(version)
        if version not in installed:
            if version in known or (recorded.spec["launch"] == "wheel" and version in recorded.spec["versions"]):
                found[version] = Leaf(path, None, version, "it was removed from the host")
        elif wanted is not None and installed[version] not in (None, wanted):
            found[version] = Leaf(path, installed[version], wanted, "it is not what was installed")
    return found


def _install_reason(comparison: Comparison, drifted: bool) -> str:
    if comparison.context.replace:
        return "asked for by --replace"
    if drifted:
        return "the engine on the host is not as it was installed"
    new = comparison.recorded is None
    return "deployments of this host need it" if new else "deployments of this host need another build"


def _pin(comparison: Comparison, spec: Mapping[str, Any], version: str) -> WheelPin | ArchivePin | None:
    """None while nothing is known of the host. Raises EngineError `engine.not_pinned`, `engine.incompatible`."""
    facts = comparison.snapshot.host
    return pin_for(spec, version, facts) if facts.arch else None


def _file_leaves(
    spec: Mapping[str, Any], pins: Mapping[str, WheelPin | ArchivePin | None], redo: list[str]
) -> tuple[Leaf, ...]:
    path = "wheel" if spec["launch"] == "wheel" else "archive"
    return tuple(Leaf(path, None, UNKNOWN if (pin := pins[version]) is None else pin.filename) for version in redo)


def _installs(desired: Desired, pins: Mapping[str, WheelPin | ArchivePin | None], versions: list[str]) -> list[Call]:
    calls = []
    spec = desired.spec
    for version in versions:
        pin = pins[version]
        params: dict[str, Any] = {"engine": desired.address.name, "version": version, "delivery": spec["delivery"]}
        if spec["launch"] == "wheel":
            planned = None if pin is None else {"filename": pin.filename, "sha256": pin.sha256}
            params |= {"project": spec["project"], "python": spec["python"], "wheel": planned}
            params |= {"standalone": spec.get("standalone")}
        else:
            params |= {"archive": None if pin is None else asdict(pin)}
            params |= {
                "wish": {
                    "launch": "binary",
                    "versions": spec["versions"],
                    "acceleration": spec.get("acceleration", "cpu"),
                    "sha256": spec.get("sha256"),
                }
            }
        size = _BYTES_WHEN_UNKNOWN if pin is None or pin.size_bytes is None else pin.size_bytes
        is_source = isinstance(pin, ArchivePin) and pin.is_source
        deadline_s = transfer_deadline_s(size) + (BUILD_DEADLINE_S if is_source else 0)
        title = f"{'build' if is_source else 'install'} engine {desired.address.name} {version}"
        calls.append(Call(Method.ENGINE_INSTALL, params, title, deadline_s=deadline_s))
    return calls


def _removals(comparison: Comparison, versions: list[str]) -> list[Call]:
    name = comparison.address.name
    return [
        Call(Method.ENGINE_REMOVE, {"engine": name, "version": version}, f"remove engine {name} {version}")
        for version in versions
        if version in comparison.observed.decisive["installed"]
    ]


def _never_used_again(comparison: Comparison, versions: list[str]) -> list[str]:
    """Installed, but neither wanted nor what the last apply left in use: left over from an earlier change."""
    recorded = comparison.recorded
    if recorded is None:
        return []
    in_use = {*versions, *_in_use(recorded)}
    return [version for version in comparison.observed.decisive["installed"] if version not in in_use]


def _in_use(recorded: Recorded) -> list[str]:
    """Builds that the last apply installed or found installed."""
    return [*recorded.spec["versions"], *recorded.record.get("digests", {})]


def _leftover_note(comparison: Comparison, versions: list[str]) -> tuple[str, ...]:
    recorded = comparison.recorded
    left = sorted(
        set(_in_use(recorded) if recorded is not None else ())
        & set(comparison.observed.decisive["installed"]) - set(versions)
    )
    return (f"{', '.join(left)} stays installed until the next change of this engine: it still serves",) if left else ()


# A program of the host


def _program(comparison: Comparison, desired: Desired) -> Change:
    recorded, observed = comparison.recorded, comparison.observed
    leaves = _leaves(comparison, desired)
    look = Call(
        Method.SNAPSHOT,
        {"engine": desired.address.name, "path": desired.spec["path"], "versions": desired.spec["versions"]},
        f"look for {desired.spec['path'] or 'llama-server on PATH'}",
    )
    if not comparison.bootstrapped:
        found: Any = UNKNOWN
        blocked = None
    else:
        program = find_program(observed.informative["programs"], desired.spec["path"], desired.spec["versions"])
        found, blocked = program.found, program.blocked
    known = recorded.record.get("program") if recorded is not None else None
    drifted = known is not None and found is not None and found not in (UNKNOWN, known)
    gone = known is not None and blocked is not None
    if not (recorded is None or leaves or drifted or gone or blocked or comparison.context.replace):
        return comparison.unchanged()
    action: Action = "create" if recorded is None else "update"
    drift = (Leaf("program", known, found, "the program on the host is another one"),) if drifted or gone else ()
    created = (Leaf("program", None, found),) if recorded is None else ()
    return comparison.change(
        action,
        "deployments of this host need it" if recorded is None else "the program on the host is another one",
        calls=[look],
        leaves=(*leaves, *drift, *created),
        blast_radius=action_radius("engine", action),
        notes=("a program of the host: sbctl neither installs nor removes it",),
        drifted=bool(drift),
        blocked=blocked,
    )


def _removed(comparison: Comparison) -> Change:
    recorded = comparison.recorded
    assert recorded is not None
    if recorded.record.get("program") and not comparison.observed.decisive["installed"]:
        return comparison.forgotten("a program of the host: it stays")
    calls = _removals(comparison, list(comparison.observed.decisive["installed"]))
    if not calls:
        return comparison.forgotten("the engine is not on the host any more")
    return comparison.change(
        "delete",
        "asked for" if comparison.context.mode == "destroy" else "no deployment of this host needs it",
        calls=calls,
        leaves=gone_leaves(fields_for_reader(recorded.spec)),
        blast_radius=action_radius("engine", "delete"),
    )
