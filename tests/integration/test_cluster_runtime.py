"""Runtimes of one cluster as processes: a signed bundle becomes replicas, requests find them, and no single death is an outage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.cluster_nodes import ClusterLab, clustered
from tests.simulators.runtime_world import engine_program, member, weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_a_bundle_becomes_replicas_and_nothing_that_dies_is_an_outage(tmp_path: Path) -> None:
    roles = {"gw": ("authority", "gateway"), "w1": ("worker",), "w2": ("worker",)}
    program = engine_program(tmp_path)
    served = clustered(member(weights(tmp_path), program), replicas=2)
    with ClusterLab(tmp_path / "lab", roles) as lab:
        lines = lab.publish("gw", lab.bundle({"q": served}, 1), None)
        assert lines[-1].get("result", {}).get("ready"), (lines[-3:], lab.logs())
