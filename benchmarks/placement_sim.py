"""What placement costs, how it grows, and who moves when the fleet changes.

    python benchmarks/placement_sim.py [--quick]

Fleets of four kinds of hosts in three zones, deployments of five sizes with one to four replicas, filled to about 60 % of the devices. Each size is
placed from nothing, evaluated again without a change, and changed: one node lost, one joined, a zone of a tenth of the nodes lost.
*Ideal* is what a placement must move: on a loss the replicas that lay there, on a join the newcomer's share of all weights.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable
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

_KINDS: Final = ((8, 80, "NVIDIA A100-SXM4-80GB", 1024), (4, 48, "NVIDIA L40S", 512), (2, 24, "NVIDIA GeForce RTX 4090", 128), (1, 24, "NVIDIA L4", 64))
_SIZES: Final = ((6, 1), (14, 1), (22, 1), (40, 2), (70, 4))
"""GiB on each of so many devices."""
_LLAMA: Final = EngineOffer("llama_cpp", "b9905", accelerators=frozenset({"cuda", "cpu"}))
_POLICY: Final = PlacementPolicy(moves_max=1_000_000)


def node(number: int, random_: random.Random) -> Node:
    count, size, name, memory = random_.choice(_KINDS)
    labels = {"zone": "abc"[number % 3], "rack": f"r{number % 40}", "host": f"node-{number:05d}"}
    devices = tuple(Device(index, "cuda", size * GIB, name) for index in range(count))
    return Node(f"node-{number:05d}", labels=labels, memory_bytes=memory * GIB, devices=devices, engines=(_LLAMA,), heard_at_ms=1)


def demand(number: int, random_: random.Random) -> DeploymentDemand:
    size, devices = random_.choices(_SIZES, weights=(40, 30, 20, 8, 2))[0]
    digest = f"{number:064x}"
    way = Way("q4", digest, digest, "llama_cpp", GIB, "cuda", devices, size * GIB, artifact_format="gguf")
    return DeploymentDemand(
        f"model-{number:05d}", digest, (way,), replicas=random_.choice((1, 2, 2, 3, 4)), spread_by=random_.choice(((), ("zone",), ("zone", "rack")))
    )


def settled(view: ClusterView, plan: PlacementPlan, mark: int) -> ClusterView:
    """The same nodes, where every target is ready and has its weights, and nothing else runs."""
    shown: dict[str, list[ObservedReplica]] = {}
    for name, placed in plan.deployments.items():
        for place in placed.target:
            one = ObservedReplica(name, place.generation, place.variant, place.artifact_digest, "ready", slot=place.slot)
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


def moved(before: PlacementPlan, after: PlacementPlan) -> int:
    old, new = lie(before), lie(after)
    return sum(new.get(key) not in {None, place} for key, place in old.items())


class Fleet:
    """A settled fleet that is changed and evaluated again."""

    def __init__(self, nodes: int, deployments: int, seed: int = 1) -> None:
        random_ = random.Random(seed)
        self.demands = [demand(number, random_) for number in range(deployments)]
        self.view = ClusterView({f"node-{number:05d}": node(number, random_) for number in range(nodes)})
        self.spare = node(nodes, random_)
        began = time.process_time()
        plan = reconcile(self.view, self.demands, PlacementPlan(), now_ms=2, mark=(1, 1), policy=_POLICY)
        self.first_s = time.process_time() - began
        self.view = settled(self.view, plan, 1)
        self.plan = reconcile(self.view, self.demands, plan, now_ms=3, mark=(1, 2), policy=_POLICY)
        began = time.process_time()
        self.plan = reconcile(self.view, self.demands, self.plan, now_ms=4, mark=(1, 3), policy=_POLICY)
        self.again_s = time.process_time() - began
        self.replicas = len(lie(self.plan))
        self.unplaced = sum(placed.unplaced for placed in self.plan.deployments.values())

    def without(self, names: Iterable[str]) -> PlacementPlan:
        view = replace(self.view, removed=frozenset(names))
        return reconcile(view, self.demands, self.plan, now_ms=5, mark=(1, 4), policy=_POLICY)

    def loss(self, names: list[str]) -> float:
        """Moves on this loss, of those that were needed."""
        needed = sum(place in names for place in lie(self.plan).values())
        return moved(self.plan, self.without(names)) / needed if needed else 1.0

    def join(self) -> tuple[float, bool]:
        """Moves to a node that joins, of its fair share, once nothing moves any more; and whether all of them went there."""
        view = replace(self.view, nodes={**self.view.nodes, self.spare.node_id: self.spare})
        plan, mark = self.plan, 4
        while True:
            after = reconcile(view, self.demands, plan, now_ms=5 + mark, mark=(1, mark), policy=_POLICY)
            if lie(after) == lie(plan):
                break
            view, plan, mark = settled(view, after, mark), after, mark + 1
        there = sum(place == self.spare.node_id for place in lie(plan).values())
        gained = moved(self.plan, plan)
        fair = 0.0
        for one in self.demands:
            able = [n for n in view.nodes.values() if n.devices[0].total_bytes >= one.ways[0].device_bytes and len(n.devices) >= one.ways[0].devices]
            total = sum(len(n.devices) * n.devices[0].total_bytes for n in able)
            if self.spare in able or any(n.node_id == self.spare.node_id for n in able):
                fair += one.replicas * len(self.spare.devices) * self.spare.devices[0].total_bytes / total
        return gained / fair if fair else 1.0, gained == there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 1,000 nodes")
    quick = parser.parse_args().quick
    sizes = [(100, 100), (300, 300), (1000, 1000)]
    sizes += [] if quick else [(10_000, 1000), (1000, 10_000), (10_000, 10_000)]
    print(f"{'nodes':>7} {'deploym.':>9} {'replicas':>9} {'unplaced':>9} {'first CPU s':>12} {'ns/pair':>8} {'again CPU s':>12}")
    for nodes, deployments in sizes:
        fleet = Fleet(nodes, deployments)
        print(
            f"{nodes:>7} {deployments:>9} {fleet.replicas:>9} {fleet.unplaced:>9} {fleet.first_s:>12.2f} "
            f"{fleet.first_s / nodes / deployments * 1e9:>8.0f} {fleet.again_s:>12.2f}"
        )
    print()
    print(f"{'nodes':>7} {'deploym.':>9} {'one lost':>22} {'a tenth lost':>13} {'one joined':>11} {'to the newcomer alone':>22}")
    for nodes, deployments in ((30, 60), (100, 200), (300, 600)):
        fleet = Fleet(nodes, deployments, seed=2)
        names = sorted(fleet.view.nodes)
        losses = [fleet.loss([name]) for name in random.Random(3).sample(names, min(20, nodes))]
        ratio, alone = fleet.join()
        tenth = fleet.loss(random.Random(4).sample(names, nodes // 10))
        told = f"{statistics.mean(losses):.2f} (at most {max(losses):.2f})"
        print(f"{nodes:>7} {deployments:>9} {told:>22} {tenth:>13.2f} {ratio:>11.2f} {'yes' if alone else 'NO':>22}")
    print("\nlost, joined: moves / ideal. A node that has the weights counts twice, so a newcomer takes between half of its share and all of it.")


if __name__ == "__main__":
    main()
