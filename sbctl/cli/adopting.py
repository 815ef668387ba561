"""`state import`: taking a resource into the record that its host already has."""

from __future__ import annotations

from dataclasses import replace

from providers.registry import PROVIDERS
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.ids import Address
from sbctl.cli.fleet_setup import held_state
from sbctl.cli.planning import PlanRequest, planned
from sbctl.cli.workspace import Workspace
from sbctl.plan.model import Recorded
from sbctl.state.operator import run_info

__all__ = ["adopt"]


def adopt(workspace: Workspace, address: Address, *, lock_timeout_s: float) -> None:
    """Record `address` as sb.yml describes it. Nothing on the host changes.

    Raises InputError `import.unknown` when sb.yml does not name it, RefusedError `import.differs` when the host shows something else.
    """
    with held_state(workspace, "sbctl state import", lock_timeout_s):
        workspace.require_state()
        with planned(workspace, PlanRequest()) as found:
            desired = next((one for one in found.inputs.desired if one.address == address), None)
            if desired is None:
                raise InputError(
                    "import.unknown",
                    f"{workspace.file} does not ask for {address}",
                    next_step="sbctl plan lists what it asks for",
                )
            provider = PROVIDERS[address.kind]
            candidate = Recorded(
                address=address,
                record=provider.record(desired, {}),
                record_version=provider.record_version,
                fingerprint=desired.fingerprint,
                spec=desired.spec,
                host=desired.host,
                connection=desired.connection,
                after=desired.after,
                member_of=desired.member_of,
                keep=desired.keep,
                prevent_destroy=desired.prevent_destroy,
            )
            recorded = {**found.inputs.recorded, address: candidate}
            judged = found.rebuilt(replace(found.inputs, recorded=recorded)).plan
            change = next(one for one in judged.changes if one.address == address)
        if change.action != "no-op":
            where = change.leaves[0].path if change.leaves else change.reason
            raise RefusedError(
                "import.differs",
                f"the host does not show {address} as sb.yml describes it ({where})",
                next_step="sbctl apply brings it there and records it",
            )
        workspace.store.adopt(candidate, run_info("state import", workspace.environ, workspace.directory))
