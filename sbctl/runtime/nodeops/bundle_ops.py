"""`bundle.apply`, `bundle.clear`, `cluster.publish`, `cluster.status`, `cluster.act`, `deployment.action`: handed to the runtime on this host over its control socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sbctl.base.errors import HostError, InputError, RefusedError, error_from_wire
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.engines.detect import find_llama_server
from sbctl.node.cluster_actions import ClusterAct, ClusterActed
from sbctl.node.cluster_messages import ClusterPublish, ClusterPublished
from sbctl.node.messages import BundleApply, DeploymentAction
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.launcher_units import SERVICE_PATH, allow_programs
from sbctl.runtime.nodeops.snapshot import stored_config
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import parse_bundle

__all__ = ["act_in_cluster", "act_on_deployment", "apply_bundle", "clear_bundle", "cluster_status", "publish_bundle"]

_SILENCE_S: Final = 60.0
"""The runtime says something every few seconds while it works."""
_LONG_S: Final = 900.0


def apply_bundle(context: NodeContext, params: BundleApply) -> dict[str, Any]:
    """Raises what the runtime answers, UnreachableError `runtime.unreachable`, HostError `host.outcome_unknown` when it fell silent midway.

    Where engines are started by the launcher, the programs of the user's that this bundle names are listed for it first; those that the
    former bundle named stay listed until this one is accepted.
    """
    programs = _programs(params.envelope)
    allow_programs(context.paths, programs, keep=True)
    result = _apply(context, params)
    allow_programs(context.paths, programs, keep=False)
    return result


def _programs(envelope: str) -> frozenset[Path]:
    """The engine programs that a bundle names or finds on PATH; what is wrong with the bundle is for the runtime to say."""
    try:
        _type, payload, _keyids = unverified_payload(envelope, max_bytes=BUNDLE_MAX_BYTES)
        members = parse_bundle(payload).content.deployments.values()
    except InputError:
        return frozenset()
    policies = [member.engine for member in members if member.engine.launch == "binary"]
    found = (Path(policy.path) if policy.path else find_llama_server(SERVICE_PATH) for policy in policies)
    return frozenset(program for program in found if program is not None)


def _apply(context: NodeContext, params: BundleApply) -> dict[str, Any]:
    client = ControlClient(context.paths.control_socket)
    context.cancellation.subscribe(client.abandon)
    lines = client.apply_bundle(params.envelope, params.expected_revision, silence_s=_SILENCE_S)
    return _outcome(context, lines, "the runtime ended before it said whether the bundle was accepted")


def _outcome(context: NodeContext, lines: Iterator[dict[str, Any]], cut: str) -> dict[str, Any]:
    for line in lines:
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
        cut,
        next_step="run the command again: it reads the host before it acts",
        retryable=True,
    )


def publish_bundle(context: NodeContext, params: ClusterPublish) -> dict[str, Any]:
    """What the nodes of the cluster made of it by then. Raises as `apply_bundle`; HostError `runtime.answer_invalid`."""
    client = ControlClient(context.paths.control_socket)
    context.cancellation.subscribe(client.abandon)
    lines = client.publish_bundle(params.model_dump(mode="json"), silence_s=_SILENCE_S)
    result = _outcome(context, lines, "the runtime ended before it said whether the bundle was published")
    try:
        return ClusterPublished.model_validate_json(json.dumps(result)).model_dump(mode="json")
    except ValidationError as error:
        raise HostError("runtime.answer_invalid", "the runtime did not say what was published") from error


def cluster_status(context: NodeContext, _params: None) -> dict[str, Any]:
    """The body of GET /admin/cluster/status. Raises RefusedError `cluster.not_a_node`, UnreachableError `runtime.unreachable`."""
    return _of_a_node(context).cluster_status()


def act_in_cluster(context: NodeContext, params: ClusterAct) -> dict[str, Any]:
    """Raises as `ClusterAct` says; RefusedError `cluster.not_a_node`, UnreachableError `runtime.unreachable`, HostError
    `runtime.answer_invalid`."""
    answer = _of_a_node(context).act_in_cluster(params.model_dump(mode="json"))
    try:
        return ClusterActed.model_validate_json(json.dumps(answer.get("result"))).model_dump(mode="json")
    except ValidationError as error:
        raise HostError("runtime.answer_invalid", "the runtime did not say what became of it") from error


def _of_a_node(context: NodeContext) -> ControlClient:
    """The runtime of a host that belongs to a cluster."""
    config, _ = stored_config(context.paths)
    if config is None or config.cluster is None:
        raise RefusedError(
            "cluster.not_a_node",
            "this host is no node of a cluster",
            next_step="proxy.cluster in sb.yml makes the hosts of a fleet one; sbctl status shows a host on its own",
        )
    return ControlClient(context.paths.control_socket)


def clear_bundle(context: NodeContext, _params: None) -> dict[str, Any]:
    """Stop all deployments and forget the accepted bundle; the fence stays."""
    ControlClient(context.paths.control_socket).clear_bundle(timeout_s=_LONG_S)
    return {}


def act_on_deployment(context: NodeContext, params: DeploymentAction) -> dict[str, Any]:
    """The deployment's status row afterwards."""
    client = ControlClient(context.paths.control_socket)
    context.cancellation.subscribe(client.abandon)
    asked = {"by": params.by, "drain_s": params.drain_s}
    lines = client.deployment_action(params.deployment, params.action, asked, silence_s=_SILENCE_S)
    return _outcome(context, lines, f"the runtime ended before it said how {params.action} of {params.deployment} went")
