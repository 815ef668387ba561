"""Weighted rendezvous: every node has a score for a deployment, the highest wins.

    u     = 52 bits of BLAKE2b(deployment, 0, node), as a number between 0 and 1
    score = -weight / ln u

A node wins with a probability of exactly its share of all weights, and a score depends on nothing but the deployment's id, the node's id and
the node's own weight. So a node that joins can only take what it now wins, and a node that leaves only gives up what it had. The weight is
static capacity in steps of 256 MiB: neither load nor a few kilobytes of a new kernel change a rank. A generation is no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from math import log
from typing import Final

from sbctl.base.limits import MIB
from sbctl.placement.model import Node, Way

__all__ = ["Ranking", "weight_of"]

_STEP_BYTES: Final = 256 * MIB
_SCALE: Final = 2.0**-52
"""With half a step added, u is exact and never 0 or 1."""


def weight_of(node: Node, way: Way) -> float:
    """Of main memory for a way without devices, else of all devices of its kind together; at least one step."""
    size = sum(device.total_bytes for device in node.devices if device.runs(way)) if way.devices else node.memory_bytes
    return float(max(1, size // _STEP_BYTES))


class Ranking:
    """The scores of one deployment."""

    __slots__ = ("_prefix",)

    def __init__(self, deployment: str) -> None:
        self._prefix = blake2b(deployment.encode() + b"\0", digest_size=8)

    def score(self, node_id: str, weight: float) -> float:
        """Above 0; for the same weight, more for one node of each pair and always the same one."""
        return self.scores(((node_id.encode(), weight),))[0]

    def scores(self, nodes: Iterable[tuple[bytes, float]]) -> list[float]:
        """One each, in the order given; the hot loop of a placement."""
        scores = []
        copy, number, logarithm = self._prefix.copy, int.from_bytes, log
        for name, weight in nodes:
            one = copy()
            one.update(name)
            scores.append(weight / -logarithm(((number(one.digest(), "big") >> 12) + 0.5) * _SCALE))
        return scores
