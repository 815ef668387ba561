"""Documents that nodes sign for each other: who may say what, and when it is believed. Nothing else that a store holds counts.

    {"schema_version": 1, "envelope": <DSSE, signed by the node's identity key>,
     "proof": {"certificate_chain": <PEM>, "identity": <identity.json>, "delegation": <delegation.json>}}

Checked in this order, and the first failure is the answer:

1. size, form
2. proof: chain, identity document, delegation, revocation list, dates (`sbctl.trust.node_identity`, by what the reader holds)
3. payload type, signature by the key of that certificate
4. strict JSON, schema
5. cluster; the signer is who the document says; identity epoch, roles and labels are those of the certificate
6. role
7. high-water marks: identity epoch, certificate, boot epoch; for snapshots their counter
8. times: not from the future, not expired, not longer valid than its kind may be

Fences of the lease-holder's documents are in `sbctl.trust.cluster_fences`; lifetime, audience and nonce of a dispatch belong to the worker
that takes it. Pure but for a memory of proofs that were good, which never outlives their dates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.schema_faults import first_fault
from sbctl.base.secret import Secret
from sbctl.node.cluster_documents import ClusterDocument, NodeSnapshotDocument
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.envelope import open_signed, sign_with
from sbctl.trust.identity import HighWater, IdentityClaims, admit
from sbctl.trust.node_identity import NodeIdentity, NodeIdentityFiles, verify_certificate, verify_node_identity
from sbctl.trust.node_keys import node_signs, node_verifies
from sbctl.trust.peer_kinds import DocumentKind, check_moments
from sbctl.trust.revocation import open_revocations

__all__ = ["NodeSigner", "Peer", "PeerMark", "PeerVerifier", "TrustedMaterial", "VerifiedDocument"]

_PROOF_MAX_BYTES: Final = 128 * 1024
_PROOFS_KEPT: Final = 4096

Document = TypeVar("Document", bound=ClusterDocument)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class _Proof(_Strict):
    certificate_chain: str = Field(min_length=1, max_length=_PROOF_MAX_BYTES)
    identity: str | None = Field(default=None, max_length=_PROOF_MAX_BYTES)
    delegation: str | None = Field(default=None, max_length=_PROOF_MAX_BYTES)


class _Signed(_Strict):
    schema_version: Literal[1] = 1
    envelope: str
    proof: _Proof


@dataclass(frozen=True, slots=True)
class PeerMark:
    """The newest that was accepted of one peer; kept across restarts. `counter` and `digest` are of its snapshots, within one boot epoch."""

    identity: HighWater
    counter: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that proved itself."""

    claims: IdentityClaims
    certificate_sha256: str
    """Hex; equals the digest of the certificate that the same node shows in TLS."""
    until: datetime
    """The first end of all that its proof stands on."""


@dataclass(frozen=True, slots=True)
class VerifiedDocument(Generic[Document]):
    """A document that counts. `mark` is durable at its reader before the document is used; `digest` is of the signed bytes."""

    document: Document
    peer: Peer
    digest: str
    mark: PeerMark


@dataclass(frozen=True, slots=True)
class TrustedMaterial:
    """What a reader judges peers by: its own CA bundle, authority keys and newest revocation list. The last two are None with a PKI of the
    user's own."""

    cluster_id: str
    ca: str
    authority_key: str | None
    revocations: str | None

    @classmethod
    def of(cls, cluster_id: str, files: NodeIdentityFiles) -> TrustedMaterial:
        """From a node's own identity directory."""
        return cls(cluster_id, files.ca, files.authority_key, files.revocations)


class NodeSigner:
    """Signs a node's documents: with its key, beside the proof of who it is. Made anew when the identity is renewed."""

    def __init__(self, files: NodeIdentityFiles, key: Secret, *, now: datetime) -> None:
        """Raises what `verify_node_identity` raises: nothing is signed in the name of an identity that does not count."""
        self.identity: NodeIdentity = verify_node_identity(files, key=key, now=now)
        self._sign = node_signs(key)
        self._proof = _Proof(certificate_chain=files.certificate, identity=files.identity, delegation=files.delegation)

    @property
    def node_id(self) -> str:
        return self.identity.claims.node_id

    def sign(self, kind: DocumentKind[Document], document: Document) -> str:
        """The signed text.

        Raises RefusedError `peer.too_large`; `peer.wrong_signer`, `peer.identity_mismatch` for a document in somebody else's name.
        """
        _check_signer(document, self.identity.claims)
        payload = document.model_dump_json(exclude_defaults=kind.is_sparse).encode()
        if len(payload) > kind.max_bytes:
            raise RefusedError(
                "peer.too_large",
                f"the {kind.noun} of {document.signer} has {len(payload)} bytes; at most {kind.max_bytes} are accepted",
                next_step="a node or a cluster of this size has to be split",
            )
        envelope = sign_with(kind.payload_type, payload, {self.node_id: self._sign})
        return _Signed(envelope=envelope, proof=self._proof).model_dump_json()


