"""What a lease-holder places from: the directory as nodes of placement, and the bundle as demands. Each is made anew only where it changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from sbctl.node.cluster_documents import NodeSnapshotDocument
from sbctl.placement.demands import demands_of
from sbctl.placement.documents import node_of
from sbctl.placement.model import ClusterView, DeploymentDemand, Node, PlacementPolicy
from sbctl.runtime.cluster.directory import DirectoryView, has_left
from sbctl.runtime.cluster.fences import KeptBundle

__all__ = ["Figures", "PlacementInputs"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What placement reckons with beside bundle and directory."""

    policy: PlacementPolicy
    safety_margin: float
    handoff_timeout_ms: int
    drain_timeout_ms: int
    first_wait_ms: int
    """So long a first plan waits for nodes that nobody named."""
    expected: frozenset[str] = frozenset()


_Source = tuple[NodeSnapshotDocument, str, bool]
_NO_DEMANDS: Final[tuple[DeploymentDemand, ...]] = ()


@dataclass(slots=True)
class PlacementInputs:
    """Of one controller. `said`: the nodes of the last view as if each was heard at 0; the same objects as long as they say the same."""

    figures: Figures
    said: dict[str, Node] = field(default_factory=dict)
    _sources: dict[str, _Source] = field(default_factory=dict)
    _demands: tuple[DeploymentDemand, ...] = _NO_DEMANDS
    _bundle: KeptBundle | None = None

    def view(self, directory: DirectoryView, *, since_ms: int, evacuated: frozenset[str]) -> ClusterView:
        """`since_ms`: when the reader of the directory began. `evacuated`: nodes that an operator wants empty."""
        rows = directory.rows
        said: dict[str, Node] = {}
        sources: dict[str, _Source] = {}
        for name, row in rows.items():
            if row.snapshot is None or not row.heard_at_ms:
                continue
            sources[name] = source = (row.snapshot, row.exclusion, name in evacuated)
            known = self._sources.get(name)
            same = known is not None and known[0] is source[0] and known[1:] == source[1:]
            said[name] = self.said[name] if same else _node(*source)
        self.said, self._sources = said, sources
        nodes = {name: replace(node, heard_at_ms=rows[name].heard_at_ms) for name, node in said.items()}
        removed = frozenset(name for name, row in rows.items() if row.exclusion == "identity_revoked" or has_left(row))
        return ClusterView(
            nodes,
            watching_since_ms=since_ms,
            removed=removed,
            expected=self.figures.expected,
            stale_since_ms=directory.stale_since_ms,
        )

    def demands(self, held: KeptBundle) -> tuple[DeploymentDemand, ...]:
        """The same object for the same bundle."""
        if self._bundle is not held:
            figures = self.figures
            self._demands = demands_of(
                held.payload.content.deployments,
                safety_margin=figures.safety_margin,
                handoff_timeout_ms=figures.handoff_timeout_ms,
                drain_timeout_ms=figures.drain_timeout_ms,
            )
            self._bundle = held
        return self._demands


def _node(snapshot: NodeSnapshotDocument, exclusion: str, is_evacuated: bool) -> Node:
    node = node_of(snapshot, heard_at_ms=0, exclusion=exclusion)
    return replace(node, drain="evacuate") if is_evacuated else node
