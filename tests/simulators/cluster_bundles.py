"""Bundles of a cluster, as an operator would compile and sign them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json
from sbctl.trust.bundle import DeploymentMember, EnginePolicy, TrustSet, content_digest
from sbctl.trust.cluster_bundle import (
    CLUSTER_BUNDLE_PAYLOAD_TYPE,
    ClusterBundlePayload,
    ClusterContent,
    ClusterDeployment,
    VariantOption,
)
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.cluster_trust import NOW

__all__ = ["OPS", "TRUST", "cluster_payload", "deployment", "facts", "host_member", "option", "signed_bundle"]

OPS = SigningKey.generate()
TRUST = TrustSet(lineage="fleet-1", key_epoch=3, signers={"ops": OPS.public_text})
_ENGINE = EnginePolicy(engine="llama_cpp", launch="wheel", version="1")


def facts(variant: str = "q4_k_m", *, model: str = "m") -> ArtifactFacts:
    digest = format(sum(map(ord, variant + model)) % 16, "x") * 64
    files = (ArtifactFile(path=f"{variant}.gguf", sha256=digest, size_bytes=1000),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source="file:/weights",
        model=model,
        variant=variant,
        context_length=512,
    )


def _fields(variant: str) -> dict[str, Any]:
    return {
        "model": "m",
        "variant": variant,
        "artifact": facts(variant),
        "engine": _ENGINE,
        "replicas": 1,
        "pull": "on_boot",
        "warm": True,
        "cold_start": "wait",
        "max_concurrency": 2,
        "max_queue_depth": 128,
        "queue_timeout_ms": 30_000,
        "rollout": "rolling",
        "context_length": 512,
    }


def host_member(variant: str = "q4_k_m", **changed: Any) -> DeploymentMember:
    """The same deployment, as a host's own bundle has it."""
    return DeploymentMember(**_fields(variant) | changed)


def deployment(variant: str = "q4_k_m", **changed: Any) -> ClusterDeployment:
    return ClusterDeployment(**_fields(variant) | {"replicas": 2} | changed)


def option(variant: str, **changed: Any) -> VariantOption:
    base = {"variant": variant, "artifact": facts(variant), "engine": _ENGINE, "context_length": 256}
    return VariantOption(**base | changed)


def cluster_payload(*, now: datetime = NOW, **changed: Any) -> dict[str, Any]:
    deployments = changed.pop("deployments", {"chat": deployment()})
    content = ClusterContent(deployments=deployments, origins={}, api_keys={}, public=False)
    payload = ClusterBundlePayload(
        lineage="fleet-1",
        scope="prod",
        cluster_id="prod",
        key_epoch=3,
        revision=7,
        issued_at=rfc3339(now),
        catalog_digest="c" * 64,
        content=content,
        content_digest=content_digest(content),
    )
    return payload.model_dump(mode="json") | changed


def signed_bundle(document: dict[str, Any] | None = None, *, key: SigningKey = OPS) -> str:
    return sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, canonical_json(document or cluster_payload()), key, "ops")
