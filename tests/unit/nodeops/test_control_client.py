"""The control socket: answers, refusals, nonsense, silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbctl.base.digests import canonical_json
from sbctl.base.errors import HostError, RefusedError, UnreachableError
from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer
from sbctl.node.messages import BundleApply, DeploymentAction, RuntimeConfig
from sbctl.runtime.nodeops.bundle_ops import act_on_deployment, apply_bundle, clear_bundle, cluster_status
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient

BUNDLE = ("POST", "/control/v1/bundle")
APPLY = BundleApply(envelope="e", expected_revision=4)


def reported(context: NodeContext, steps: list[tuple[int, int | None, str]]) -> NodeContext:
    from dataclasses import replace

    return replace(context, report=lambda *step: steps.append(step))


def test_a_transaction_reports_and_ends_in_its_result(context: NodeContext, runtime: Any) -> None:
    runtime.answers[BUNDLE] = (
        200,
        [
            {"progress": {"done": 1, "total": 2, "note": "n"}},
            {"progress": {"done": 2, "total": None}},
            {"result": {"revision": 5}},
        ],
    )
    steps: list[tuple[int, int | None, str]] = []
    assert apply_bundle(reported(context, steps), APPLY) == {"revision": 5}
    assert steps == [(1, 2, "n"), (2, None, "")]
    assert runtime.requests == [(*BUNDLE, {"envelope": "e", "expected_revision": 4})]


def test_a_refused_bundle_raises_what_the_runtime_said(context: NodeContext, runtime: Any) -> None:
    refusal = RefusedError("bundle.stale_revision", "older than the fence", next_step="plan again")
    runtime.answers[BUNDLE] = (200, [{"error": refusal.to_wire()}])
    with pytest.raises(RefusedError) as caught:
        apply_bundle(context, APPLY)
    assert (caught.value.code, caught.value.next_step) == ("bundle.stale_revision", "plan again")


def test_a_transaction_without_an_end_is_unknown(context: NodeContext, runtime: Any) -> None:
    runtime.answers[BUNDLE] = (200, [{"progress": {"done": 1, "total": 2, "note": "n"}}])
    with pytest.raises(HostError) as caught:
        apply_bundle(context, APPLY)
    assert caught.value.code == "host.outcome_unknown"


@pytest.mark.parametrize("lines", [[b"nonsense\n"], [b'["a"]\n'], [b'{"a":1,"a":2}\n']])
def test_nonsense_is_an_error_with_a_name(context: NodeContext, runtime: Any, lines: list[bytes]) -> None:
    runtime.answers[BUNDLE] = (200, lines)
    with pytest.raises(HostError) as caught:
        apply_bundle(context, APPLY)
    assert caught.value.code == "runtime.answer_invalid"


def test_actions_and_clearing(context: NodeContext, runtime: Any) -> None:
    stopped = {"result": {"deployment": "chat", "state": "stopped"}}
    runtime.answers["POST", "/control/v1/deployments/chat/stop"] = (200, [{"progress": {"done": 0}}, stopped])
    runtime.answers["DELETE", "/control/v1/bundle"] = (200, [{}])
    asked = DeploymentAction(deployment="chat", action="stop")
    assert act_on_deployment(context, asked)["state"] == "stopped"
    assert clear_bundle(context, None) == {}
    runtime.answers["DELETE", "/control/v1/bundle"] = (
        409,
        [{"error": RefusedError("draining", "busy").to_wire()}],
    )
    with pytest.raises(RefusedError):
        clear_bundle(context, None)
    runtime.answers["DELETE", "/control/v1/bundle"] = (500, [b"<html>"])
    with pytest.raises(HostError) as caught:
        clear_bundle(context, None)
    assert caught.value.code == "runtime.refused"


def test_the_cluster_is_asked_for_only_on_a_node_of_one(context: NodeContext, runtime: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        cluster_status(context, None)
    assert caught.value.code == "cluster.not_a_node"
    store = ClusterStoreServer(node_id="a", address="127.0.0.1", port=1)
    node = ClusterConfig(cluster_id="prod", node_id="h", roles=("gateway",), store=(store,))
    config = RuntimeConfig(lineage="L", host="h", identity=True, cluster=node)
    context.paths.runtime_config.write_bytes(canonical_json(config.model_dump(mode="json")))
    runtime.answers["GET", "/control/v1/cluster/status"] = (200, [{"cluster_id": "prod"}])
    assert cluster_status(context, None) == {"cluster_id": "prod"}


def test_nobody_there(context: NodeContext, tmp_path: Path) -> None:
    assert ControlClient(tmp_path / "none").status() is None
    with pytest.raises(UnreachableError) as caught:
        clear_bundle(context, None)
    assert caught.value.code == "runtime.unreachable"
    assert caught.value.retryable


def test_a_status_that_makes_no_sense_is_no_status(context: NodeContext, runtime: Any) -> None:
    client = ControlClient(context.paths.control_socket)
    for answer in ((200, [b"x"]), (500, [{}]), (200, [b"[]"])):
        runtime.answers["GET", "/control/v1/status"] = answer
        assert client.status() is None
    runtime.answers["GET", "/control/v1/status"] = (200, [{"healthy": True}])
    assert client.status() == {"healthy": True}
