"""What placement costs, how it grows, and who moves when the fleet changes.

    python benchmarks/placement_sim.py [--quick]

Fleets of four kinds of hosts in three zones, deployments of five sizes with one to four replicas. First what a placement from nothing costs,
and one that changes nothing. Then fleets of which a share of all device memory is taken, and what moves: one node lost, a tenth of them lost,
one joined. *Ideal* is what must move: on a loss the replicas that lay there, on a join the newcomer's share of all weights. Beside it the
same loss where every placement begins from nothing, as plain rendezvous would.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sbctl.base.limits import GIB
from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    Device,
    EngineOffer,
    Node,
    ObservedReplica,
    PlacementPlan,
    PlacementPolicy,
    Way,
)
from sbctl.placement.reconcile import reconcile
from sbctl.placement.rendezvous import weight_of
from sbctl.placement.room import fits_alone

_KINDS: Final = (
    (8, 80, "NVIDIA A100-SXM4-80GB", 1024),
    (4, 48, "NVIDIA L40S", 512),
    (2, 24, "NVIDIA GeForce RTX 4090", 128),
    (1, 24, "NVIDIA L4", 64),
)
_SIZES: Final = ((6, 1), (14, 1), (22, 1), (40, 2), (70, 4))
"""GiB on each of so many devices."""
_LLAMA: Final = EngineOffer("llama_cpp", "b9905", accelerators=frozenset({"cuda", "cpu"}))
_POLICY: Final = PlacementPolicy(moves_max=1_000_000)


def node(number: int, random_: random.Random) -> Node:
    count, size, name, memory = random_.choice(_KINDS)
    labels = {"zone": "abc"[number % 3], "rack": f"r{number % 40}", "host": f"node-{number:05d}"}
    devices = tuple(Device(index, "cuda", size * GIB, name) for index in range(count))
    return Node(
        f"node-{number:05d}",
        labels=labels,
        memory_bytes=memory * GIB,
        devices=devices,
        engines=(_LLAMA,),
        heard_at_ms=1,
    )


def demand(number: int, random_: random.Random) -> DeploymentDemand:
    size, devices = random_.choices(_SIZES, weights=(40, 30, 20, 8, 2))[0]
    digest = f"{number:064x}"
    way = Way("q4", digest, digest, "llama_cpp", GIB, "cuda", devices, size * GIB, artifact_format="gguf")
    return DeploymentDemand(
        f"model-{number:05d}",
        digest,
        (way,),
        replicas=random_.choice((1, 2, 2, 3, 4)),
        spread_by=random_.choice(((), ("zone",), ("zone", "rack"))),
    )


def settled(view: ClusterView, plan: PlacementPlan, mark: int) -> ClusterView:
    """The same nodes, where every target is ready and has its weights, and nothing else runs."""
    shown: dict[str, list[ObservedReplica]] = {}
    for name, placed in plan.deployments.items():
        for place in placed.target:
            one = ObservedReplica(
                name, place.generation, place.variant, place.artifact_digest, "ready", slot=place.slot
            )
            shown.setdefault(place.node_id, []).append(one)
    nodes = {
        name: replace(
            one,
            replicas=tuple(shown.get(name, ())),
            ready_artifacts=frozenset(replica.artifact_digest for replica in shown.get(name, ())),
            acknowledged=(1, mark),
        )
        for name, one in view.nodes.items()
    }
    return replace(view, nodes=nodes)


def lie(plan: PlacementPlan) -> dict[tuple[str, int], str]:
    return {(name, place.slot): place.node_id for name, placed in plan.deployments.items() for place in placed.target}


class Fleet:
    """A settled fleet that is changed and evaluated again."""

    def __init__(self, nodes: list[Node], demands: list[DeploymentDemand], spare: Node) -> None:
        self.demands, self.spare = demands, spare
        self.bare = ClusterView({one.node_id: one for one in nodes})
        self.first, self.first_s = self._timed(self.bare, PlacementPlan(), 1)
        self.view = settled(self.bare, self.first, 1)
        self.plan, _ = self._timed(self.view, self.first, 2)
        self.plan, self.again_s = self._timed(self.view, self.plan, 3)
        self.replicas = len(lie(self.plan))
        self.unplaced = sum(placed.unplaced for placed in self.plan.deployments.values())

    def _timed(self, view: ClusterView, plan: PlacementPlan, mark: int) -> tuple[PlacementPlan, float]:
        began = time.process_time()
        after = reconcile(view, self.demands, plan, now_ms=2 + mark, mark=(1, mark), policy=_POLICY)
        return after, time.process_time() - began

    def loss(self, names: Collection[str]) -> float | None:
        """Moves on this loss, of those that were needed; None where none was."""
        needed = sum(place in names for place in lie(self.plan).values())
        after, _ = self._timed(replace(self.view, removed=frozenset(names)), self.plan, 4)
        stayed = Counter((name, place) for (name, _), place in lie(after).items())
        return (needed + self._left(self.plan, names, stayed)) / needed if needed else None

    def loss_from_nothing(self, name: str) -> float | None:
        needed = sum(place == name for place in lie(self.first).values())
        after, _ = self._timed(replace(self.bare, removed=frozenset({name})), PlacementPlan(), 1)
        lies = Counter((name, place) for (name, _), place in lie(after).items())
        return (needed + self._left(self.first, {name}, lies)) / needed if needed else None

    @staticmethod
    def _left(before: PlacementPlan, names: Collection[str], after: Counter[tuple[str, str]]) -> int:
        """Replicas that left a node though it is still there."""
        lay = Counter((name, place) for (name, _), place in lie(before).items() if place not in names)
        return sum((lay - after).values())

    def join(self) -> tuple[float, bool]:
        """Moves until nothing moves any more, of the newcomer's fair share; and whether all of them went to it."""
        view = replace(self.view, nodes={**self.view.nodes, self.spare.node_id: self.spare})
        plan, mark = self.plan, 4
        while True:
            after, _ = self._timed(view, plan, mark)
            if lie(after) == lie(plan):
                break
            view, plan, mark = settled(view, after, mark), after, mark + 1
        there = sum(place == self.spare.node_id for place in lie(plan).values())
        gained = sum(lie(plan)[key] != place for key, place in lie(self.plan).items())
        return gained / self._fair_share(view), gained <= there

    def _fair_share(self, view: ClusterView) -> float:
        fair = 0.0
        for one in self.demands:
            way = one.ways[0]
            able = {n.node_id: weight_of(n, way) for n in view.nodes.values() if fits_alone(n, way)}
            fair += one.replicas * able.get(self.spare.node_id, 0.0) / sum(able.values())
        return fair


