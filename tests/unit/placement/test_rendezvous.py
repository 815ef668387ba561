"""Weighted rendezvous: shares as weights, and a score that nothing else changes."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import replace

import pytest

from sbctl.base.limits import GIB, MIB
from sbctl.placement.rendezvous import Ranking, weight_of
from tests.simulators.placement_world import cpu_node, demand_of, gpu_node


def test_a_node_wins_as_often_as_its_share_of_all_weights() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.5}
    wins: Counter[str] = Counter()
    for number in range(6000):
        ranking = Ranking(f"model-{number}")
        wins[max(weights, key=lambda name: ranking.score(name, weights[name]))] += 1
    for name, weight in weights.items():
        assert wins[name] / 6000 == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_a_score_is_what_the_page_says() -> None:
    number = int(hashlib.blake2b(b"chat\0gpu-a", digest_size=8).hexdigest(), 16) // 2**12
    assert Ranking("chat").score("gpu-a", 96.0) == pytest.approx(-96.0 / math.log((number + 0.5) / 2**52))


def test_names_do_not_run_into_each_other() -> None:
    assert Ranking("ab").score("c", 1.0) != Ranking("a").score("bc", 1.0)


@pytest.mark.parametrize(
    ("memory_bytes", "weight"),
    [(0, 1), (100 * MIB, 1), (256 * MIB, 1), (16 * GIB, 64), (16 * GIB + 255 * MIB, 64), (16 * GIB - 1, 63)],
)
def test_the_weight_is_static_capacity_in_steps(memory_bytes: int, weight: float) -> None:
    node = replace(cpu_node("n"), memory_bytes=memory_bytes)
    assert weight_of(node, demand_of("a").ways[0]) == weight


def test_a_way_on_devices_weighs_all_devices_of_its_kind_together() -> None:
    assert weight_of(gpu_node("n", 4, 24), demand_of("a", devices=1).ways[0]) == 4 * 24 * 4