@dataclass(frozen=True, slots=True)
class _GoodProof:
    identity: NodeIdentity
    verifies: Callable[[bytes, bytes], bool]
    seen_at: datetime
    delegated: bool


class PeerVerifier:
    """Opens what peers signed, by one state of `TrustedMaterial`; another list or CA is another verifier. One thread at a time."""

    def __init__(self, material: TrustedMaterial) -> None:
        self.material = material
        self._proofs: OrderedDict[str, _GoodProof] = OrderedDict()

    def followed_by(self, material: TrustedMaterial) -> PeerVerifier:
        """The verifier for what counts from now on. Where only the revocation list is another, proofs that it does not touch stay good: a
        cluster does not prove itself all over because one node was taken away."""
        after = PeerVerifier(material)
        same = (self.material.ca, self.material.authority_key) == (material.ca, material.authority_key)
        if same and material.authority_key is not None and material.revocations is not None:
            listed = open_revocations(material.revocations, AuthorityKeys.parse(material.authority_key))
            epochs = {entry.node_id: entry.identity_epoch for entry in listed.entries}
            for name, proof in self._proofs.items():
                claims = proof.identity.claims
                if not proof.delegated and claims.identity_epoch > epochs.get(claims.node_id, 0):
                    after._proofs[name] = proof
        return after

    def open(
        self,
        text: str,
        kind: DocumentKind[Document],
        *,
        now: datetime,
        marks: Mapping[str, PeerMark],
        publisher: str | None = None,
    ) -> VerifiedDocument[Document]:
        """Accept or refuse by the rules of this module. `marks` are by node id; `publisher`: whose place in the store it came from.

        Raises InputError `peer.malformed`, `peer.too_large`, `peer.too_new`, `envelope.*`, `json.*`, `identity.*`, `certificate.*`;
        RefusedError `certificate.*`, `delegation.*`, `identity.*`, `envelope.wrong_type`, `envelope.bad_signature`, `peer.*`.
        """
        signed = _parse(text, kind)
        good = self._proven(signed.proof, now)
        claims = good.identity.claims
        opened = open_signed(
            signed.envelope, kind.payload_type, {claims.node_id: good.verifies}, max_bytes=kind.max_bytes
        )
        document = _document(opened.payload, kind)
        self._check_claims(document, claims, publisher)
        if kind.role is not None and kind.role not in claims.roles:
            raise RefusedError(
                "peer.wrong_role",
                f"{claims.node_id} has no role {kind.role}, and only such a node signs a {kind.noun}",
                next_step="a node that oversteps its role may be taken over: sbctl cluster revoke NODE",
                detail={"alarm": True},
            )
        digest = sha256_bytes(opened.payload)
        peer = Peer(claims, good.identity.certificate.fingerprint, good.identity.until)
        mark = _advanced(marks.get(claims.node_id), document, peer, digest)
        check_moments(kind, document, now)
        return VerifiedDocument(document, peer, digest, mark)

    def _proven(self, proof: _Proof, now: datetime) -> _GoodProof:
        name = sha256_bytes(proof.model_dump_json().encode())
        known = self._proofs.get(name)
        if known is not None and known.seen_at <= now <= known.identity.until:
            self._proofs.move_to_end(name)
            return known
        files = NodeIdentityFiles(
            certificate=proof.certificate_chain,
            ca=self.material.ca,
            identity=proof.identity,
            authority_key=self.material.authority_key,
            revocations=self.material.revocations,
            delegation=proof.delegation,
        )
        identity = verify_certificate(files, now=now)
        good = _GoodProof(identity, node_verifies(proof.certificate_chain), now, proof.delegation is not None)
        self._proofs[name] = good
        while len(self._proofs) > _PROOFS_KEPT:
            self._proofs.popitem(last=False)
        return good

    def _check_claims(self, document: ClusterDocument, claims: IdentityClaims, publisher: str | None) -> None:
        if document.cluster_id != self.material.cluster_id or claims.cluster_id != self.material.cluster_id:
            raise RefusedError(
                "peer.wrong_cluster",
                f"the document is of the cluster {document.cluster_id}, signed by a node of {claims.cluster_id}; "
                f"this is {self.material.cluster_id}",
            )
        _check_signer(document, claims)
        if publisher is not None and publisher != claims.node_id:
            raise RefusedError(
                "peer.wrong_publisher",
                f"a document of {claims.node_id} stands in the place of {publisher}",
                next_step="one of the two writes where it may not: look at both",
                detail={"alarm": True},
            )


