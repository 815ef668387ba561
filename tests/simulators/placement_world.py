"""Nodes that obey a placement with delays of their own: engines load, fail, drain; words arrive late; nodes fall silent and come back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from random import Random
from typing import Literal

from sbctl.base.limits import GIB
from sbctl.placement.assignments import Assignment, assignments
from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    Device,
    EngineOffer,
    Mark,
    Node,
    ObservedReplica,
    Place,
    PlacementPlan,
    PlacementPolicy,
    Way,
)
from sbctl.placement.reconcile import reconcile

__all__ = ["LLAMA", "PlacementWorld", "cpu_node", "demand_of", "gpu_node", "lie"]

LLAMA = EngineOffer("llama_cpp", "b9905", accelerators=frozenset({"cpu", "cuda"}), formats=frozenset({"gguf"}))


def cpu_node(name: str, memory_gib: int = 16, **labels: str) -> Node:
    return Node(name, labels=labels, memory_bytes=memory_gib * GIB, engines=(LLAMA,))


def gpu_node(name: str, devices: int = 1, gib: int = 24, *, memory_gib: int = 64, **labels: str) -> Node:
    found = tuple(Device(index, "cuda", gib * GIB, f"gpu-{gib}") for index in range(devices))
    return Node(name, labels=labels, memory_bytes=memory_gib * GIB, engines=(LLAMA,), devices=found)


def demand_of(
    name: str,
    replicas: int = 1,
    *,
    gib: int = 4,
    version: int = 1,
    devices: int = 0,
    rollout: Literal["rolling", "recreate"] = "rolling",
    spread_by: tuple[str, ...] = (),
    required_labels: dict[str, str] | None = None,
    warm: bool = True,
) -> DeploymentDemand:
    digest = sha256(f"{name} {version}".encode()).hexdigest()
    way = Way(
        variant=f"v{version}",
        artifact_digest=digest,
        member_digest=digest,
        engine="llama_cpp",
        host_bytes=gib * GIB if not devices else GIB,
        accelerator="cuda" if devices else "cpu",
        devices=devices,
        device_bytes=gib * GIB if devices else 0,
        artifact_format="gguf",
    )
    return DeploymentDemand(
        name,
        digest,
        (way,),
        replicas=replicas,
        spread_by=spread_by,
        required_labels=required_labels or {},
        rollout=rollout,
        warm=warm,
        handoff_timeout_ms=60_000,
        drain_timeout_ms=10_000,
    )


def lie(plan: PlacementPlan) -> dict[tuple[str, int], str]:
    """Where each replica of each deployment is meant to be."""
    return {(name, place.slot): place.node_id for name, one in plan.deployments.items() for place in one.target}


@dataclass
class _Engine:
    place: Place
    state: Literal["preparing", "ready", "draining", "failed"] = "preparing"


@dataclass
class _Worker:
    node: Node
    engines: dict[tuple[str, int, int], _Engine] = field(default_factory=dict)
    own: list[ObservedReplica] = field(default_factory=list)
    """Engines of a bundle of its own, until it obeys its first assignment."""
    told: list[tuple[Mark, tuple[Assignment, ...]]] = field(default_factory=list)
    """Assignments on their way, in order."""
    obeyed: Mark = (0, 0)
    is_cut: bool = False
    is_dead: bool = False


class PlacementWorld:
    """`broken`: (deployment, variant) whose engines fail instead of becoming ready. Time passes only with `evaluate`."""

    def __init__(self, nodes: Iterable[Node], policy: PlacementPolicy | None = None, *, seed: int = 0) -> None:
        self.workers = {node.node_id: _Worker(node) for node in nodes}
        self.demands: dict[str, DeploymentDemand] = {}
        self.broken: set[tuple[str, str]] = set()
        self.policy = policy or PlacementPolicy()
        self.plan = PlacementPlan()
        self.now_ms = 1_000_000
        self.mark: Mark = (1, 0)
        self.removed: set[str] = set()
        self.starts = 0
        self.confirmed: set[str] = set()
        self.began_ms = self.now_ms
        self._random = Random(seed)
        self._view: dict[str, Node] = {}

    # --- what happens

    def want(self, *demands: DeploymentDemand) -> None:
        self.demands |= {demand.deployment: demand for demand in demands}

    def had(self, name: str, demand: DeploymentDemand, generation: int, count: int = 1) -> None:
        """Before there was a cluster, this node ran a deployment by a bundle of its own."""
        way = demand.ways[0]
        self.workers[name].own += [
            ObservedReplica(
                demand.deployment,
                generation,
                way.variant,
                way.artifact_digest,
                "ready",
                member_digest=way.member_digest,
            )
        ] * count

    def evaluate(
        self,
        seconds: float = 5.0,
        *,
        fresh: bool = True,
        tried_again: Mapping[str, int] | None = None,
    ) -> PlacementPlan:
        """Hear the nodes, evaluate, tell the nodes (who may not have heard it yet). Not `fresh`: by what they said before."""
        self.now_ms += int(seconds * 1000)
        if fresh:
            self.publish()
        self.mark = (self.mark[0], self.mark[1] + 1)
        self.plan = reconcile(
            self.view,
            self.demands.values(),
            self.plan,
            now_ms=self.now_ms,
            mark=self.mark,
            policy=self.policy,
            confirmed_losses=self.confirmed,
            tried_again=tried_again or {},
        )
        for name, told in assignments(self.plan, self.view).items():
            slots = [(part.deployment, part.generation, place.slot) for part in told for place in part.places]
            assert len(slots) == len(set(slots)), f"{name} is told one replica twice: {told}"
            if name in self.workers:
                self.workers[name].told.append((self.mark, told))
        return self.plan

    @property
    def view(self) -> ClusterView:
        return ClusterView(self._view, self.began_ms, frozenset(self.removed), frozenset(self.workers))

    def publish(self) -> None:
        for name, worker in self.workers.items():
            if not worker.is_cut and not worker.is_dead:
                self._view[name] = self._snapshot(worker)

    def work(self, name: str, *, engines: bool = True) -> None:
        """One node reads what it was told last, and its engines get one step further."""
        worker = self.workers[name]
        if worker.is_dead:
            return
        if worker.told and not worker.is_cut:
            self._obey(worker, *worker.told.pop())
            worker.told.clear()
        if engines:
            self._progress(worker)

    def settle(self, rounds: int = 12) -> PlacementPlan:
        """Everybody obeys at once, again and again."""
        for _ in range(rounds):
            self.evaluate()
            for _ in range(3):
                for name in sorted(self.workers):
                    self.work(name)
        return self.evaluate()

    def evacuate(self, name: str, *, begin: bool) -> None:
        self.workers[name].node = replace(self.workers[name].node, drain="evacuate" if begin else "")

    def cut(self, name: str) -> None:
        self.workers[name].is_cut = True

    def kill(self, name: str) -> None:
        self.workers[name].is_dead = True
        self.workers[name].engines.clear()

    def heal(self, name: str) -> None:
        self.workers[name].is_cut = self.workers[name].is_dead = False

    def new_controller(self, *, plan_lost: bool) -> None:
        """Another lease-holder: it has heard nobody, and maybe the plan is gone too."""
        self.mark, self.began_ms, self._view = (self.mark[0] + 1, 0), self.now_ms, {}
        self.plan = PlacementPlan() if plan_lost else self.plan

    # --- what is

    def live(self, deployment: str, *, reachable: bool = False) -> list[tuple[str, Place]]:
        """Engines with a process. `reachable`: only of nodes that obey."""
        return [
            (name, engine.place)
            for name, worker in self.workers.items()
            if not (reachable and worker.is_cut)
            for (which, _, _), engine in worker.engines.items()
            if which == deployment and engine.state != "failed"
        ]

    def serving(self, deployment: str) -> int:
        return sum(
            engine.state == "ready"
            for worker in self.workers.values()
            if not worker.is_cut and not worker.is_dead
            for (which, _, _), engine in worker.engines.items()
            if which == deployment
        ) + sum(one.deployment == deployment for worker in self.workers.values() for one in worker.own)

    def overdrawn(self) -> list[str]:
        """Nodes whose live engines need more than there is."""
        found = []
        for name, worker in self.workers.items():
            places = [engine.place for engine in worker.engines.values() if engine.state != "failed"]
            host = sum(place.host_bytes for place in places)
            devices = {
                device.index: sum(place.device_bytes for place in places if device.index in place.devices)
                for device in worker.node.devices
            }
            most = worker.node.max_engines
            if (
                (most is not None and len(places) > most)
                or host > worker.node.memory_bytes
                or any(devices[d.index] > d.total_bytes for d in worker.node.devices)
            ):
                found.append(name)
        return found

    def _snapshot(self, worker: _Worker) -> Node:
        shown = tuple(
            ObservedReplica(
                deployment=which,
                generation=generation,
                variant=engine.place.variant,
                artifact_digest=engine.place.artifact_digest,
                state=engine.state,
                slot=slot,
                member_digest=engine.place.member_digest,
                devices=engine.place.devices,
                reserved_bytes=engine.place.host_bytes + engine.place.device_bytes * len(engine.place.devices),
            )
            for (which, generation, slot), engine in sorted(worker.engines.items())
        ) + tuple(worker.own)
        weights = worker.node.ready_artifacts | {one.artifact_digest for one in shown}
        worker.node = replace(worker.node, ready_artifacts=weights)
        return replace(worker.node, heard_at_ms=self.now_ms, replicas=shown, acknowledged=worker.obeyed)

    def _obey(self, worker: _Worker, mark: Mark, parts: tuple[Assignment, ...]) -> None:
        worker.obeyed = mark
        _take_over(worker, parts)
        kept = set()
        for part in parts:
            for place in part.places:
                key = (part.deployment, part.generation, place.slot)
                if part.phase == "start":
                    known = worker.engines.get(key)
                    if known is None or known.state in {"failed", "draining"}:
                        worker.engines[key] = _Engine(place)
                        self.starts += 1
                if part.phase != "drain":
                    kept.add(key)
        for key, engine in list(worker.engines.items()):
            if key not in kept:
                if engine.state == "ready":
                    engine.state = "draining"
                elif engine.state != "draining":
                    del worker.engines[key]

    def _progress(self, worker: _Worker) -> None:
        for key, engine in list(worker.engines.items()):
            if engine.state == "preparing":
                is_broken = (key[0], engine.place.variant) in self.broken
                engine.state = "failed" if is_broken else "ready"
            elif engine.state == "draining":
                del worker.engines[key]


def _take_over(worker: _Worker, parts: tuple[Assignment, ...]) -> None:
    """An engine that is the very member of a replica to start becomes it; one to retain keeps its number and gets a slot."""
    free = [(part, place) for part in parts for place in part.places if part.phase != "drain"]
    for one in worker.own:
        for part, place in free:
            same = (part.deployment, part.member_digest) == (one.deployment, one.member_digest)
            if same and (part.phase == "start" or part.generation == one.generation):
                worker.engines[part.deployment, part.generation, place.slot] = _Engine(place, "ready")
                free.remove((part, place))
                break
    worker.own.clear()
