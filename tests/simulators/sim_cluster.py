"""What the hosts of a simulated fleet share once they are a cluster: the store's bundle, and what its nodes made of it.

A test edits `states` and `unplaced`: what nodes and deployments are told to be at; nothing told is ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbctl.base.digests import fingerprint
from sbctl.base.errors import HostError, RefusedError
from sbctl.base.progress import tell_words
from sbctl.node.cluster_messages import ClusterPublish, ClusterPublished, NodeProgress
from sbctl.node.snapshot import BundleState, ClusterState
from sbctl.provider import Progress
from sbctl.trust.bundle import member_digest
from sbctl.trust.cluster_bundle import VerifiedClusterBundle, verify_cluster_bundle

if TYPE_CHECKING:
    from tests.simulators.sim_host import SimHost

__all__ = ["SimCluster"]


class SimCluster:
    """One store, that all hosts see at once."""

    def __init__(self) -> None:
        self.accepted: VerifiedClusterBundle | None = None
        self.envelopes: list[str] = []
        """All that was published, in order."""
        self.states: dict[str, NodeProgress] = {}
        self.unplaced: dict[str, int] = {}
        self.placement: dict[str, Any] | None = None
        self.stuck: list[str] = []
        """Deployments that find no other place when a worker leaves."""
        self.hears_store = True

    def state_of(self, host: SimHost) -> ClusterState | None:
        config = None if host.config is None else host.config.cluster
        if config is None or not host.running:
            return None
        kept = self.accepted
        content = None if kept is None else kept.payload.content
        return ClusterState(
            cluster_id=config.cluster_id,
            is_authority="authority" in config.roles,
            bundle=self._bundle(),
            members={name: fingerprint(one.model_dump(mode="json")) for name, one in content.deployments.items()}
            if content is not None
            else {},
            placement=self.placement,
            store_reachable=self.hears_store,
        )

    def _bundle(self) -> BundleState | None:
        kept = self.accepted
        if kept is None:
            return None
        origins = {name: member_digest(origin) for name, origin in kept.payload.content.origins.items()}
        payload = kept.payload
        return BundleState(
            revision=payload.revision,
            content_digest=payload.content_digest,
            key_epoch=payload.key_epoch,
            signer=kept.signer,
            origins=origins,
        )

    def publish(self, host: SimHost, request: ClusterPublish, progress: Progress) -> Mapping[str, Any]:
        config = None if host.config is None else host.config.cluster
        if config is None or host.trust is None or not host.running:
            raise HostError("runtime.not_running", "no runtime of a cluster answers on this host", place=host.name)
        if "authority" not in config.roles:
            raise RefusedError("cluster.not_authority", "this node is no authority", place=host.name)
        fence, held = (None, None) if self.accepted is None else (self.accepted.fence, self.accepted.payload.revision)
        verified = verify_cluster_bundle(
            request.envelope, trust=host.trust, cluster_id=config.cluster_id, fence=fence, now=host.clock.now()
        )
        if not verified.repeat and held != request.expected_revision:
            raise RefusedError("bundle.revision_conflict", f"the cluster is at revision {held}", place=host.name)
        self.accepted = verified
        self.envelopes.append(request.envelope)
        nodes = {name: self.states.get(name, NodeProgress(state="ready")) for name in config.expected_nodes}
        for number, (name, one) in enumerate(nodes.items()):
            progress(number + 1, len(nodes))
            tell_words(progress, one.note(name))
        answer = ClusterPublished(
            revision=verified.payload.revision,
            content_digest=verified.payload.content_digest,
            in_store=True,
            ready=not self.unplaced and all(one.state in ("ready", "idle") for one in nodes.values()),
            nodes=nodes,
            unplaced=self.unplaced,
        )
        return answer.model_dump(mode="json")
