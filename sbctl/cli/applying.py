"""Carrying a plan out for a user: lock, plan, show, ask, sign, execute, tell. What `apply`, `destroy` and `rollback` share."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from providers.registry import PROVIDERS
from sbctl.apply.cancellation import Cancellation, SignalWatch
from sbctl.apply.events import EventSink
from sbctl.apply.executor import execute
from sbctl.apply.outcome import ApplyOptions, ApplyResult
from sbctl.base.errors import DegradedError, InputError, RefusedError, SbctlError, UnreachableError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import PLAN_MAX_BYTES
from sbctl.base.naming import naming
from sbctl.base.secret import Secret
from sbctl.cli.fleet_setup import ensure_signer, ensure_state, held_state, not_confirmed
from sbctl.cli.last_seen import remember_seen
from sbctl.cli.lost_hosts import clear_returned
from sbctl.cli.needed_secrets import refuse_missing_secrets
from sbctl.cli.planning import Planned, PlanRequest, desired_of, planned, update_of
from sbctl.cli.relaying import Relays
from sbctl.cli.sharing import stop_when_lost
from sbctl.cli.signing import Signer
from sbctl.cli.workspace import Workspace
from sbctl.config.secrets import SecretResolver
from sbctl.node.lease import LeaseClaim
from sbctl.plan.model import Plan, PlanMode
from sbctl.plan.policy import Limits, refusals
from sbctl.plan.remembered import outdated
from sbctl.plan.saved_plan import PLAN_PAYLOAD_TYPE, SavedPlan, check_saved, read_saved
from sbctl.plan.selection import effective_desired
from sbctl.provider import NodeSession
from sbctl.remote.session import HostSession, open_session
from sbctl.state.operator import run_info
from sbctl.trust.envelope import open_envelope, unverified_payload

if TYPE_CHECKING:
    from sbctl.cli.services import Supplies

__all__ = ["ApplyRequest", "apply", "earlier_serial", "open_saved_plan", "require_healthy"]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """What the user asked for. `saved`: carry out exactly that plan."""

    command: str
    plan: PlanRequest
    limits: Limits = field(default_factory=Limits)
    saved: SavedPlan | None = None
    assume_yes: bool = False
    fail_fast: bool = False
    lock_timeout_s: float = 0.0
    accept_blockers: bool = False
    """Begin although doctor names blockers."""
    has_file: bool = True
    """The user has an sb.yml, which can be left out of in parts and looked at by doctor; `run` has none."""


def open_saved_plan(workspace: Workspace, path: Path, *, verify: bool) -> SavedPlan:
    """A plan file, its signature checked against the fleet's signers (`show` of a foreign plan may skip that).

    Raises InputError `plan.invalid`, RefusedError `envelope.bad_signature`, `plan.edited`.
    """
    text = read_bounded(path, max_bytes=PLAN_MAX_BYTES * 2).decode("utf-8", "replace")
    try:
        payload = unverified_payload(text, max_bytes=PLAN_MAX_BYTES)[1]
    except InputError as error:
        raise InputError(
            "plan.invalid",
            f"this is not a saved plan: {error.message}",
            place=str(path),
            next_step="sbctl plan --out FILE saves one",
        ) from error
    signers = dict(workspace.require_state().signers) or dict(workspace.config.signers or {}) if verify else {}
    with naming(str(path), next_step="sbctl plan --out FILE saves one"):
        if verify:
            payload = open_envelope(text, PLAN_PAYLOAD_TYPE, signers, max_bytes=PLAN_MAX_BYTES).payload
        return read_saved(payload)


def apply(
    workspace: Workspace,
    request: ApplyRequest,
    *,
    show: Callable[[Plan], None],
    confirm: Callable[[Plan], bool],
    sink: EventSink,
) -> tuple[Plan, ApplyResult | None]:
    """Plan under the lock and carry it out. The result is None when there was nothing to do.

    `show` gets the plan before anything happens, `confirm` decides when nobody said --yes. Raises LockedError, StalePlanError,
    UnreachableError, RefusedError (`plan.*`, `doctor.blocked`, `key.*`, `apply.not_confirmed`) before anything is changed; DegradedError when nothing is to
    change and a deployment has failed all the same.
    """
    if request.plan.mode == "apply" and not workspace.store.exists():
        # A first apply of a file that is wrong leaves not even a lock behind.
        _ = workspace.config
    with (
        held_state(workspace, f"sbctl {request.command}", request.lock_timeout_s),
        planned(workspace, request.plan, settle=_tell_waiting) as found,
    ):
        if workspace.state is not None:
            remember_seen(workspace, found.observation.snapshots)
        if request.saved is not None:
            _check_saved(workspace, request.saved, found)
        show(found.plan)
        _require_all_hosts(found.plan)
        for refusal in refusals(found.plan, request.limits):
            raise refusal.error()
        if not found.plan.actionable:
            _note_only(workspace, request, found)
            _settle_rollover(workspace, found)
            require_healthy(found)
            return found.plan, None
        if request.command == "apply" and not request.accept_blockers:
            from sbctl.cli.blockers import refuse_unfit

            refuse_unfit(found, has_file=request.has_file)
        refuse_missing_secrets(workspace, found)
        if not request.assume_yes and not confirm(found.plan):
            raise not_confirmed()
        signer = ensure_signer(workspace, found.config, assume_yes=request.assume_yes)
        clear_returned(workspace, found.returned, found.observation.sessions)
        final = found if workspace.state is not None else _on_new_state(workspace, found)
        return final.plan, _carry_out(workspace, request, final, signer, sink)


def _tell_waiting(host: str) -> None:
    from sbctl.views.console import note

    note(f"{host}: waiting for the runtime, which is starting or still at work on what an earlier command sent")


def _require_all_hosts(plan: Plan) -> None:
    """Raises UnreachableError `plan.unreachable` where a host gave no answer and nobody said to go on without it."""
    if plan.unreachable and not plan.allow_unreachable:
        raise UnreachableError(
            "plan.unreachable",
            f"{', '.join(sorted(plan.unreachable))} gave no answer, so nothing was begun",
            next_step="repair what the plan says, or go on without it (--allow-unreachable); if the machine is gone for good: sbctl host forget NAME --lost",
        )


def require_healthy(found: Planned) -> None:
    """Raises DegradedError `apply.degraded`: nothing is to change, and yet something that should run was given up.

    An engine that is about to be started again is no reason: it is the runtime's work, and a second later it may be done.
    """
    for host, snapshot in sorted(found.observation.snapshots.items()):
        for deployment in snapshot.deployments:
            given_up = [one for one in deployment.replicas if one.state == "failed" and one.reason_code == "crash_loop"]
            if given_up:
                cause = given_up[0].cause or "the runtime gave no cause"
                raise DegradedError(
                    "apply.degraded",
                    f"nothing is to change, but deployment {deployment.deployment} was given up: {cause}",
                    place=host,
                    next_step=f"repair the cause, then: sbctl apply --replace deployment.{host}/{deployment.deployment}",
                )


def _check_saved(workspace: Workspace, saved: SavedPlan, found: Planned) -> None:
    state = workspace.state
    check_saved(
        saved,
        lineage=state.lineage if state is not None else None,
        serial=state.serial if state is not None else 0,
        config_digest=found.inputs.config_digest,
        catalog_digest=found.inputs.catalog_digest,
        fresh_plan=found.plan,
    )


def _on_new_state(workspace: Workspace, found: Planned) -> Planned:
    """The same plan over the lineage, the fingerprint key and the signing key that exist only now."""
    assert found.config is not None, "only sb.yml can begin a fleet"
    ensure_state(workspace, found.config.fleet_name)
    config = workspace.config
    inputs = replace(found.inputs, desired=desired_of(config), lineage=workspace.lineage, config_digest=config.digest)
    rebuilt = found.rebuilt(inputs)
    return Planned(rebuilt.plan, rebuilt.inputs, rebuilt.observation, config)


def _note_only(workspace: Workspace, request: ApplyRequest, found: Planned) -> None:
    """Nothing changes on any host; the state learns what it has to know of how they are reached, kept and protected.

    What a run that was killed had begun is settled too: the hosts were read, and there is nothing of it to do.
    """
    current = list(outdated(found.plan.changes)) if found.plan.mode == "apply" else []
    unsettled = workspace.state is not None and bool(workspace.state.open_intents)
    if not current and not unsettled:
        return
    wanted = effective_desired(found.inputs, PROVIDERS).desired
    run = workspace.store.begin_run(run_info(request.command, workspace.environ, workspace.directory), wanted.values())
    for recorded in current:
        run.record(recorded)
    run.finish("applied")


def _carry_out(
    workspace: Workspace, request: ApplyRequest, found: Planned, signer: Signer, sink: EventSink
) -> ApplyResult:
    from sbctl.cli.authority import IdentitySigner
    from sbctl.cli.services import OperatorServices

    wanted = effective_desired(found.inputs, PROVIDERS).desired
    info = run_info(request.command, workspace.environ, workspace.directory)
    run = workspace.store.begin_run(info, wanted.values())
    if found.plan.mode == "apply":
        for recorded in outdated(found.plan.changes):
            run.record(recorded)
    if found.config is not None:
        workspace.store.set_trust(dict(found.config.signers or {}), found.config.key_epoch)
    services = OperatorServices(
        workspace.clock,
        signer,
        run.allocate_revision,
        _secret_resolver(workspace, found),
        _supplies(workspace),
        identities=IdentitySigner(workspace, workspace.clock),
    )
    given_up = [
        recorded
        for address, recorded in found.inputs.recorded.items()
        if recorded.host in found.plan.unreachable and address not in wanted
    ]
    cancel = Cancellation()
    with SignalWatch(cancel), stop_when_lost(workspace, cancel), closing(_Sessions(workspace, found)) as sessions:
        result = execute(
            found.plan,
            sessions=sessions,
            run=run,
            providers=PROVIDERS,
            services=services,
            options=_options(workspace, request, found.plan.mode, info.operator, run.serial),
            sink=sink,
            cancel=cancel,
            given_up=given_up,
        )
    _settle_rollover(workspace, found)
    return result


def _options(workspace: Workspace, request: ApplyRequest, mode: PlanMode, operator: str, serial: int) -> ApplyOptions:
    return ApplyOptions(
        lease=LeaseClaim(
            operator, f"{request.command} serial {serial}", workspace.lineage, f"{serial}-{uuid.uuid4().hex}"
        ),
        lease_wait_s=request.lock_timeout_s,
        update=update_of(workspace, mode),
        parallelism=request.plan.parallelism,
        fail_fast=request.fail_fast,
        allow_unreachable=request.plan.allow_unreachable,
        leave_anyway=request.accept_blockers,
    )


def _settle_rollover(workspace: Workspace, found: Planned) -> None:
    if found.config is not None and found.config.authority is not None:
        from sbctl.cli.authority import settle_rollover

        settle_rollover(workspace, found.config)


def _supplies(workspace: Workspace) -> Supplies:
    from sbctl.cli.services import OnlineSupplies, operator_cache

    if workspace.pack is None:
        return OnlineSupplies(operator_cache(), workspace.environ, workspace.clock)
    from sbctl.pack.supplies import PackSupplies

    return PackSupplies(workspace.pack, operator_cache(), workspace.file)


class _Sessions:
    """The sessions that planning opened, each given out once; asked again for a host, a new one."""

    def __init__(self, workspace: Workspace, found: Planned) -> None:
        self._workspace = workspace
        self._found = found
        self._unused = dict(found.observation.sessions)
        self._relays = Relays(found.config, found.observation.snapshots, self._opened, workspace.clock)

    def __call__(self, host: str) -> NodeSession:
        session = self._unused.pop(host, None)
        if session is None or host not in self._found.observation.snapshots:
            session = self._opened(host)
        return self._relays.over(host, session)

    def close(self) -> None:
        """End what relays serve."""
        self._relays.close()

    def _opened(self, host: str) -> HostSession:
        connection = self._found.plan.hosts[host]
        config = self._found.config
        python = config.hosts[host].python if config is not None and host in config.hosts else None
        return open_session(
            host,
            connection,
            clock=self._workspace.clock,
            python=python,
            environ=self._workspace.environ,
            links=self._found.observation.links,
            secrets=self._workspace.login_secrets,
        )


def _secret_resolver(workspace: Workspace, found: Planned) -> Callable[[str], Secret]:
    """Secrets are resolved by today's sb.yml, also for a rollback: an old value cannot come back."""
    config = found.config
    if config is None:
        try:
            config = workspace.loaded
        except SbctlError as error:
            return _refusing(workspace, error)
    return SecretResolver(config, workspace.environ).resolve


def _refusing(workspace: Workspace, cause: SbctlError) -> Callable[[str], Secret]:
    def unavailable(reference: str) -> Secret:
        raise RefusedError(
            "secret.no_configuration",
            f"a secret ({reference.partition(':')[0]}:) is resolved by sb.yml, which cannot be used: {cause.message}",
            place=str(workspace.file),
            next_step="sbctl validate names what is wrong with it",
        )

    return unavailable


def earlier_serial(workspace: Workspace, serial: int | None) -> int:
    """The serial that a rollback goes to: the given one, or that of the run before the current.

    Raises InputError `rollback.nowhere` when there is none.
    """
    if serial is not None:
        return serial
    current = workspace.require_state().serial
    earlier = [
        run.serial
        for run in workspace.store.history()
        if run.serial < current and run.status == "applied" and run.info.command in ("apply", "rollback")
    ]
    if not earlier:
        raise InputError(
            "rollback.nowhere", "there is no earlier serial to go back to", next_step="sbctl state history lists them"
        )
    return max(earlier)
