"""Runtimes of one cluster as processes: a signed bundle becomes replicas, requests find them, and no single death is an outage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.simulators.cluster_events import Asked
from tests.simulators.cluster_nodes import ClusterLab, clustered, until
from tests.simulators.runtime_world import content, engine_program, member, weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def _placed(lab: ClusterLab, name: str = "gw") -> dict[int, str]:
    plan = lab.status(name)["placement"]
    return {one["slot"]: one["node_id"] for one in plan["deployments"]["q"]["assignments"]}


def _asked(lab: ClusterLab, times: int = 4) -> list[tuple[int, str]]:
    """Requests through the gateway: status and way."""
    answers = [lab.runtimes["gw"].ask() for _ in range(times)]
    return [(status, headers.get("x-sbproxy-route-class", "")) for status, _answer, headers in answers]


def _ready_slots(lab: ClusterLab) -> list[tuple[str, int]]:
    rows = lab.status("gw")["nodes"]
    return sorted(
        (row["node_id"], replica["slot"])
        for row in rows
        if row["model_eligible"]
        for replica in row["replicas"]
        if replica["state"] == "ready"
    )


def test_a_bundle_becomes_replicas_and_nothing_that_dies_is_an_outage(tmp_path: Path) -> None:
    roles: Any = {"gw": ("authority", "gateway"), "w1": ("worker",), "w2": ("worker",)}
    program = engine_program(tmp_path, token_delay_s=0.01)
    served = clustered(member(weights(tmp_path), program), replicas=2, spread_by=("node_id",))
    with ClusterLab(tmp_path / "lab", roles) as lab:
        lines = lab.publish("gw", lab.bundle({"q": served}, 1), None)
        result = lines[-1].get("result", {})
        assert (result.get("ready"), result.get("in_store"), result.get("unplaced")) == (True, True, {}), lab.logs()
        assert {name: one["state"] for name, one in result["nodes"].items()} == dict.fromkeys(roles, "ready")
        assert any("w1: ready" in line["progress"]["note"] for line in lines[:-1])
        assert sorted(_placed(lab).values()) == ["w1", "w2"]
        assert _asked(lab) == [(200, "peer")] * 4

        # the same again is only waited for; an older one and one for another revision are refused
        assert lab.publish("gw", lab.bundle({"q": served}, 1), None)[-1]["result"]["ready"]
        assert lab.publish("gw", lab.bundle({"q": served}, 3), 2)[-1]["error"]["code"] == "bundle.revision_conflict"
        assert lab.publish("w1", lab.bundle({"q": served}, 2), 1)[-1]["error"]["code"] == "cluster.not_authority"
        host_bundle = lab.runtimes["w1"].apply(
            lab.operator.bundle(content({"q": member(weights(tmp_path), program)}), 1), None
        )
        assert host_bundle["error"]["code"] == "bundle.cluster_authority"

        # a worker dies: whoever asks next is answered by the other, and its replica finds a new place
        lab.kill("w1")
        assert _asked(lab) == [(200, "peer")] * 4
        until(lambda: sorted(_placed(lab).values()) == ["w2", "w2"], "the replica finds no other place")
        until(lambda: len(_ready_slots(lab)) == 2, "the moved replica is not ready")
        assert _asked(lab) == [(200, "peer")] * 4
        lab.start("w1").await_healthy(60)
        until(lambda: sorted(_placed(lab).values()) == ["w1", "w2"], "the node that is back gets nothing")
        until(lambda: {node for node, _ in _ready_slots(lab)} == {"w1", "w2"}, "not ready on both")
        until(lambda: len(_ready_slots(lab)) == 2, "the former place still runs")

        # the store dies: requests are answered, and a worker that starts anew serves what it was assigned
        lab.store.kill()
        assert _asked(lab) == [(200, "peer")] * 4
        until(lambda: lab.status("gw")["store"]["state"] == "lost", "nobody says that the store is gone")
        lab.kill("w2")
        lab.start("w2").await_healthy(60)
        row = lab.runtimes["w2"].await_state("q", "ready", 60)
        assert row["replicas"]
        assert _asked(lab) == [(200, "peer")] * 4

        # so does a gateway: it asks the nodes that it knew
        lab.kill("gw")
        lab.start("gw").await_healthy(60)
        until(lambda: _asked(lab, 1) == [(200, "peer")], "the gateway forgot whom to ask")

        # it is back without its data: the authority gives it everything again, in a new epoch
        lab.store.wipe()
        lab.store.start()
        lab.store.wait_ready()
        until(lambda: lab.status("gw")["store"]["state"] == "connected", "the store is not found again")
        changed = clustered(member(weights(tmp_path), program, max_concurrency=3), replicas=2, spread_by=("node_id",))
        with lab.recorder() as recorder:
            recorder.load(lab.gateway("gw", "q-model"))
            lines = lab.publish("gw", lab.bundle({"q": changed}, 2), 1, wait_s=90)
            assert lines[-1].get("result", {}).get("ready"), (lines[-3:], lab.logs())
        assert not [one for one in recorder.history().of(Asked) if one.outcome != "ok"], lab.logs()
        assert lab.status("gw")["placement"]["deployments"]["q"]["generation"] == 2

        # a gateway that starts anew knows its cluster from the store
        lab.kill("gw")
        lab.start("gw").await_healthy(60)
        until(lambda: _asked(lab, 1) == [(200, "peer")], "the gateway finds nobody")
