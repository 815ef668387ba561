"""The envelope of one dispatch: how a gateway makes it, and what a worker checks of it once it is known who signed it.

    checked before, by `sbctl.trust.peer_documents`    size, form, proof of identity, signature, cluster, role, high-water marks
    checked here, in this order                         certificate of the connection, audience, start of its process, lifetime and clocks,
                                                        hops, path, body
    checked behind it                                   the replay fence, the deployment and its generation, admission

Lifetimes as in SBproxy's model plane: 10 s when we make one, 30 s at most, and 5 s ahead of the worker's clock. A worker judges by its own clock
alone, and tells a gateway that proved itself what it says; the envelope is made anew for that.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import RefusedError
from sbctl.node.cluster_documents import DispatchEnvelope
from sbctl.runtime.gateway.surface import SURFACE
from sbctl.trust.peer_documents import NodeSigner
from sbctl.trust.peer_kinds import DISPATCH

__all__ = ["Audience", "Errand", "body_digest", "check_dispatch", "sign_dispatch"]

_LIFETIME_MS: Final = 10_000
_LIFETIME_MAX_MS: Final = 30_000
_SKEW_MS: Final = 5_000
_NONCE_BYTES: Final = 18
_DIGEST_INLINE_MAX_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class Audience:
    """Whom a dispatch is for: a node, and the start of its process."""

    node_id: str
    boot_epoch: int


@dataclass(frozen=True, slots=True)
class Errand:
    """What is asked of a worker. `key_name`: of the caller's API key; `policy_revision`: of the bundle that let the caller pass."""

    deployment: str
    generation: int
    logical_model: str
    path: str
    content_type: str
    body: bytes
    request_id: str
    priority: Literal["interactive", "standard", "batch"]
    policy_revision: str
    key_name: str | None = None


async def body_digest(body: bytes) -> str:
    """Of a long body in a thread: nobody else waits for it."""
    if len(body) > _DIGEST_INLINE_MAX_BYTES:
        return await asyncio.to_thread(sha256_bytes, body)
    return sha256_bytes(body)


def sign_dispatch(
    errand: Errand, body_sha256: str, audience: Audience, signer: NodeSigner, *, boot_epoch: int, now_unix_ms: int
) -> str:
    """A new envelope with a nonce of its own. `boot_epoch`: of the gateway's process. Raises what signing raises."""
    identity = signer.identity
    return signer.sign(
        DISPATCH,
        DispatchEnvelope(
            cluster_id=identity.claims.cluster_id,
            identity_epoch=identity.claims.identity_epoch,
            boot_epoch=boot_epoch,
            issuer_node_id=identity.claims.node_id,
            issuer_certificate_sha256=identity.certificate.fingerprint,
            audience_node_id=audience.node_id,
            audience_boot_epoch=audience.boot_epoch,
            request_id=errand.request_id,
            nonce=secrets.token_urlsafe(_NONCE_BYTES),
            issued_at_unix_ms=now_unix_ms,
            expires_at_unix_ms=now_unix_ms + _LIFETIME_MS,
            governed_key_id=errand.key_name,
            policy_revision=errand.policy_revision,
            deployment=errand.deployment,
            deployment_generation=errand.generation,
            logical_model=errand.logical_model,
            priority=errand.priority,
            path=errand.path,
            content_type=errand.content_type,
            body_sha256=body_sha256,
        ),
    )


def check_dispatch(
    envelope: DispatchEnvelope,
    body_sha256: str,
    *,
    here: Audience,
    certificate_sha256: str,
    signed_with: str,
    now_unix_ms: int,
) -> None:
    """`body_sha256`: of the body that came; `certificate_sha256`: of the leaf that this connection's peer showed; `signed_with`: of the one that the signature was checked by.

    Raises RefusedError `peer_authentication_failed`, `audience_mismatch`, `stale_boot_epoch`, `invalid_dispatch_lifetime`,
    `dispatch_not_yet_valid`, `dispatch_expired`, `hop_limit_exceeded`, `invalid_envelope`, `request_digest_mismatch`.
    """
    if not certificate_sha256 == signed_with == envelope.issuer_certificate_sha256:
        raise RefusedError(
            "peer_authentication_failed", "the envelope was signed for another certificate than this connection's"
        )
    if envelope.audience_node_id != here.node_id:
        raise RefusedError("audience_mismatch", f"the dispatch is for {envelope.audience_node_id}")
    if envelope.audience_boot_epoch != here.boot_epoch:
        raise RefusedError(
            "stale_boot_epoch", f"this is start {here.boot_epoch} of the runtime, not {envelope.audience_boot_epoch}"
        )
    lifetime_ms = envelope.expires_at_unix_ms - envelope.issued_at_unix_ms
    if not 0 < lifetime_ms <= _LIFETIME_MAX_MS:
        raise RefusedError("invalid_dispatch_lifetime", f"a dispatch lives for {_LIFETIME_MAX_MS // 1000} s at most")
    if envelope.issued_at_unix_ms > now_unix_ms + _SKEW_MS:
        ahead_s = (envelope.issued_at_unix_ms - now_unix_ms) / 1000
        raise RefusedError(
            "dispatch_not_yet_valid",
            f"the dispatch is dated {ahead_s:.0f} s ahead of this clock",
            next_step="set the clocks of both machines (timedatectl set-ntp true)",
            detail={"now_unix_ms": now_unix_ms},
        )
    if envelope.expires_at_unix_ms <= now_unix_ms:
        late_s = (now_unix_ms - envelope.issued_at_unix_ms) / 1000
        raise RefusedError(
            "dispatch_expired",
            f"the dispatch was made {late_s:.0f} s ago by this clock",
            next_step="set the clocks of both machines (timedatectl set-ntp true)",
            detail={"now_unix_ms": now_unix_ms},
        )
    if envelope.hop_count != 1:
        raise RefusedError("hop_limit_exceeded", "a dispatch goes over one hop")
    if envelope.path not in SURFACE:
        raise RefusedError("invalid_envelope", "this path is not dispatched")
    if body_sha256 != envelope.body_sha256:
        raise RefusedError("request_digest_mismatch", "the body is not the one that was signed for")
