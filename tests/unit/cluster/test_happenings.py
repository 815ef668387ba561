"""What is told of one placement to the next: each thing once, with its deployment, and never more than a log can take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sbctl.placement.model import Brake, DeploymentPlacement, Loss, Place, PlacementPlan, Rollout
from sbctl.runtime.cluster.happenings import HAPPENINGS_MAX, happened
from sbctl.runtime.event_log import Told

NOTHING = PlacementPlan()


def _place(slot: int, node: str, generation: int = 1) -> Place:
    return Place(slot, node, generation, "v", "a" * 64, "b" * 64, "llama_cpp")


def _placed(*nodes: str, phase: str = "stable", generation: int = 1, **more: Any) -> DeploymentPlacement:
    target = tuple(_place(slot, node, generation) for slot, node in enumerate(nodes))
    rollout = Rollout(phase)  # type: ignore[arg-type]
    return DeploymentPlacement("q", "d" * 64, generation, 2, target=target, rollout=rollout, **more)


def _plan(placed: DeploymentPlacement | None = None, **more: Any) -> PlacementPlan:
    return PlacementPlan({} if placed is None else {"q": placed}, **more)


def _said(told: tuple[Told, ...]) -> list[str]:
    return [f"{one.kind.value.removeprefix('cluster.')}: {one.message}" for one in told]


STABLE = _plan(_placed("w1", "w2"))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (STABLE, STABLE, []),
        (NOTHING, _plan(_placed("w1", "w2", phase="starting")), ["rollout_started: generation 1 on w1, w2"]),
        (_plan(_placed("w1", "w2", phase="starting")), STABLE, ["rollout_done: generation 1 runs as placed"]),
        (STABLE, _plan(_placed("w1", "w3")), ["placement_changed: replica 1: w2 → w3"]),
        (STABLE, _plan(_placed("w1")), ["placement_changed: replica 1: w2 → nowhere", "replicas_unplaced: no place for 1 of 2 replicas: sbctl cluster status says why"]),
        (STABLE, NOTHING, ["placement_changed: it is gone, and nothing of it runs any more"]),
        (_plan(_placed("w1", "w2", phase="starting")), _plan(_placed("w1", "w2", phase="timed_out")),
         ["rollout_timed_out: generation 1 was not ready by the deadline: what serves goes on serving, the new goes on trying"]),
        (_plan(_placed("w1", "w2", phase="timed_out")), _plan(_placed("w1", "w2", phase="timed_out", tried=4)),
         ["rollout_started: generation 1 is tried again"]),
        (STABLE, replace(STABLE, losses={"w1": Loss("unreachable", 5)}),
         ["node_unreachable: w1 is silent: it keeps what it runs, and gets nothing new"]),
        (replace(STABLE, losses={"w1": Loss("unreachable", 5)}), replace(STABLE, losses={"w1": Loss("lost", 9)}),
         ["node_lost: w1 is lost: what it ran is placed elsewhere"]),
        (replace(STABLE, losses={"w1": Loss("lost", 9)}), STABLE, ["node_back: w1 is heard again, it was lost"]),
        (STABLE, replace(STABLE, brake=Brake(3, 4, 1, ("w1",))),
         ["brake_engaged: 3 of 4 workers are silent or were lost a short while ago, and at most 1 may be: nothing is placed anew for w1"]),
        (replace(STABLE, brake=Brake(3, 4, 1, ("w1",))), STABLE, ["brake_released: lost nodes are replaced again"]),
    ],
)  # fmt: skip
def test_each_change_is_told_once(before: PlacementPlan, after: PlacementPlan, expected: list[str]) -> None:
    assert _said(happened(before, after)) == expected


def test_who_comes_and_who_leaves_for_good_is_no_loss() -> None:
    silent = replace(STABLE, losses={"w9": Loss("unreachable", 5)})
    assert _said(happened(silent, STABLE, joined={"w3"}, left={"w9"})) == [
        "node_joined: w3 is a worker of the cluster now",
        "node_left: w9 is no worker of the cluster any more",
    ]


def test_a_rack_that_falls_silent_is_counted_rather_than_listed() -> None:
    many = replace(STABLE, losses={f"w{number}": Loss("lost", 5) for number in range(1000)})
    told = happened(STABLE, many)
    assert len(told) == HAPPENINGS_MAX
    assert told[-1].message.startswith(f"and {1000 - HAPPENINGS_MAX + 1} more at once")
