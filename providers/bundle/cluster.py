"""Desired, for a cluster: one content for all of it, as `bundle.A` on each authority, which signs under the cluster's id.

The spec has the form of a host's, with deployments of a cluster and the cluster's id beside it. Workers and gateways read it from the store, so
nothing of it is sent to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.members import MemberCompiler
from providers.resource import desired_resource
from sbctl.base.clock import rfc3339
from sbctl.base.digests import fingerprint
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledCluster, CompiledConfig
from sbctl.node.snapshot import BundleState, NodeSnapshot
from sbctl.provider import Services
from sbctl.trust.cluster_bundle import ClusterBundlePayload, ClusterContent

__all__ = ["CLUSTER", "desired", "held_by", "is_cluster", "of_another_kind", "payload_of", "scope_of"]

CLUSTER: Final = "cluster_id"


def is_cluster(spec: Mapping[str, Any]) -> bool:
    return CLUSTER in spec


def of_another_kind(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether a host's own bundle became its cluster's, or the reverse."""
    return one is not None and other is not None and is_cluster(one) != is_cluster(other)


def scope_of(spec: Mapping[str, Any], address: Address) -> str:
    """Under which the bundle is numbered and signed."""
    return str(spec[CLUSTER]) if is_cluster(spec) else address.scope


def held_by(snapshot: NodeSnapshot, spec: Mapping[str, Any]) -> BundleState | None:
    """What the host's runtime holds of this kind."""
    if not is_cluster(spec):
        return snapshot.bundle
    return None if snapshot.cluster is None else snapshot.cluster.bundle


def desired(config: CompiledConfig, cluster: CompiledCluster, compiler: MemberCompiler) -> Iterator[Desired]:
    """The same spec on all authorities."""
    first = config.hosts[cluster.authorities[0]]
    spec = {
        "lineage": config.lineage,
        "key_epoch": config.key_epoch,
        CLUSTER: cluster.cluster_id,
        "deployments": {name: compiler.of_cluster(one)[0] for name, one in cluster.deployments.items()},
        "origins": {name: compiler.origin(origin)[0] for name, origin in cluster.origins.items()},
        "api_keys": {name: entry.model_dump(mode="json") for name, entry in first.api_keys.items()},
        "public": first.public,
    }
    digest = fingerprint(spec)
    for name in cluster.authorities:
        after = frozenset(Address(kind, name) for kind in ("runtime", "store"))
        yield desired_resource(
            config, config.hosts[name], Address("bundle", name), spec, spec_fingerprint=digest, after=after
        )


def payload_of(
    spec: Mapping[str, Any], content: Mapping[str, Any], digest: str, revision: int, services: Services
) -> ClusterBundlePayload:
    return ClusterBundlePayload(
        lineage=spec["lineage"],
        scope=spec[CLUSTER],
        cluster_id=spec[CLUSTER],
        key_epoch=spec["key_epoch"],
        revision=revision,
        issued_at=rfc3339(services.clock.now()),
        catalog_digest=_catalog_digest(content),
        content=ClusterContent.model_validate_json(json.dumps(content)),
        content_digest=digest,
    )


def _catalog_digest(content: Mapping[str, Any]) -> str:
    """Of what the bundle takes from catalogs, so that an entry that it does not use changes nothing."""
    used = {
        f"{facts['model']}:{facts['variant']}": facts["artifact"]
        for one in content["deployments"].values()
        for facts in (
            one["artifact"],
            *(option["artifact"] for option in one["alternatives"]),
            *(adapter["artifact"] for adapter in one["adapters"]),
        )
    }
    return fingerprint(used)
