"""The bundle of a cluster: what should run somewhere in it. Signed by an operator, numbered, complete; its scope is the cluster's id.

A deployment of a cluster is one of a host with what placement needs beside it: replicas of the whole cluster, labels, spread, devices a
replica spans, other variants it may run as. A node never runs it as it stands: `replica_of` and `projected` give the member that it runs,
which is the very member that a host's own bundle would hold. So a fleet that becomes a cluster keeps its replicas, and what is known of members
(their digests, what starts an engine anew) holds for both.

The payload type is one of its own: a host's bundle never passes as a cluster's, nor the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.model import ArtifactFacts, Digest
from sbctl.base.digests import fingerprint
from sbctl.base.errors import RefusedError
from sbctl.base.field_types import Id, LabelKey, LabelValue, SpreadKey
from sbctl.base.limits import BUNDLE_DEPLOYMENTS_MAX, BUNDLE_MAX_BYTES, JSON_INT_MAX
from sbctl.base.once import once_per_object
from sbctl.node.cluster_documents import AssignedDeployment, AssignmentDocument, BundleMark
from sbctl.trust.bundle import BundleContent, BundlePayload, DeploymentMember, EnginePolicy, TrustSet, member_digest
from sbctl.trust.envelope import open_envelope
from sbctl.trust.verifier import Fence, judge, parse_payload

__all__ = [
    "CLUSTER_BUNDLE_PAYLOAD_TYPE",
    "ClusterBundlePayload",
    "ClusterContent",
    "ClusterDeployment",
    "NodeContent",
    "VariantOption",
    "VerifiedClusterBundle",
    "bundle_mark",
    "generation_digest",
    "node_content",
    "projected",
    "replica_digest",
    "replica_of",
    "replicas_of",
    "verify_cluster_bundle",
]

CLUSTER_BUNDLE_PAYLOAD_TYPE: Final = "application/vnd.sbctl.cluster-bundle.v1+json"
_REPLICAS_MAX: Final = 1024


class VariantOption(BaseModel):
    """One way to run a deployment: which weights, on which engine build, with which context. `shape`: what its memory follows from, where
    the catalog knows it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    variant: Annotated[str, Field(min_length=1, max_length=256)]
    artifact: ArtifactFacts
    engine: EnginePolicy
    context_length: int = Field(gt=0)
    memory_bytes: int | None = Field(default=None, gt=0, le=JSON_INT_MAX)
    shape: ModelShape | None = None


class ClusterDeployment(DeploymentMember):
    """One deployment of a cluster. `replicas` are of the whole cluster.

    `alternatives`: where replicas may run different variants, the others in order of preference.
    """

    _is_written_whole: ClassVar[bool] = True

    replicas: int = Field(ge=1, le=_REPLICAS_MAX)
    required_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)
    spread_by: tuple[SpreadKey, ...] = Field(default=(), max_length=8)
    alternatives: tuple[VariantOption, ...] = Field(default=(), max_length=16)
    shape: ModelShape | None = None

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        if len(set(self.spread_by)) != len(self.spread_by):
            raise ValueError("spread_by lists a label twice")
        names = [option.variant for option in self.options]
        if len(set(names)) != len(names):
            raise ValueError("a variant is offered twice")
        return self

    @property
    def options(self) -> tuple[VariantOption, ...]:
        """All ways to run it, the preferred first."""
        own = VariantOption(
            variant=self.variant,
            artifact=self.artifact,
            engine=self.engine,
            context_length=self.context_length,
            memory_bytes=self.memory_bytes,
            shape=self.shape,
        )
        return (own, *self.alternatives)


class ClusterContent(BundleContent):
    """What should run in the cluster, and which origins its gateways serve."""

    deployments: dict[Id, ClusterDeployment] = Field(max_length=BUNDLE_DEPLOYMENTS_MAX)  # type: ignore[assignment]


class ClusterBundlePayload(BundlePayload):
    """The signed document. `scope` and `cluster_id` are one; `catalog_digest` says which catalogs its facts were taken from."""

    cluster_id: Id
    catalog_digest: Digest
    content: ClusterContent

    @model_validator(mode="after")
    def _of_the_cluster(self) -> Self:
        if self.scope != self.cluster_id:
            raise ValueError("scope is not the cluster's id")
        return self


@dataclass(frozen=True, slots=True)
class NodeContent:
    """What one node runs by one assignment. `draining`: deployments that it finishes and gives up; `forgotten`: retained ones whose member
    it does not have any more, so that there is nothing left to keep; `refused`: what cannot be obeyed, and why."""

    content: BundleContent
    draining: tuple[str, ...]
    forgotten: tuple[str, ...]
    refused: Mapping[str, RefusedError]


@dataclass(frozen=True, slots=True)
class VerifiedClusterBundle:
    """An accepted bundle. `repeat`: it is the one that the fence stands at."""

    payload: ClusterBundlePayload
    signer: str
    repeat: bool

    @property
    def fence(self) -> Fence:
        return Fence(self.payload.key_epoch, self.payload.revision, self.payload.content_digest)


def verify_cluster_bundle(
    envelope_text: str, *, trust: TrustSet, cluster_id: str, fence: Fence | None, now: datetime
) -> VerifiedClusterBundle:
    """Accept or refuse by the rules of `sbctl.trust.verifier`, wherever the text came from. Raises as `verify_bundle`."""
    opened = open_envelope(envelope_text, CLUSTER_BUNDLE_PAYLOAD_TYPE, trust.signers, max_bytes=BUNDLE_MAX_BYTES)
    payload = parse_payload(opened.payload, ClusterBundlePayload)
    return VerifiedClusterBundle(
        payload, opened.signer, judge(payload, trust=trust, scope=cluster_id, fence=fence, now=now)
    )


