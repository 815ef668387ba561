"""`host.drain`, `host.resume`: written down first, then told to the runtime, if one runs. `host.leave`: told to the runtime alone."""

from __future__ import annotations

import time
from typing import Any, Final

from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_actions import HostLeave
from sbctl.node.drain_file import clear_drain, read_drain, write_drain
from sbctl.node.messages import HostDrain, HostResume
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient

__all__ = ["drain_host", "leave_cluster", "resume_host"]

_POLL_S: Final = 0.2
_LOOKS_EMPTY: Final = 10
"""An assignment that was on its way when the node said that it leaves would be here by then."""


def drain_host(context: NodeContext, params: HostDrain) -> dict[str, Any]:
    """Nothing new is admitted when this returns; `finished` says whether what ran has ended within the deadline."""
    persistent = params.by is not None
    if params.by is not None:
        write_drain(context.paths, by=params.by, since=rfc3339(context.clock.now()))
    client = ControlClient(context.paths.control_socket)
    if client.status() is None:
        # Nothing runs that could admit anything; what starts later reads the file.
        return {"running": False, "active_requests": 0, "finished": True}
    active = int(client.drain("operator" if persistent else "apply").get("active_requests") or 0)
    end_s = time.monotonic() + params.deadline_s
    most = max(1, active)
    while active and time.monotonic() < end_s:
        context.cancellation.check()
        context.report(most - active, most, f"{active} requests still run")
        time.sleep(_POLL_S)
        status = client.status()
        active = int(((status or {}).get("drain") or {}).get("active_requests") or 0)
    return {"running": True, "active_requests": active, "finished": not active}


def resume_host(context: NodeContext, params: HostResume) -> dict[str, Any]:
    """New requests are admitted again, unless somebody else's drain holds on."""
    was = read_drain(context.paths)
    if params.persistent:
        clear_drain(context.paths)
    try:
        ControlClient(context.paths.control_socket).resume("operator" if params.persistent else "apply")
    except SbctlError as error:
        if error.code != "runtime.unreachable":
            raise
    return {"was_drained": was is not None}


def leave_cluster(context: NodeContext, params: HostLeave) -> dict[str, Any]:
    """What is left when the time is over; nothing where no runtime runs. Raises UnreachableError `runtime.unreachable`."""
    client = ControlClient(context.paths.control_socket)
    if client.status() is None:
        return {"running": False, "left": []}
    client.drain("leave")
    end_s = time.monotonic() + params.deadline_s
    most, empty = 1, 0
    while True:
        context.cancellation.check()
        left = sorted({str(one.get("deployment")) for one in (client.status() or {}).get("deployments", ())})
        empty = 0 if left else empty + 1
        if empty >= _LOOKS_EMPTY or time.monotonic() >= end_s:
            return {"running": True, "left": left}
        most = max(most, len(left))
        context.report(most - len(left), most, f"still here: {', '.join(left)}" if left else "")
        time.sleep(_POLL_S)
