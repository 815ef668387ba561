"""The nodes of one view, indexed for many deployments: who may get something new, who matches labels, who could run a way at all.

Sets of nodes are integers with one bit a node, so a deployment meets nodes that differ in nothing but their name only once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sbctl.placement.model import (
    ClusterView,
    DeploymentDemand,
    Device,
    EngineOffer,
    Loss,
    Node,
    Refusal,
    Way,
)
from sbctl.placement.rendezvous import weight_of
from sbctl.placement.room import Room, device_groups

__all__ = ["UNKNOWN_DOMAIN", "Fleet", "refused_node", "refused_way"]

UNKNOWN_DOMAIN = "unknown"
"""The failure domain of nodes without the label."""


def refused_node(node: Node, demand: DeploymentDemand, loss: Loss | None) -> Refusal | None:
    """Why the node gets nothing new of a deployment, whatever the way; None: it may."""
    if not node.is_worker:
        return Refusal("not_worker")
    if loss is not None:
        return Refusal(
            "node_lost" if loss.state == "lost" else "node_unreachable", facts=(("since_unix_ms", loss.since_ms),)
        )
    if node.exclusion:
        return Refusal("node_excluded", facts=(("code", node.exclusion),))
    if node.health == "unhealthy":
        return Refusal("node_unhealthy", facts=(("codes", ", ".join(node.health_reasons)),))
    if node.drain:
        return Refusal("node_draining", facts=(("by", node.drain),))
    for label, wanted in sorted(demand.required_labels.items()):
        if node.labels.get(label) != wanted:
            missing = sum(node.labels.get(name) != value for name, value in demand.required_labels.items())
            told = (("label", label), ("wanted", wanted), ("has", node.labels.get(label, "")), ("missing", missing))
            return Refusal("required_labels", facts=told)
    if not node.has_endpoint:
        return Refusal("missing_endpoint")
    if not node.memory_bytes and not node.devices:
        return Refusal("no_capacity")
    return None


def refused_way(node: Node, demand: DeploymentDemand, way: Way) -> Refusal | None:
    """Why an empty node could not run a replica this way; None: it could."""
    offers = [offer for offer in node.engines if offer.engine == way.engine]
    if way.artifact_format and offers and not any(not o.formats or way.artifact_format in o.formats for o in offers):
        return Refusal("variant_incompatible", way.variant, (("engine", way.engine), ("format", way.artifact_format)))
    if refusal := _refused_devices(node, way):
        return refusal
    if node.memory_bytes < way.host_bytes:
        return _short(way, "host", way.host_bytes, node.memory_bytes)
    if not any(_runs(offer, way) for offer in offers):
        versions = ", ".join(sorted({offer.version or "by its path" for offer in offers if offer.usable}))
        told = (("engine", way.engine), ("wanted", way.engine_version or "any"), ("has", versions))
        return Refusal("engine_unavailable", way.variant, told)
    if demand.pull == "manual":
        missing = [digest for digest in way.wanted_artifacts if digest not in node.ready_artifacts]
        if missing:
            return Refusal("artifact_not_ready", way.variant, (("artifact", missing[0]), ("missing", len(missing))))
    return None


def _refused_devices(node: Node, way: Way) -> Refusal | None:
    if not way.devices:
        return None
    kind = [device for device in node.devices if device.runs(way)]
    if not kind:
        return Refusal("accelerator_incompatible", way.variant, (("wanted", way.accelerator),))
    if device_groups(node, way):
        return None
    if way.accelerator == "vulkan" and len(kind) != way.devices:
        every = (("all_devices", len(kind)), ("needed_devices", way.devices))
        return Refusal("accelerator_incompatible", way.variant, every)
    large = sorted((device.total_bytes for device in kind), reverse=True)
    if len(kind) < way.devices or large[way.devices - 1] >= way.device_bytes:
        enough = sum(size >= way.device_bytes for size in large)
        told = (
            ("place", "devices"),
            ("needed_devices", way.devices),
            ("has_devices", enough),
            ("short_devices", max(1, way.devices - enough)),
        )
        return Refusal("insufficient_memory", way.variant, told)
    return _short(way, "device", way.device_bytes, large[way.devices - 1])


def _short(way: Way, place: str, needed: int, has: int) -> Refusal:
    told = (("place", place), ("needed_bytes", needed), ("has_bytes", has), ("short_bytes", needed - has))
    return Refusal("insufficient_memory", way.variant, told)


def _runs(offer: EngineOffer, way: Way) -> bool:
    return (
        offer.usable
        and (way.engine_version is None or offer.any_version or offer.version == way.engine_version)
        and (not way.launch or not offer.launch or offer.launch == way.launch)
        and (not offer.accelerators or way.accelerator in offer.accelerators)
    )


class Fleet:
    """The view with what liveness made of it. `ids` are sorted, so nothing depends on the order in which nodes came."""

    def __init__(self, view: ClusterView, losses: Mapping[str, Loss], absent: Collection[str] = ()) -> None:
        """`absent`: nodes that hold places and of which nothing is known: they keep them, and get nothing."""
        self.losses = losses
        self.absent = frozenset(absent) - view.nodes.keys()
        self.by_id = {name: Node(name, exclusion="snapshot_missing") for name in self.absent} | dict(view.nodes)
        self.ids = sorted(self.by_id)
        self._position = {name: index for index, name in enumerate(self.ids)}
        self.nodes = [self.by_id[name] for name in self.ids]
        self.names = [name.encode() for name in self.ids]
        self.room = Room(view.nodes)
        self._bits: dict[int, list[int]] = {}
        self._labels: dict[tuple[str, str], int] = {}
        self._artifacts: dict[str, int] = {}
        self._kinds: dict[tuple[tuple[Device, ...], tuple[EngineOffer, ...]], tuple[int, int]] = {}
        self._runners: dict[tuple[object, ...], int] = {}
        self._masks: dict[frozenset[str], int] = {}
        self._names: dict[int, frozenset[str]] = {}
        self._domains: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        self._weights: dict[str | None, list[float]] = {}
        self._open = self._away = 0
        anything = DeploymentDemand("", "", ())
        for index, node in enumerate(self.nodes):
            bit = 1 << index
            if refused_node(node, anything, losses.get(node.node_id)) is None:
                self._open |= bit
            loss = losses.get(node.node_id)
            if node.drain == "evacuate" or (loss is not None and loss.state == "lost"):
                self._away |= bit
            for label in node.labels.items():
                self._labels[label] = self._labels.get(label, 0) | bit
            for artifact in node.ready_artifacts:
                self._artifacts[artifact] = self._artifacts.get(artifact, 0) | bit
            kind = (node.devices, node.engines)
            first, mask = self._kinds.get(kind, (index, 0))
            self._kinds[kind] = (first, mask | bit)

    def is_open(self, node_id: str) -> bool:
        """Whether the node may get something new at all."""
        return bool(self._open >> self._position[node_id] & 1)

    def candidates(self, demand: DeploymentDemand, way: Way) -> list[int]:
        """Indexes of nodes that may get a replica this way, as far as devices, engines, labels and artifacts tell; ascending."""
        return self.indexes(self.able(demand, way))

    def able(self, demand: DeploymentDemand, way: Way) -> int:
        """The same as bits."""
        mask = self._open
        for label in demand.required_labels.items():
            mask &= self._labels.get(label, 0)
        if demand.pull == "manual":
            mask &= self.holders(way)
        return mask & self._run_by(way)

    def able_any(self, demand: DeploymentDemand) -> int:
        """Nodes that may get a replica in one way or another, as bits."""
        mask = 0
        for way in demand.ways:
            mask |= self.able(demand, way)
        return mask

    def _run_by(self, way: Way) -> int:
        """Nodes whose engines and devices do, as bits."""
        needs = (way.engine, way.engine_version, way.launch, way.artifact_format)
        devices = (way.accelerator, way.devices, way.device_bytes)
        found = self._runners.get((needs, devices))
        if found is None:
            found = 0
            for first, kind in self._kinds.values():
                if self._kind_runs(self.nodes[first], way):
                    found |= kind
            self._runners[needs, devices] = found
        return found

    @property
    def away(self) -> int:
        """Nodes whose replicas are placed elsewhere, as bits: lost, or evacuated."""
        return self._away

    def mask(self, names: frozenset[str]) -> int:
        """Those of the names that are here, as bits."""
        if names not in self._masks:
            found = 0
            for name in names & self._position.keys():
                found |= 1 << self._position[name]
            self._masks[names] = found
        return self._masks[names]

    def names_of(self, mask: int) -> frozenset[str]:
        """The other way round; one object for equal sets."""
        if mask not in self._names:
            self._names[mask] = frozenset(self.ids[index] for index in self.indexes(mask))
        return self._names[mask]

    def holders(self, way: Way) -> int:
        """Nodes that have all weights of the way, as bits."""
        mask = -1
        for artifact in way.wanted_artifacts:
            mask &= self._artifacts.get(artifact, 0)
        return mask

    def weights(self, way: Way) -> list[float]:
        """Of each node, for this way."""
        kind = way.accelerator if way.devices else None
        if kind not in self._weights:
            self._weights[kind] = [weight_of(node, way) for node in self.nodes]
        return self._weights[kind]

    def domains(self, spread_by: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Of each node, its value of each label."""
        if spread_by not in self._domains:
            self._domains[spread_by] = [
                tuple(node.labels.get(label, UNKNOWN_DOMAIN) for label in spread_by) for node in self.nodes
            ]
        return self._domains[spread_by]

    @staticmethod
    def _kind_runs(node: Node, way: Way) -> bool:
        offers = [offer for offer in node.engines if offer.engine == way.engine]
        if way.artifact_format and not any(not o.formats or way.artifact_format in o.formats for o in offers):
            return False
        return any(_runs(offer, way) for offer in offers) and (not way.devices or bool(device_groups(node, way)))

    def indexes(self, mask: int) -> list[int]:
        if mask not in self._bits:
            self._bits[mask] = [index for index, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"] if mask else []
        return self._bits[mask]
