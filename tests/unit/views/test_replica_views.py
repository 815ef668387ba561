"""`models ps` as JSON: what scripts for SBproxy's status read, and the host of each replica."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sbctl.node.snapshot import DeploymentState, ReplicaState
from sbctl.views.replica_views import PsRow, ps_body, ps_text


def _row(name: str, state: str, reason: str | None = None, **more: Any) -> PsRow:
    told = {"replica": 0, "state": state, "restarts": 0, "reason_code": reason, **more}
    replica = ReplicaState.model_validate(told)
    whole = {"deployment": name, "generation": 1, "state": state, "content_digest": "0" * 64, "replicas": (replica,)}
    return PsRow("gpu-a", DeploymentState.model_validate(whole), replica)


def test_the_status_is_that_of_all_hosts_together() -> None:
    body = ps_body([_row("a", "ready"), _row("b", "failed", "crash_loop"), _row("c", "stopped")], [])
    assert (body["serving"], [row["deployment"] for row in body["deployments"]]) == (True, ["a", "b", "c"])
    assert body["models"] == body["deployments"]
    assert body["local_serving"]["blockers"] == ["gpu-a/b: crash_loop"]
    assert "models reset" in body["local_serving"]["recommendation"]
    assert ps_body([_row("c", "stopped")], [])["serving"] is False


def test_what_failed_says_why_and_what_to_do() -> None:
    failed = _row("b", "failed", "engine_oom_killed", last_error="memory ran out", next_step="choose a smaller context")
    old = _row("c", "failed", "engine_exited", last_error="exit code 3")
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(ps_text([failed, old], several=False))
    assert "engine_oom_killed: memory ran out; choose a smaller context" in out.getvalue()
    assert [line.rstrip() for line in out.getvalue().splitlines()][-1].endswith("engine_exited: exit code 3")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"warm": True}, "warm: it stays loaded"),
        ({"warm": False}, "stays until another model needs its room"),
        ({"warm": True, "keep_alive_secs": 300}, "unloaded after 300 s without a request"),
        ({}, "ready"),
    ],
)
def test_fault_48_what_is_resident_says_why_and_for_how_long(policy: dict[str, Any], said: str) -> None:
    row = _row("a", "ready")
    row = replace(row, deployment=row.deployment.model_copy(update=policy))
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(ps_text([row], several=False))
    assert said in out.getvalue()
    assert ps_body([row], [])["deployments"][0]["warm"] is policy.get("warm")
