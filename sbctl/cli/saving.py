"""`plan --out`: a plan signed by the operator's key, so that exactly what was shown is what will be done."""

from __future__ import annotations

from pathlib import Path

from sbctl.base.errors import InputError
from sbctl.base.fs import write_atomic
from sbctl.cli.fleet_setup import ensure_signer, ensure_state, held_state
from sbctl.cli.planning import PlanRequest, planned
from sbctl.cli.workspace import Workspace
from sbctl.plan.model import Plan
from sbctl.plan.saved_plan import PLAN_PAYLOAD_TYPE, saved_payload

__all__ = ["save_plan"]


def save_plan(
    workspace: Workspace, request: PlanRequest, out: Path, *, assume_yes: bool, lock_timeout_s: float = 0.0
) -> Plan:
    """Plan, sign, write. A new fleet gets its key and its (empty) state first, since a saved plan names the lineage it belongs to.

    Raises RefusedError `key.*`, InputError `plan.incomplete`, LockedError `state.locked`.
    """
    signer = ensure_signer(workspace, workspace.config, assume_yes=assume_yes)
    if workspace.state is None:
        with held_state(workspace, "sbctl plan --out", lock_timeout_s):
            ensure_state(workspace, workspace.config.fleet_name)
    with planned(workspace, request) as found:
        if found.plan.unreachable and not request.allow_unreachable:
            raise InputError(
                "plan.incomplete",
                f"{', '.join(sorted(found.plan.unreachable))} gave no answer, so this plan is not saved",
                next_step="repair the host, or save a plan without it: --allow-unreachable",
            )
        write_atomic(
            out.resolve(), signer.sign(PLAN_PAYLOAD_TYPE, saved_payload(found.plan)).encode() + b"\n", mode=0o600
        )
        return found.plan
