"""`sbctl models` beside a running runtime: over its node interface, with its leases and its budget, and its deployments told."""

from __future__ import annotations

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
