"""`sbctl models` beside a running runtime: over its node interface, with its leases and its budget, and its deployments told."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.operator_world import OperatorWorld

pytestmark = pytest.mark.integration


def models(world: OperatorWorld, *words: str, expect: int = 0) -> Any:
    return world.sbctl("models", *words, "--format", "json", expect=expect).json()


def test_weights_beside_a_running_runtime(changing: OperatorWorld) -> None:
    world = changing
    rows = {row["id"]: row for row in models(world, "list", "--host", "local")["models"]}
    assert (rows["tiny"]["status"], rows["tiny"]["in_use"]) == ("cached", True)
    assert rows["small"]["status"] == "not-pulled"

    (error,) = models(world, "remove", "tiny", "--force", expect=4)["errors"]
    assert error["code"] == "artifact.in_use"
    (pulled,) = models(world, "pull", "small")["artifacts"]
    assert Path(pulled["snapshot_path"]).is_relative_to(world.prefix)
    assert models(world, "prune")["caches"][0]["orphan_blobs"] == []

    world.config["proxy"]["model_host"]["cache"] = {"budget_gib": 0.000001}
    world.sbctl("apply", "--yes", expect=0)
    collected = models(world, "prune")["caches"][0]["collected"]
    assert collected["deleted"] == [pulled["artifact"]]
    assert list(collected["skipped"].values()) == ["configured"]
    assert collected["unsatisfied_bytes"] > 0

    (tiny,) = (row for row in models(world, "show", "tiny")["hosts"])
    (weights,) = (world.prefix / "cache/models/snapshots" / tiny["artifact"]).glob("*.gguf")
    weights.chmod(0o600)
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    (error,) = models(world, "show", "tiny", "--verify", expect=1)["errors"]
    assert error["code"] == "artifact.digest_mismatch"
    assert error["detail"]["deployments"] == ["chat"]
    told = world.sbctl("events", "--deployment", "chat", "--format", "json", expect=0).out
    assert "weights.quarantined" in told
    world.sbctl("drift", expect=2)
    world.sbctl("apply", "--yes", expect=0)
    assert models(world, "show", "tiny", "--verify")["cached"]


def audit(world: OperatorWorld, *words: str, expect: int = 0) -> Any:
    return world.sbctl("audit", "verify", *words, "--format", "json", expect=expect).json()


def test_replicas_are_seen_and_moved_and_each_move_is_in_the_audit(changing: OperatorWorld) -> None:
    world = changing
    (row,) = models(world, "ps")["deployments"]
    assert (row["host"], row["deployment"], row["state"]) == ("local", "chat", "ready")
    assert row["memory_bytes"] > 0
    before = audit(world)["hosts"][0]
    assert before["holds"]

    (moved,) = models(world, "drain", "chat", "--deadline", "30", "--host", "local")["hosts"]
    assert (moved["state"], moved["stopped_by"]) == ("stopped", "operator")
    assert models(world, "ps")["serving"] is False
    world.sbctl("drift", expect=2)
    (moved,) = models(world, "load", "chat")["hosts"]
    assert moved["state"] == "ready"
    (error,) = models(world, "reset", "chat", expect=4)["errors"]
    assert error["code"] == "deployment_healthy"
    (error,) = models(world, "stop", "nothing", expect=4)["errors"]
    assert error["code"] == "unknown_deployment"
    (moved,) = models(world, "stop", "chat")["hosts"]
    assert moved["state"] == "stopped"
    assert models(world, "reset", "chat")["hosts"][0]["state"] == "configured"
    models(world, "load", "chat")
    assert world.answers()
    status, body = world.admin("GET", "/admin/model-host/jobs")
    assert status == 200
    assert [job["kind"] for job in body["jobs"][:6]] == ["load", "reset", "stop", "reset", "load", "drain"]

    after = audit(world)["hosts"][0]
    assert after["entries"] >= before["entries"] + 6
    assert audit(world, "--head", f"{before['entries']}:{before['head']}")["hosts"][0]["holds"]
    forged = audit(world, "--head", f"{before['entries']}:{'0' * 64}", expect=1)["hosts"][0]
    assert forged["broken_at"] == before["entries"]
    with sqlite3.connect(world.prefix / "state" / "runtime.db") as database:
        told = database.execute("SELECT actor FROM audit WHERE action = 'job.drain'").fetchall()
        database.execute("UPDATE audit SET actor = 'nobody' WHERE action = 'job.drain'")
    assert "@" in told[-1][0]
    broken = world.sbctl("audit", "verify", expect=1)
    assert "was changed after it was written" in broken.out
    with sqlite3.connect(world.prefix / "state" / "runtime.db") as database:
        database.execute("UPDATE audit SET actor = ? WHERE action = 'job.drain'", told[-1])
    audit(world)
