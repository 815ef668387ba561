"""A catalog is only where facts come from: adding or changing an entry touches what serves that entry, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sbctl.base.digests import sha256_bytes
from tests.lab.callers import Load
from tests.simulators.gguf_files import tiny_gguf
from tests.simulators.operator_world import OperatorWorld

pytestmark = pytest.mark.integration


def _catalog(world: OperatorWorld) -> Any:
    return json.loads((world.fleet / "models.yaml").read_text())


def _write(world: OperatorWorld, catalog: Any) -> None:
    (world.fleet / "models.yaml").write_text(json.dumps(catalog))


def _engine_of(world: OperatorWorld, weights: str) -> int:
    catalog = _catalog(world)
    name = catalog["models"][weights]["variants"][0]["files"][0]["path"]
    (found,) = [one.pid for one in world.running("--model") if any(name in part for part in one.cmdline())]
    return found


def test_entries_are_added_and_changed_under_load_and_only_their_own_deployment_moves(installed: OperatorWorld) -> None:
    world = installed
    world.deployments["other"] = {**world.deployments["chat"], "model": "small"}
    world.config["origins"]["localhost"]["action"] = world.serving(chat=["tiny"], other=["small"])
    world.sbctl("apply", "--yes", expect=0)
    tiny, small = _engine_of(world, "tiny"), _engine_of(world, "small")
    with Load("127.0.0.1", model="tiny", port=world.port, host="localhost") as load:
        catalog = _catalog(world)
        catalog["catalog_revision"] = "tests-2"
        catalog["models"]["new"] = {**catalog["models"]["tiny"]}
        _write(world, catalog)
        assert "No changes" in world.sbctl("plan", expect=0).out

        other_bytes = tiny_gguf(note="small, again")
        (world.root / "small.gguf").write_bytes(other_bytes)
        file = catalog["models"]["small"]["variants"][0]["files"][0]
        file.update(sha256=sha256_bytes(other_bytes), size_bytes=len(other_bytes))
        catalog["catalog_revision"] = "tests-3"
        _write(world, catalog)
        planned = world.sbctl("plan", "--format", "json", expect=2).json()
        touched = {row["address"] for row in planned["resource_changes"] if row["action"] != "no-op"}
        assert touched == {"artifact.local/small:q4", "bundle.local", "deployment.local/other"}
        world.sbctl("apply", "--yes", expect=0)
    assert load.failures == []
    assert load.answered > 0
    assert _engine_of(world, "tiny") == tiny
    assert _engine_of(world, "small") != small
    world.check_settled()
