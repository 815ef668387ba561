"""What an operator does to a cluster at night, on real processes: a worker emptied under load, two that died confirmed, and what is told of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.runtime.event_log import read_events
from tests.simulators.cluster_nodes import ClusterLab, clustered
from tests.simulators.cluster_nodes import until as until_within
from tests.simulators.runtime_world import engine_program, member, weights

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROLES: Any = {"gw": ("authority", "gateway"), "w1": ("worker",), "w2": ("worker",), "w3": ("worker",)}


def until(condition: Callable[[], bool], what: str) -> None:
    until_within(condition, what, within_s=120)


def _asked(lab: ClusterLab, action: str, subject: str) -> dict[str, Any]:
    body = {"action": action, "subject": subject, "by": "ops", "reason": "at night"}
    _, data = lab.runtimes["gw"].call("POST", "/control/v1/cluster/actions", body)
    answer: dict[str, Any] = json.loads(data)
    return answer.get("result") or answer["error"]


def _placed(lab: ClusterLab) -> list[str]:
    return sorted(one["node_id"] for one in lab.status("gw")["placement"]["deployments"]["q"]["assignments"])


def _ready(lab: ClusterLab) -> list[str]:
    rows = lab.status("gw")["nodes"]
    return sorted(
        row["node_id"]
        for row in rows
        if row["model_eligible"]
        for replica in row["replicas"]
        if replica["state"] == "ready"
    )


def test_a_worker_is_emptied_under_load_and_dead_ones_are_confirmed(tmp_path: Path) -> None:
    program = engine_program(tmp_path)
    served = clustered(member(weights(tmp_path), program), replicas=3, spread_by=("node_id",))
    answers: list[int] = []
    stop = threading.Event()

    with ClusterLab(tmp_path / "lab", ROLES) as lab:
        assert lab.publish("gw", lab.bundle({"q": served}, 1), None, wait_s=120)[-1]["result"]["ready"], lab.logs()

        def ask() -> None:
            while not stop.is_set():
                answers.append(lab.runtimes["gw"].ask()[0])

        caller = threading.Thread(target=ask)
        caller.start()
        try:
            assert _asked(lab, "confirm_lost", "w1")["code"] == "node_is_heard"
            assert _asked(lab, "evacuate", "w1")["changed"]
            until(lambda: "w1" not in _placed(lab) and "w1" not in _ready(lab), "w1 is not emptied")
            until(lambda: len(_ready(lab)) == 3, "its replica is not ready elsewhere")
        finally:
            stop.set()
            caller.join()
        assert set(answers) == {200}, (set(answers), lab.logs())
        assert not _asked(lab, "evacuate", "w1")["changed"]
        assert [(one["action"], one["subject"]) for one in lab.status("gw")["actions"]] == [("evacuate", "w1")]

        # who decides dies, and what was asked holds; then it is taken back
        lab.kill("gw")
        lab.start("gw").await_healthy(180)
        until(lambda: lab.status("gw")["is_lease_holder"], "nobody leads")
        assert [(one["action"], one["subject"]) for one in lab.status("gw")["actions"]] == [("evacuate", "w1")]
        assert "w1" not in _placed(lab)
        assert _asked(lab, "restore", "w1")["changed"]
        until(lambda: _ready(lab) == ["w1", "w2", "w3"], "w1 gets nothing again")

        # two of three die: nobody is replaced until an operator says who is gone
        lab.kill("w2")
        lab.kill("w3")
        until(lambda: bool(lab.status("gw")["brake"]), "the brake is not on")
        assert _placed(lab) == ["w1", "w2", "w3"]
        for name in ("w2", "w3"):
            assert _asked(lab, "confirm_lost", name)["changed"]
        until(lambda: _ready(lab) == ["w1", "w1", "w1"], "what the dead ran is not placed elsewhere")
        assert not lab.status("gw")["brake"]
        lab.start("w2").await_healthy(180)
        until(lambda: [one["subject"] for one in lab.status("gw")["actions"]] == ["w3"], "w2 counts as gone still")

        kinds = {
            "bundle.accepted", "cluster.lease_taken", "cluster.rollout_started", "cluster.rollout_done", "cluster.action",
            "cluster.placement_changed", "cluster.node_unreachable", "cluster.brake_engaged", "cluster.brake_released",
            "cluster.node_lost", "cluster.node_back",
        }  # fmt: skip

        def told() -> set[str]:
            found = read_events(lab.folder / "gw" / "state" / "runtime.db", after=None, limit=500)
            return {str(one.kind) for one in found.events}

        until(lambda: kinds <= told(), f"not all is told: {sorted(kinds)}")
