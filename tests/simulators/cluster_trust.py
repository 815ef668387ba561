"""A cluster's authority in memory: it gives nodes real identities (P-256, X.509, signed documents) and takes them away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from sbctl.base.secret import Secret
from sbctl.node.cluster_documents import ClusterRole
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificate_making import KeyPair, create_ca, create_request, generate_private_key, issue_leaf
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.identity import IdentityClaims, document_of, sign_identity
from sbctl.trust.keys import SigningKey
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.peer_documents import NodeSigner, PeerVerifier, TrustedMaterial
from sbctl.trust.revocation import Revocation, RevocationList, revoked, sign_revocations

__all__ = ["NOW", "ClusterAuthority", "NodeKit"]

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NodeKit:
    """What one node holds."""

    files: NodeIdentityFiles
    key: Secret
    claims: IdentityClaims

    def signer(self, now: datetime = NOW) -> NodeSigner:
        return NodeSigner(self.files, self.key, now=now)


@dataclass(slots=True)
class ClusterAuthority:
    """`own_pki`: certificates alone say who is who; there are no identity documents and no revocations."""

    cluster_id: str = "prod"
    own_pki: bool = False
    server_name: str = "mesh"
    ca: KeyPair = field(init=False)
    key: SigningKey = field(default_factory=SigningKey.generate)
    revocations: RevocationList = field(init=False)

    def __post_init__(self) -> None:
        self.ca = create_ca(self.cluster_id, now=NOW - timedelta(days=10))
        self.revocations = RevocationList(cluster_id=self.cluster_id, revision=0)

    @property
    def revocations_text(self) -> str:
        return sign_revocations(self.revocations, {"authority": self.key})

    @property
    def keys(self) -> AuthorityKeys:
        return AuthorityKeys((self.key.public_text,))

    def node(
        self,
        node_id: str,
        *roles: ClusterRole,
        labels: Mapping[str, str] | None = None,
        epoch: int = 1,
        now: datetime = NOW,
        validity: timedelta = timedelta(days=90),
    ) -> NodeKit:
        claims = IdentityClaims(
            cluster_id=self.cluster_id,
            node_id=node_id,
            roles=roles or ("worker",),
            labels=dict(labels or {}),
            server_name=self.server_name,
            identity_epoch=epoch,
        )
        key = generate_private_key()
        certificate = issue_leaf(self.ca, create_request(key, node_id), claims, now=now, validity=validity)
        facts = certificate_facts(certificate)
        document = document_of(
            claims,
            certificate_sha256=facts.fingerprint,
            issued_at=now,
            expires_at=facts.not_after,
            authority_key_id="authority",
        )
        own = self.own_pki
        files = NodeIdentityFiles(
            certificate=certificate,
            ca=self.ca.certificate,
            identity=None if own else sign_identity(document, self.key),
            authority_key=None if own else self.keys.text(),
            revocations=None if own else self.revocations_text,
        )
        return NodeKit(files, key, claims)

    def revoke(self, node: NodeKit, *, reason: str = "stolen", now: datetime = NOW) -> None:
        facts = certificate_facts(node.files.certificate)
        entry = Revocation(
            node_id=node.claims.node_id,
            identity_epoch=node.claims.identity_epoch,
            fingerprint=facts.fingerprint,
            reason=reason,
            revoked_at_unix_secs=int(now.timestamp()),
            expires_at_unix_secs=int(facts.not_after.timestamp()),
        )
        self.revocations = revoked(self.revocations, entry, now_unix_secs=int(now.timestamp()))

    def material(self) -> TrustedMaterial:
        """As a reader holds it now."""
        material = TrustedMaterial(self.cluster_id, self.ca.certificate, self.keys.text(), self.revocations_text)
        return replace(material, authority_key=None, revocations=None) if self.own_pki else material

    def verifier(self) -> PeerVerifier:
        return PeerVerifier(self.material())
