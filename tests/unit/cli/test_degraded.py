"""An apply with nothing to change still says when something that should run was given up (exit 8)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.errors import DegradedError, ExitCode
from sbctl.cli.applying import require_healthy
from sbctl.node.snapshot import DeploymentState, NodeSnapshot, ReplicaState


def _found(state: str, reason: str | None) -> Any:
    replica = ReplicaState(state=state, reason_code=reason, last_error="exit code 3: no such device")
    snapshot = NodeSnapshot(bootstrapped=True, deployments=(DeploymentState(deployment="chat", replicas=(replica,)),))
    return cast("Any", SimpleNamespace(observation=SimpleNamespace(snapshots={"gpu-a": snapshot})))


def test_a_crash_loop_is_degraded_and_names_host_cause_and_next_step() -> None:
    with pytest.raises(DegradedError) as caught:
        require_healthy(_found("failed", "crash_loop"))
    assert caught.value.exit_code is ExitCode.DEGRADED
    assert caught.value.place == "gpu-a"
    assert "exit code 3" in caught.value.message
    assert "deployment.gpu-a/chat" in (caught.value.next_step or "")


@pytest.mark.parametrize(("state", "reason"), [("failed", "engine_exited"), ("ready", None), ("stopped", "idle")])
def test_what_runs_or_is_about_to_is_healthy(state: str, reason: str | None) -> None:
    require_healthy(_found(state, reason))
