"""What a gateway knows of its cluster, ready to be asked for each request: taken in as a whole when something changed, looked up by deployment.

It is what was last heard. While the store is gone it stays as it is, and the nodes that it names are asked all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sbctl.node.placement_document import PlacedDeployment, PlacementDocument
from sbctl.runtime.peer.candidates import KnownNode, Selection, Serving, region_of, select
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.cluster_bundle import ClusterDeployment

__all__ = ["KnownCluster", "serving_of"]

_NOBODY: Final = Selection((), {})


def serving_of(plan: PlacementDocument) -> Mapping[str, Serving]:
    """By deployment: the current generation where it is assigned, then those that are kept until it is ready, newest first. What a node says of
    a deployment that was not given to it brings it no request."""
    return {name: _serving(placed) for name, placed in plan.deployments.items()}


def _serving(placed: PlacedDeployment) -> Serving:
    nodes: dict[int, set[str]] = {placed.generation: set()}
    for each in (*placed.assignments, *placed.retained):
        nodes.setdefault(each.generation, set()).add(each.node_id)
    kept = sorted(set(nodes) - {placed.generation}, reverse=True)
    return Serving((placed.generation, *kept), {number: frozenset(found) for number, found in nodes.items()})


class KnownCluster:
    """As `gateway.Cluster`. `labels`: of this node."""

    def __init__(self, node_id: str, labels: Mapping[str, str]) -> None:
        self._node_id = node_id
        self.region = region_of(labels)
        self.policy_revision = "0"
        self.is_known = False
        self.has_origins = False
        self._members: Mapping[str, DeploymentMember] = {}
        self._selections: Mapping[str, Selection] = {}

    def take(
        self,
        nodes: Iterable[KnownNode],
        members: Mapping[str, DeploymentMember],
        serving: Mapping[str, Serving],
        *,
        policy_revision: int,
        has_origins: bool = True,
    ) -> None:
        """Everything anew. A deployment that no plan names yet is served by whatever generation its nodes have, the newest first; not by nodes
        whose certificates lack a label that it requires."""
        by_deployment: dict[str, list[KnownNode]] = {}
        for node in nodes:
            for deployment in {replica.deployment for replica in node.snapshot.replicas}:
                by_deployment.setdefault(deployment, []).append(node)
        self._selections = {}
        for deployment, found in by_deployment.items():
            placed = serving.get(deployment)
            able = found if placed else [node for node in found if _may_have(members.get(deployment), node)]
            self._selections[deployment] = select(
                able, deployment, serving=placed or _reported(able, deployment), here=self._node_id
            )
        self._members, self.policy_revision = dict(members), str(policy_revision)
        self.is_known, self.has_origins = True, has_origins

    def member(self, deployment: str) -> DeploymentMember | None:
        return self._members.get(deployment)

    def selection(self, deployment: str) -> Selection:
        return self._selections.get(deployment, _NOBODY)


def _may_have(member: DeploymentMember | None, node: KnownNode) -> bool:
    """By what its certificate says, not by its own word."""
    wanted = member.required_labels if isinstance(member, ClusterDeployment) else {}
    labels = node.peer.claims.labels
    return all(labels.get(name) == value for name, value in wanted.items())


def _reported(nodes: Iterable[KnownNode], deployment: str) -> Serving:
    found = {
        replica.deployment_generation
        for node in nodes
        for replica in node.snapshot.replicas
        if replica.deployment == deployment
    }
    return Serving(tuple(sorted(found, reverse=True)))