def sized(nodes: int, deployments: int) -> Fleet:
    random_ = random.Random(1)
    demands = [demand(number, random_) for number in range(deployments)]
    return Fleet([node(number, random_) for number in range(nodes)], demands, node(nodes, random_))


def filled(nodes: int, percent: int) -> Fleet:
    """With deployments until they ask for this much of all device memory."""
    random_ = random.Random(2)
    found = [node(number, random_) for number in range(nodes)]
    left = sum(device.total_bytes for one in found for device in one.devices) * percent // 100
    demands: list[DeploymentDemand] = []
    while left > 0:
        demands.append(demand(len(demands), random_))
        left -= demands[-1].replicas * demands[-1].ways[0].devices * demands[-1].ways[0].device_bytes
    spare = next(one for number in itertools.count(nodes) if len((one := node(number, random_)).devices) == 8)
    return Fleet(found, demands, spare)


def costs(sizes: Iterable[tuple[int, int]]) -> None:
    print(
        f"{'nodes':>6} {'deployments':>12} {'replicas':>9} {'from nothing, CPU s':>20} {'ns a pair':>10} {'no change, CPU s':>17}"
    )
    for nodes, deployments in sizes:
        fleet = sized(nodes, deployments)
        pair = fleet.first_s / nodes / deployments * 1e9
        print(
            f"{nodes:>6} {deployments:>12} {fleet.replicas:>9} {fleet.first_s:>20.2f} {pair:>10.0f} {fleet.again_s:>17.2f}"
        )


def moves(sizes: Iterable[tuple[int, int]]) -> None:
    print(
        f"{'nodes':>6} {'taken':>6} {'replicas':>9} {'unplaced':>9} {'one lost, mean':>15} {'most':>5} {'from nothing':>13} {'most':>5} "
        f"{'a tenth lost':>13} {'joined':>7} {'only to it':>11}"
    )
    for nodes, percent in sizes:
        fleet = filled(nodes, percent)
        names = random.Random(3).sample(sorted(fleet.view.nodes), min(20, nodes))
        kept = [ratio for name in names if (ratio := fleet.loss({name})) is not None]
        plain = [ratio for name in names if (ratio := fleet.loss_from_nothing(name)) is not None]
        tenth = fleet.loss(set(random.Random(4).sample(sorted(fleet.view.nodes), nodes // 10))) or 1.0
        share, alone = fleet.join()
        print(
            f"{nodes:>6} {percent:>5}% {fleet.replicas:>9} {fleet.unplaced:>9} {statistics.mean(kept):>15.2f} {max(kept):>5.2f} "
            f"{statistics.mean(plain):>13.2f} {max(plain):>5.2f} {tenth:>13.2f} {share:>7.2f} {'yes' if alone else 'NO':>11}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 nodes and 1,000 deployments")
    quick = parser.parse_args().quick
    costs([(100, 100), (300, 300), (1000, 1000), *([] if quick else [(3000, 3000), (10_000, 1000), (10_000, 10_000)])])
    print("\nMoves / ideal")
    moves([(30, 50), (30, 85), (100, 50), (100, 85), *([] if quick else [(300, 50), (300, 85)])])
    print("\nA node that has the weights counts twice, so a newcomer takes less than its share of what lies still.")


if __name__ == "__main__":
    main()
