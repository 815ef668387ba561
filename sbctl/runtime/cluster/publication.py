"""Answers of `GET` and `POST /admin/cluster/deployments`: fields, status and codes as SBproxy's, beside what sbctl says itself.

A bundle is signed by an operator; `signer_node_id` is the authority that took it, `signer_key_id` names the operator's key by its digest.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.runtime.cluster.fences import KeptBundle
from sbctl.trust.bundle import TrustSet
from sbctl.trust.cluster_bundle import VerifiedClusterBundle

__all__ = ["NO_BUNDLE", "key_id", "not_an_authority", "published", "refused", "shown"]

NO_BUNDLE = (404, "deployment_bundle_missing")


def not_an_authority() -> RefusedError:
    """Of a node that others decide for."""
    return RefusedError(
        "deployment_authority_read_only",
        "this node is no authority of its cluster",
        next_step="ask a host with the role authority",
    )


def key_id(public_text: str) -> str:
    """base64url of the SHA-256 of a public key's 32 bytes, from `ed25519:<base64>`."""
    raw = base64.b64decode(public_text.partition(":")[2])
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def published(verified: VerifiedClusterBundle, *, node_id: str, trust: TrustSet) -> dict[str, Any]:
    """The body of 202, for a first acceptance and for a repeat alike."""
    return {
        "schema_version": 1,
        "revision": verified.payload.revision,
        "content_digest": verified.payload.content_digest,
        "signer_node_id": node_id,
        "signer_key_id": key_id(trust.signers[verified.signer]),
        "signer": verified.signer,
        "status": "published",
    }


def shown(kept: KeptBundle, *, node_id: str, trust: TrustSet, read_only: bool) -> dict[str, Any]:
    """The body of 200: the active bundle, who signed it, and whether another may be published here. A signer who left the set has no key id."""
    key = trust.signers.get(kept.signer)
    return {
        "schema_version": 1,
        "bundle": kept.payload.model_dump(mode="json"),
        "signer_node_id": node_id,
        "signer_key_id": None if key is None else key_id(key),
        "signer": kept.signer,
        "read_only": read_only,
    }


def refused(error: SbctlError) -> tuple[int, str]:
    """Status and code of a bundle that was not taken: for its revision, for what is wrong in it, or for this node or the store."""
    match error.code:
        case "bundle.stale_revision" | "bundle.key_epoch":
            return 409, "stale_revision"
        case "bundle.revision_conflict":
            return 409, "revision_conflict"
        case "json.too_large" | "envelope.too_large":
            return 413, "invalid_bundle"
        case "bundle.no_trust":
            return 500, "publication_failed"
    match error.code.partition(".")[0]:
        case "bundle" | "envelope" | "json":
            return 400, "invalid_bundle"
        case "store":
            return 503, "store_unavailable"
        case _:
            return 500, "publication_failed"
