"""`models ps` as JSON: what scripts for SBproxy's status read, and the host of each replica."""

from __future__ import annotations

from sbctl.node.snapshot import DeploymentState, ReplicaState
from sbctl.views.replica_views import PsRow, ps_body


def _row(name: str, state: str, reason: str | None = None) -> PsRow:
    replica = ReplicaState.model_validate({"replica": 0, "state": state, "restarts": 0, "reason_code": reason})
    whole = {"deployment": name, "generation": 1, "state": state, "content_digest": "0" * 64, "replicas": (replica,)}
    return PsRow("gpu-a", DeploymentState.model_validate(whole), replica)


def test_the_status_is_that_of_all_hosts_together() -> None:
    body = ps_body([_row("a", "ready"), _row("b", "failed", "crash_loop"), _row("c", "stopped")], [])
    assert (body["serving"], [row["deployment"] for row in body["deployments"]]) == (True, ["a", "b", "c"])
    assert body["models"] == body["deployments"]
    assert body["local_serving"]["blockers"] == ["gpu-a/b: crash_loop"]
    assert "models reset" in body["local_serving"]["recommendation"]
    assert ps_body([_row("c", "stopped")], [])["serving"] is False