def bundle_mark(payload: ClusterBundlePayload) -> BundleMark:
    """As assignments and snapshots name it."""
    return BundleMark(key_epoch=payload.key_epoch, revision=payload.revision, content_digest=payload.content_digest)


def replica_of(deployment: ClusterDeployment, option: VariantOption) -> DeploymentMember:
    """What a node with one replica runs."""
    kept = {name: getattr(deployment, name) for name in DeploymentMember.model_fields}
    chosen = {
        name: getattr(option, name) for name in ("variant", "artifact", "engine", "context_length", "memory_bytes")
    }
    return DeploymentMember(**{**kept, **chosen, "replicas": 1})


@once_per_object
def replicas_of(deployment: ClusterDeployment) -> tuple[DeploymentMember, ...]:
    """`replica_of` each of its options, in order; always the same objects."""
    return tuple(replica_of(deployment, option) for option in deployment.options)


def replica_digest(member: DeploymentMember) -> str:
    """64 hex characters: what each replica is, however many of them a node runs. Assignments, placements and snapshots name members by it."""
    return member_digest(_with_replicas(member, 1))


def generation_digest(deployment: ClusterDeployment) -> str:
    """64 hex characters of all that a generation depends on: how a replica may run. How many there are and where is not part of it."""
    return fingerprint([replica_digest(member) for member in replicas_of(deployment)])


def _with_replicas(member: DeploymentMember, count: int) -> DeploymentMember:
    """The same object where it has so many."""
    return member if member.replicas == count else member.model_copy(update={"replicas": count})


def projected(deployment_id: str, deployment: ClusterDeployment, assigned: AssignedDeployment) -> DeploymentMember:
    """The member that a node runs for what it was assigned.

    Raises RefusedError `assignment.unknown_variant`; `assignment.wrong_member` when the signer of the assignment computed another one.
    """
    for member in replicas_of(deployment):
        if (member.variant, member.artifact.artifact) == (assigned.variant, assigned.artifact_digest):
            break
    else:
        raise RefusedError(
            "assignment.unknown_variant",
            f"{deployment_id} is assigned as {assigned.variant}, and the bundle has no such weights for it",
            next_step="the lease-holder and this node read one bundle differently: bring all to one version (sbctl apply)",
        )
    if member_digest(member) != assigned.member_digest:
        raise RefusedError(
            "assignment.wrong_member",
            f"{deployment_id} is assigned as another member than the bundle gives here",
            next_step="the lease-holder and this node read one bundle differently: bring all to one version (sbctl apply)",
        )
    return _with_replicas(member, max(1, len(assigned.replicas)))


def node_content(
    content: ClusterContent,
    assignment: AssignmentDocument,
    *,
    held: Mapping[str, DeploymentMember],
    running: Mapping[str, DeploymentMember],
) -> NodeContent:
    """What a node runs by an assignment of this very bundle. `held`: members that it has run before, by `replica_digest`; `running`: what it
    runs now, by deployment.

    What is to start comes from the bundle; a generation before it, which a rollout keeps or takes up again, from `held`. Per deployment that is
    the one to start, else the one to retain. Where that is refused the deployment stays as it runs, and the others are not held up by it.
    """
    members: dict[str, DeploymentMember] = {}
    draining, forgotten = [], []
    refused: dict[str, RefusedError] = {}
    for name, parts in sorted(assignment.deployments.items()):
        kept = [part for part in parts if part.phase == "start"] or [part for part in parts if part.phase == "retain"]
        if not kept:
            draining.append(name)
            continue
        try:
            member = _member(name, content.deployments.get(name), kept, held)
        except RefusedError as error:
            refused[name], member = error, running.get(name)
        if member is not None:
            members[name] = member
        elif name not in refused:
            forgotten.append(name)
    host = BundleContent(
        **{field: getattr(content, field) for field in BundleContent.model_fields if field != "deployments"},
        deployments=members,
    )
    return NodeContent(host, tuple(draining), tuple(forgotten), refused)


def _member(
    name: str,
    deployment: ClusterDeployment | None,
    parts: Sequence[AssignedDeployment],
    held: Mapping[str, DeploymentMember],
) -> DeploymentMember | None:
    """Parts of one phase. Raises RefusedError as `projected`, and `assignment.two_members`, `assignment.unknown_deployment`."""
    assigned = parts[0]
    if any(part.member_digest != assigned.member_digest for part in parts):
        raise RefusedError(
            "assignment.two_members",
            f"{name} is assigned as {' and as '.join(sorted({part.variant for part in parts}))}; a node runs one of a deployment",
            next_step="spread it over nodes (spread_by), or offer one variant alone",
        )
    replicas = max(1, sum(len(part.replicas) for part in parts))
    known = held.get(assigned.member_digest)
    if known is not None:
        return _with_replicas(known, replicas)
    if assigned.phase == "retain":
        return None
    if deployment is None:
        raise RefusedError(
            "assignment.unknown_deployment",
            f"{name} is assigned, and the bundle has no deployment of this name",
            next_step="the lease-holder places the bundle of today by itself",
        )
    return _with_replicas(projected(name, deployment, assigned), replicas)
