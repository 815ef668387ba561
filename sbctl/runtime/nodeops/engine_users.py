"""Who runs from an engine's directory. What was installed anew under a running engine is not what that engine runs: its deployments are stopped
and loaded again, one after the other."""

from __future__ import annotations

import os
from pathlib import Path

from sbctl.node.messages import DeploymentAction
from sbctl.runtime.nodeops.bundle_ops import act_on_deployment
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.ownership import OwnershipRecords

__all__ = ["processes_of", "restart_users"]


def processes_of(home: Path) -> list[int]:
    """Processes that were started from `home`, by the program they name."""
    found = []
    prefix = f"{home}/".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if file.read(4096).startswith(prefix):
                        found.append(int(name))
            except OSError:
                continue
    return sorted(found)


def restart_users(context: NodeContext, home: Path) -> list[str]:
    """The deployments that were restarted. Raises what the runtime answers."""
    running = set(processes_of(home))
    records = [record for _, record in OwnershipRecords(context.paths.engine_records).read() if record is not None]
    deployments = sorted({record.deployment for record in records if record.pid in running})
    for deployment in deployments:
        context.report(0, None, f"restarting {deployment}, whose engine was installed anew")
        act_on_deployment(context, DeploymentAction(deployment=deployment, action="stop"))
        act_on_deployment(context, DeploymentAction(deployment=deployment, action="load"))
    return deployments