def _check_signer(document: ClusterDocument, claims: IdentityClaims) -> None:
    """Raises RefusedError `peer.wrong_signer`, `peer.identity_mismatch`."""
    if document.signer != claims.node_id:
        raise RefusedError(
            "peer.wrong_signer",
            f"the document says it is of {document.signer}, and {claims.node_id} signed it",
            next_step="a node that speaks for another may be taken over: sbctl cluster revoke NODE",
            detail={"alarm": True},
        )
    wrong = _differing(document, claims)
    if wrong:
        raise RefusedError(
            "peer.identity_mismatch",
            f"what {claims.node_id} says of itself differs from its certificate in {wrong}",
            next_step="its configuration and its identity are of different times: sbctl apply brings both together",
        )


def _differing(document: ClusterDocument, claims: IdentityClaims) -> str:
    if document.identity_epoch != claims.identity_epoch:
        return "identity_epoch"
    if isinstance(document, NodeSnapshotDocument):
        if sorted(document.node.roles) != sorted(claims.roles):
            return "roles"
        if dict(document.node.labels) != dict(claims.labels):
            return "labels"
    return ""


def _advanced(seen: PeerMark | None, document: ClusterDocument, peer: Peer, digest: str) -> PeerMark:
    """The mark after this document. Raises RefusedError of `admit`, `peer.old_counter`, `peer.counter_conflict`."""
    shown = HighWater(peer.claims.identity_epoch, peer.certificate_sha256, document.boot_epoch)
    identity = admit(None if seen is None else seen.identity, shown)
    same_boot = seen is not None and seen.identity.boot_epoch == shown.boot_epoch
    counter, known = (seen.counter, seen.digest) if seen is not None and same_boot else (0, "")
    if not isinstance(document, NodeSnapshotDocument):
        return PeerMark(identity, counter, known)
    if document.counter < counter:
        raise RefusedError(
            "peer.old_counter",
            f"snapshot {document.counter} of {document.signer} comes after {counter} was seen",
            next_step="it is a replay, or a copy of the node is running: stop one of them",
        )
    if document.counter == counter and digest != known:
        raise RefusedError(
            "peer.counter_conflict",
            f"two snapshots of {document.signer} have the number {counter}",
            next_step="two processes use the identity of one node: stop one of them",
            detail={"alarm": True},
        )
    return PeerMark(identity, document.counter, digest)


def _parse(text: str, kind: DocumentKind[Document]) -> _Signed:
    most = kind.max_bytes * 3 // 2 + 3 * _PROOF_MAX_BYTES
    if len(text) > most:
        raise InputError("peer.too_large", f"a {kind.noun} with its proof has at most {most} characters")
    strict_json.loads(text.encode("utf-8", "surrogatepass"), max_bytes=2 * most, max_depth=4)
    try:
        return _Signed.model_validate_json(text)
    except ValidationError as error:
        raise InputError("peer.malformed", f"this is no signed {kind.noun} (at {first_fault(error)[0]})") from None


def _document(payload: bytes, kind: DocumentKind[Document]) -> Document:
    """Raises InputError `json.*`, `peer.malformed`, `peer.too_new`."""
    parsed = strict_json.loads(payload, max_bytes=kind.max_bytes, max_depth=16)
    version = parsed.get("schema_version") if isinstance(parsed, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > 1:
        raise InputError(
            "peer.too_new",
            f"the {kind.noun} has schema version {version}; this runtime knows 1",
            next_step="bring all nodes to one version: sbctl apply",
        )
    try:
        return kind.model.model_validate_json(payload)
    except ValidationError as error:
        where, what = first_fault(error)
        raise InputError("peer.malformed", f"the {kind.noun} is wrong at {where}: {what}") from None
