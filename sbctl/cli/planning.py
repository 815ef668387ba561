"""From a workspace to a plan: read, observe, compare. What `plan`, `apply`, `destroy`, `drift` and `rollback` share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from providers.registry import PROVIDERS
from sbctl.base.clock import rfc3339
from sbctl.base.connection import Connection
from sbctl.base.display import plural
from sbctl.base.errors import SbctlError
from sbctl.base.truths import Desired
from sbctl.base.update_policy import UpdatePolicy
from sbctl.cli.last_seen import last_seen, seen_words
from sbctl.cli.lost_hosts import bare, refuse_lost, refuse_lost_machines, returned_hosts, without_lost
from sbctl.cli.memory_plan import with_memory
from sbctl.cli.port_plan import Holders, holders_of_changed, with_ports
from sbctl.cli.public_certificates import certificate_plan_notes
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.plan.build import build_plan
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.model import BlastRadius, Plan, PlanMode
from sbctl.plan.policy import Limits, refusals
from sbctl.provider import in_todays_form
from sbctl.remote.observe import FleetObservation, observe_fleet
from sbctl.state.model import RunSummary

if TYPE_CHECKING:
    from sbctl.plan.saved_plan import SavedPlan

__all__ = [
    "PlanRequest",
    "Planned",
    "desired_of",
    "last_run_said",
    "limits_of",
    "plan_against",
    "planned",
    "update_of",
]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for, by the shared flags."""

    mode: PlanMode = "apply"
    targets: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    refresh: bool = True
    allow_unreachable: bool = False
    parallelism: int = 10
    rollback_serial: int | None = None

    def of_saved(self, saved: SavedPlan) -> PlanRequest:
        """What was asked for when `saved` was made, of as many hosts at once as now."""
        return replace(
            self,
            mode=saved.mode,
            targets=saved.targets,
            excludes=saved.excludes,
            replaces=saved.replaces,
            allow_unreachable=saved.allow_unreachable,
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from, so that `apply` can go on from here."""

    plan: Plan
    inputs: PlanInputs
    observation: FleetObservation
    config: CompiledConfig | None = field(default=None)
    returned: tuple[str, ...] = ()
    """Hosts that were given up as lost and come back: planned as bare, which an apply makes them first."""
    holders: Holders = field(default_factory=dict)
    """Of ports that changed runtimes are to have."""

    def rebuilt(self, inputs: PlanInputs) -> Planned:
        """The same observations compared again, with `inputs` made from those of this plan."""
        plan = with_ports(_built(inputs, self.config), self.config, self.observation.snapshots, self.holders)
        return replace(self, inputs=inputs, plan=plan)


def _built(inputs: PlanInputs, config: CompiledConfig | None) -> Plan:
    plan = with_memory(build_plan(inputs, PROVIDERS), config, inputs.snapshots)
    if config is None or config.cluster is None:
        return plan
    from sbctl.cli.placement_plan import with_placement

    return with_placement(plan, config, inputs.snapshots)


def limits_of(radius: str | None, *, allow_empty: bool = False) -> Limits:
    """What the user allows, from the command line's words."""
    return Limits(None if radius is None else BlastRadius.parse(radius), allow_empty)


def desired_of(config: CompiledConfig) -> tuple[Desired, ...]:
    """All that sb.yml asks for, of every kind."""
    return tuple(desired for provider in PROVIDERS.values() for desired in provider.desired(config))


def _desired(workspace: Workspace, request: PlanRequest) -> tuple[tuple[Desired, ...], CompiledConfig | None]:
    if request.mode == "destroy":
        return (), None
    if request.mode == "drift":
        return (), None
    if request.mode == "rollback":
        snapshot = workspace.store.snapshot(request.rollback_serial or 0)
        return tuple(snapshot.desired), None
    config = workspace.config
    return desired_of(config), config


def _connections(
    workspace: Workspace, config: CompiledConfig | None, desired: Sequence[Desired]
) -> dict[str, Connection]:
    """Hosts that sb.yml names, by what it says; hosts only the state knows, by what it recorded."""
    hosts: dict[str, Connection] = {}
    if workspace.state is not None:
        for recorded in workspace.state.resources.values():
            hosts.setdefault(recorded.host, recorded.connection)
    for wanted in desired:
        hosts[wanted.host] = wanted.connection
    if config is not None:
        for name, host in config.hosts.items():
            hosts[name] = host.connection
    return dict(sorted(hosts.items()))


def _header(workspace: Workspace, config: CompiledConfig | None, observation: FleetObservation) -> Mapping[str, str]:
    """For the reader: which fleet, who applied last, how many hosts answered."""
    state = workspace.state
    fleet = config.fleet_name if config is not None else state.fleet_name if state is not None else ""
    answered, asked = len(observation.snapshots), len(observation.snapshots) + len(observation.unreachable)
    header = {"fleet": fleet, "state": "nothing applied yet"}
    if asked:
        of_all = "" if answered == asked else f"{answered} of "
        header["observed"] = f"{of_all}{plural(asked, 'host')} observed in {observation.seconds:.1f} s"
    if state is not None and state.last_run is not None:
        run = state.last_run
        header["applied_at"] = rfc3339(run.finished_at or run.started_at)
        header["applied_by"] = run.info.operator
        header["state"] = last_run_said(run)
    return header


def last_run_said(run: RunSummary) -> str:
    """Which run the state is of, and how it ended unless all of it was applied."""
    ended = {"applied": "", "running": " (unfinished)"}.get(run.status, f" ({run.status})")
    commit = f" ({run.info.commit[:7]})" if run.info.commit else ""
    at = rfc3339(run.finished_at or run.started_at)
    return f"serial {run.serial}, {run.info.command}{ended} {at} by {run.info.operator}{commit}"


@contextlib.contextmanager
def planned(
    workspace: Workspace, request: PlanRequest, *, settle: Callable[[str], None] | None = None
) -> Iterator[Planned]:
    """Plan, and keep the sessions to the hosts open until the block ends. `settle` as in `observe_fleet`."""
    desired, config = _desired(workspace, request)
    if config is not None:
        refuse_lost(workspace, config.hosts)
    desired = without_lost(workspace, desired, request.mode)
    hosts = _connections(workspace, config, desired)
    with observe_fleet(
        hosts if request.refresh else {},
        clock=workspace.clock,
        max_parallel=request.parallelism,
        pythons={} if config is None else {name: host.python for name, host in config.hosts.items() if host.python},
        environ=workspace.environ,
        settle=settle,
        secrets=workspace.login_secrets.prepared(hosts.values() if request.refresh else ()),
    ) as observation:
        refuse_lost_machines(workspace, observation.snapshots)
        returned = returned_hosts(workspace, desired, observation.snapshots)
        inputs = _inputs(workspace, request, config, desired, hosts, observation, returned)
        plan = _built(inputs, config)
        holders = holders_of_changed(plan, observation, config)
        plan = with_ports(plan, config, observation.snapshots, holders)
        if workspace.pack is not None:
            from sbctl.cli.packing import require_packed

            require_packed(workspace.pack, workspace.file, plan, observation.snapshots)
        yield Planned(plan, inputs, observation, config, tuple(returned), holders)


def _inputs(  # noqa: PLR0917 - what a plan is made from
    workspace: Workspace,
    request: PlanRequest,
    config: CompiledConfig | None,
    desired: tuple[Desired, ...],
    hosts: Mapping[str, Connection],
    observation: FleetObservation,
    returned: Mapping[str, str],
) -> PlanInputs:
    state, now = workspace.state, workspace.clock.now()
    seen = last_seen(workspace) if observation.unreachable else {}
    told = (*_identity_notes(workspace, config), *certificate_plan_notes(observation.snapshots, now))
    return PlanInputs(
        mode=request.mode,
        desired=desired,
        recorded=in_todays_form(state.resources, PROVIDERS) if state is not None else {},
        snapshots={
            host: bare(snapshot) if host in returned else snapshot for host, snapshot in observation.snapshots.items()
        },
        unreachable={host: _why(error, seen_words(seen.get(host))) for host, error in observation.unreachable.items()},
        hosts=hosts,
        lineage=workspace.lineage,
        serial=state.serial if state is not None else 0,
        config_digest=config.digest if config is not None else "",
        catalog_digest=config.catalog_digest if config is not None else "",
        now=now,
        targets=request.targets,
        excludes=request.excludes,
        replaces=request.replaces,
        allow_unreachable=request.allow_unreachable,
        header=_header(workspace, config, observation),
        refresh=request.refresh,
        update=update_of(workspace, request.mode),
        **_protection(workspace, request.mode, config, (*returned.values(), *told)),
    )


def update_of(workspace: Workspace, mode: PlanMode) -> UpdatePolicy | None:
    """How an apply rolls over hosts, by sb.yml as it is now; removing everything, and comparing, rolls over nothing."""
    if mode not in ("apply", "rollback") or not workspace.file.exists():
        return None
    try:
        return workspace.loaded.update
    except SbctlError:
        return None


def _identity_notes(workspace: Workspace, config: CompiledConfig | None) -> tuple[str, ...]:
    if config is None or (config.authority is None and config.own_identities is None):
        return ()
    from sbctl.cli.authority import identity_notes

    return identity_notes(config, workspace.clock.now())


class _Protection(TypedDict):
    prevent_destroy: tuple[str, ...]
    notes: tuple[str, ...]


def _protection(
    workspace: Workspace, mode: PlanMode, config: CompiledConfig | None, notes: tuple[str, ...]
) -> _Protection:
    """What may not be removed: by sb.yml also where the desired state is not of it, as long as it can be read; the state adds its own."""
    if config is None and mode in ("destroy", "rollback") and workspace.file.exists():
        try:
            config = workspace.loaded
        except SbctlError:
            note = f"{workspace.file} cannot be used, so only what the state remembers is protected: sbctl validate"
            return {"prevent_destroy": (), "notes": (note, *notes)}
    return {"prevent_destroy": config.prevent_destroy if config is not None else (), "notes": notes}


def _why(error: SbctlError, seen: str) -> str:
    """The place names the address, and the jump where that is what failed."""
    said = f"{error.place}: {error.message}{seen}" if error.place else f"{error.message}{seen}"
    return f"{said}. {error.next_step}" if error.next_step else said


def plan_against(workspace: Workspace, base_file: Path) -> Plan:
    """Two files compared offline: no host and no state is touched. Raises ConfigError for either."""
    workspace.offline = True
    proposed = workspace.config
    base_workspace = Workspace(base_file, workspace.environ, workspace.clock, offline=True)
    base = base_workspace.with_authority(base_workspace.loaded)
    before = desired_of(
        replace(base, lineage=proposed.lineage, signers=base.signers or proposed.signers, key_epoch=proposed.key_epoch)
    )
    inputs = PlanInputs.against(before, desired_of(proposed), proposed, workspace.clock.now())
    header = {"fleet": proposed.fleet_name, "state": f"against {base_file}"}
    return build_plan(replace(inputs, header=header), PROVIDERS)


def refuse_marked_hosts(workspace: Workspace) -> None:
    """For a `destroy` without a state: "nothing was applied" must not be said of hosts that carry a fleet's marker.

    Raises RefusedError `host.other_lineage`. Without a usable sb.yml there are no hosts to ask.
    """
    if not workspace.file.exists():
        return
    with planned(workspace, PlanRequest()) as found:
        for refusal in refusals(found.plan):
            if refusal.code == "host.other_lineage":
                raise refusal.error()
