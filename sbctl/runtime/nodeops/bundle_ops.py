"""`bundle.apply`, `bundle.clear`, `deployment.action`: handed to the runtime on this host over its control socket."""

from __future__ import annotations

from typing import Any, Final

from sbctl.base.errors import HostError, error_from_wire
from sbctl.node.messages import BundleApply, DeploymentAction
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient

__all__ = ["act_on_deployment", "apply_bundle", "clear_bundle"]

_SILENCE_S: Final = 60.0
"""The runtime says something every few seconds while it works."""
_LONG_S: Final = 900.0


def apply_bundle(context: NodeContext, params: BundleApply) -> dict[str, Any]:
    """Raises what the runtime answers, UnreachableError `runtime.unreachable`, HostError `host.outcome_unknown` when it fell silent midway."""
    client = ControlClient(context.paths.control_socket)
    context.cancellation.subscribe(client.abandon)
    for line in client.apply_bundle(params.envelope, params.expected_revision, silence_s=_SILENCE_S):
        if isinstance(line.get("progress"), dict):
            step = line["progress"]
            context.report(int(step.get("done") or 0), step.get("total"), str(step.get("note", "")))
        elif isinstance(line.get("error"), dict):
            raise error_from_wire(line["error"])
        elif isinstance(line.get("result"), dict):
            result: dict[str, Any] = line["result"]
            return result
    context.cancellation.check()
    raise HostError(
        "host.outcome_unknown",
        "the runtime ended before it said whether the bundle was accepted",
        next_step="run the command again: it reads the host before it acts",
        retryable=True,
    )


def clear_bundle(context: NodeContext, _params: None) -> dict[str, Any]:
    """Stop all deployments and forget the accepted bundle; the fence stays."""
    ControlClient(context.paths.control_socket).clear_bundle(timeout_s=_LONG_S)
    return {}


def act_on_deployment(context: NodeContext, params: DeploymentAction) -> dict[str, Any]:
    """The deployment's status row afterwards."""
    client = ControlClient(context.paths.control_socket)
    return client.deployment_action(params.deployment, params.action, timeout_s=_LONG_S)
