"""The cluster's authority: issues identities, rotates and revokes them, and takes its CA over into a next one without a gap.

Who may be what is the caller's to say (sb.yml, or a token's grant); the epoch, the dates and the signatures are made here. Issuing is
idempotent: the same key, grant and rotation get the same certificate again while it is fresh, so a lost answer costs no epoch. What signs,
and how it is replaced, is in `authority_signers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.fs import sweep_temporaries
from sbctl.trust.authority_directory import (
    KEY_ID,
    AuthorityFiles,
    AuthoritySettings,
    EnrollmentRecord,
    NodeRecord,
    staged,
)
from sbctl.trust.authority_facts import AuthorityFacts, rollover
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.authority_signers import AuthoritySigners
from sbctl.trust.certificate_making import (
    LEAF_VALIDITY,
    KeyPair,
    create_ca,
    create_request,
    generate_private_key,
    issue_leaf,
)
from sbctl.trust.certificates import certificate_facts, is_fresh, matches, request_key_digest
from sbctl.trust.delegating import Asked, delegated, entry_of_server, is_the_same
from sbctl.trust.identity import Grant, IdentityClaims, document_of, sign_identity
from sbctl.trust.keys import SigningKey, parse_public_key
from sbctl.trust.revocation import Revocation, RevocationList, revoked, sign_revocations

__all__ = ["Authority", "Issued"]

_NOT_COMMITTED: Final = "*-key.pem\nauthority*-signing.key\n.*.lock\ntokens.db*\nenrollment-audit.jsonl\n"
_STAGE_AGE_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Issued:
    """What a node gets: all of it public."""

    certificate: str
    identity: str
    identity_epoch: int
    fingerprint: str
    issuer: str


class Authority:
    """One authority directory, checked when opened."""

    def __init__(self, files: AuthorityFiles) -> None:
        self._files = files
        self._settings = files.settings()
        self._signers = AuthoritySigners(files)

    @classmethod
    def open(cls, directory: Path) -> Authority:
        """Raises InputError `authority.missing`, `authority.incomplete`, `identity.incomplete`; RefusedError `authority.permissions`."""
        files = AuthorityFiles(directory)
        files.check()
        return cls(files)

    @classmethod
    def create(cls, directory: Path, *, cluster_id: str, grant: Grant, server_name: str, now: datetime) -> Authority:
        """All of it or nothing. Raises RefusedError `authority.exists`, SbctlError `disk.*`."""
        if directory.parent.is_dir():
            sweep_temporaries(directory.parent, older_than_s=_STAGE_AGE_S, now_s=now.timestamp())
        with staged(directory) as files:
            ca, signer = create_ca(cluster_id, now=now), SigningKey.generate()
            settings = AuthoritySettings(cluster_id=cluster_id, server_name=server_name, node_id=grant.node_id)
            files.write("ca-key.pem", ca.key)
            files.write("ca.pem", ca.certificate)
            files.write("authority-signing.key", signer.to_pem())
            files.write("authority-verifying.key", signer.public_text + "\n")
            files.write_document("authority.json", settings)
            files.write(".gitignore", _NOT_COMMITTED)
            empty = RevocationList(cluster_id=cluster_id, revision=0)
            files.write("revocations.json", sign_revocations(empty, {KEY_ID: signer}))
            authority = cls(files)
            authority._renew_own(grant, now)
        return cls.open(directory)

    @property
    def directory(self) -> Path:
        return self._files.directory

    @property
    def settings(self) -> AuthoritySettings:
        return self._settings

    @property
    def verifying_key(self) -> str:
        return self._files.verifying_key()

    def revocations(self) -> tuple[str, RevocationList]:
        """The signed text and what it says."""
        return self._signers.revocations()

    def keys(self, fingerprints: Sequence[str]) -> AuthorityKeys:
        """The signing keys of these CAs, as nodes hold them. Raises InputError `authority.unknown_ca`."""
        self.bundle(fingerprints)
        known = self._signers.verifying_keys()
        return AuthorityKeys(tuple(known[fingerprint] for fingerprint in fingerprints))

    def node(self, node_id: str) -> NodeRecord:
        return self._files.node(node_id)

    def issued_to(self, node_id: str) -> Issued | None:
        """The newest identity of a node; None when it has none, or when that was revoked."""
        return _newest(self._files.node(node_id))

    def facts(self, held: Iterable[Mapping[str, Any]] = ()) -> AuthorityFacts:
        """What plans compare with; needs no private key. `held` as for `rollover`."""
        known, keys = self._signers.certificates(), self._signers.verifying_keys()
        trusted, issuer, step = rollover(next(iter(known)), self._signers.following, held)
        return AuthorityFacts(
            cluster_id=self._settings.cluster_id,
            server_name=self._settings.server_name,
            authority_key=keys[issuer],
            authority_keys=tuple(keys[fingerprint] for fingerprint in trusted),
            ca=trusted,
            issuer=issuer,
            revocations=self.revocations()[1].revision,
            rollover=step,
            nodes=self._files.nodes(),
            keys_here=self._files.has("ca-key.pem") and self._files.has("authority-signing.key"),
            ca_not_after=certificate_facts(known[issuer]).not_after,
            enrollment=self._files.enrollment(),
        )

    def bundle(self, fingerprints: Sequence[str]) -> str:
        """The certificates of these CAs, PEM. Raises InputError `authority.unknown_ca`."""
        return self._signers.bundle(fingerprints)

    def issue(
        self,
        request: str,
        grant: Grant,
        *,
        now: datetime,
        issuer: str | None = None,
        validity: timedelta = LEAF_VALIDITY,
        least_epoch: int = 0,
    ) -> Issued:
        """An identity for the public key of `request`. `issuer`: fingerprint of the CA, the current one when None. `least_epoch`: the newest that
        anybody has seen of this node; the new one is above it.

        Raises RefusedError `identity.revoked` for a node that was revoked and not rotated since, `authority.no_key`, `certificate.*`;
        InputError `certificate.request_invalid`, `authority.unknown_ca`.
        """
        key_sha256 = request_key_digest(request)
        with self._files.locked():
            record = self._files.node(grant.node_id)
            self._refuse_revoked(record)
            name = self._signers.name(issuer)
            ca = self._files.key_pair(name)
            again = _issued_before(
                record,
                grant,
                key_sha256=key_sha256,
                ca=certificate_facts(ca.certificate).fingerprint,
                least_epoch=least_epoch,
                now=now,
            )
            if again is not None:
                return again
            claims = IdentityClaims(
                cluster_id=self._settings.cluster_id,
                server_name=self._settings.server_name,
                identity_epoch=max(record.identity_epoch, least_epoch) + 1,
                **grant.model_dump(),
            )
            signer = self._signers.signing_key(name)
            issued = self._made(request, claims, ca, signer, now=now, validity=validity)
            update = {"grant": grant, "key_sha256": key_sha256, "issued_rotation": record.rotation, **asdict(issued)}
            self._files.write_node(record.model_copy(update=update))
        return issued

    def _made(
        self,
        request: str,
        claims: IdentityClaims,
        ca: KeyPair,
        signer: SigningKey,
        *,
        now: datetime,
        validity: timedelta,
    ) -> Issued:
        """A certificate and its document, of which the ledger knows nothing yet."""
        leaf = issue_leaf(ca, request, claims, now=now, validity=validity)
        facts = certificate_facts(leaf)
        document = document_of(
            claims,
            certificate_sha256=facts.fingerprint,
            issued_at=now,
            expires_at=facts.not_after,
            authority_key_id=KEY_ID,
        )
        return Issued(
            leaf + self._files.chain(),
            sign_identity(document, signer),
            claims.identity_epoch,
            facts.fingerprint,
            certificate_facts(ca.certificate).fingerprint,
        )

    def rotate(self, node_ids: Iterable[str]) -> tuple[NodeRecord, ...]:
        """Ask for a new identity of each; the next apply has it issued. A revoked node is let in again by this."""
        with self._files.locked():
            records = [self._files.node(node_id) for node_id in dict.fromkeys(node_ids)]
            asked = [record.model_copy(update={"rotation": record.issued_rotation + 1}) for record in records]
            for record in asked:
                self._files.write_node(record)
        return tuple(asked)

    def revoke(self, node_id: str, *, reason: str, now: datetime) -> RevocationList:
        """Take the node's identities up to the newest away. Raises InputError `identity.unknown`."""
        with self._files.locked():
            record = self._files.node(node_id)
            if record.certificate is None or record.fingerprint is None:
                raise InputError(
                    "identity.unknown",
                    f"no identity was issued to {node_id}",
                    place=str(self.directory),
                    next_step="sbctl cluster status lists the nodes",
                )
            _, listed = self.revocations()
            if record.revoked_epoch >= record.identity_epoch and any(one.node_id == node_id for one in listed.entries):
                if record.rotation > record.issued_rotation:
                    # It was asked for a new identity since, which it shall not get.
                    self._files.write_node(record.model_copy(update={"rotation": record.issued_rotation}))
                return listed
            entry = Revocation(
                node_id=node_id,
                identity_epoch=record.identity_epoch,
                fingerprint=record.fingerprint,
                reason=reason,
                revoked_at_unix_secs=int(now.timestamp()),
                expires_at_unix_secs=int(certificate_facts(record.certificate).not_after.timestamp()),
            )
            following = revoked(listed, entry, now_unix_secs=int(now.timestamp()))
            server = self._files.enrollment()
            if server is not None and server.node_id == node_id and server.epoch > server.revoked_epoch:
                following = revoked(following, entry_of_server(server, entry), now_unix_secs=int(now.timestamp()))
                following = following.model_copy(update={"revision": listed.revision + 1})
                self._files.write_document("enrollment.json", server.model_copy(update={"revoked_epoch": server.epoch}))
            signed = self._signers.sign_revocations(following)
            # The list first: cut in between, the command is repeated and finds it.
            self._files.write("revocations.json", signed)
            self._files.write_node(
                record.model_copy(update={"revoked_epoch": record.identity_epoch, "rotation": record.issued_rotation})
            )
        return following

    def delegate(
        self, request: str, verifying_key: str, *, node_id: str, issuer: str, validity_days: int, now: datetime
    ) -> EnrollmentRecord:
        """Let the enrollment server on `node_id` issue, with these two keys of its own. The same keys get the same again while that is fresh.

        Raises RefusedError `identity.revoked`, `authority.no_key`, `certificate.*`; InputError `certificate.request_invalid`, `key.*`.
        """
        with self._files.locked():
            self._refuse_revoked(self._files.node(node_id))
            asked = Asked(node_id, request, parse_public_key(verifying_key).text, issuer, validity_days)
            before = self._files.enrollment()
            if before is not None and is_the_same(before, asked, now):
                return before
            name = self._signers.name(issuer)
            record = delegated(
                asked,
                before,
                cluster_id=self._settings.cluster_id,
                ca=self._files.key_pair(name),
                signer=self._signers.signing_key(name),
                now=now,
            )
            self._files.write_document("enrollment.json", record)
        return record

    def adopt(self, record: NodeRecord) -> None:
        """Put into the ledger what an enrollment server gave, so that it can be taken away here."""
        with self._files.locked():
            known = self._files.node(record.node_id)
            if record.identity_epoch >= known.identity_epoch:
                kept = {"revoked_epoch": known.revoked_epoch, "rotation": known.rotation}
                self._files.write_node(record.model_copy(update=kept))

    def begin_rollover(self, *, now: datetime) -> str:
        """Make the next CA and the next signing key; the CA's fingerprint. Those that wait already are kept. Raises RefusedError
        `authority.no_key`."""
        with self._files.locked():
            return self._signers.begin(self._settings.cluster_id, now=now)

    def finish_rollover(self, held: Sequence[Mapping[str, Any]], *, now: datetime) -> bool:
        """Once every host trusts the next CA alone it becomes the current one, its signing key with it, and the old keys are destroyed. False
        when it is not yet so, or the keys are not here. Cut anywhere, it is finished by the next call."""
        with self._files.locked():
            if not self._signers.finish(held):
                return False
        own = self._files.node(self._settings.node_id)
        if own.grant is not None:
            self._renew_own(own.grant, now)
        return True

    def own_files(self) -> tuple[Path, Path]:
        """Certificate and key that an enrollment server shows, rights checked. Raises RefusedError `enroll.own_role`: hosts show their token to
        nobody but an authority, since every host of the cluster answers to the same server name."""
        if "authority" not in certificate_facts(self._files.text("node.pem")).claims.roles:
            raise RefusedError(
                "enroll.own_role",
                "the authority's own identity has not the role authority, so no host would show it a token",
                place=str(self._files.path("node.pem")),
                next_step="make an authority whose identity has it: sbctl cluster init --role authority",
            )
        self._files.secret("node-key.pem")
        return self._files.path("node.pem"), self._files.path("node-key.pem")

    def trusted_ca(self) -> str:
        """What hosts trust, PEM."""
        return self._files.trusted_ca()

    def own_fingerprint(self) -> str:
        """Of the certificate in node.pem."""
        return certificate_facts(self._files.text("node.pem")).fingerprint

    def renew_own(self, *, now: datetime) -> bool:
        """Renew node.pem past its half-life, or when a crash left it beside another key; what an enrollment server calls. Whether it did."""
        own = self._files.node(self._settings.node_id)
        certificate = self._files.text("node.pem")
        fresh = is_fresh(certificate, now)
        if own.grant is None or (fresh and matches(certificate, self._files.secret("node-key.pem"))):
            return False
        self._renew_own(own.grant, now)
        return True

    def _renew_own(self, grant: Grant, now: datetime) -> None:
        key = generate_private_key()
        issued = self.issue(create_request(key, grant.node_id), grant, now=now)
        self._files.write("node-key.pem", key)
        self._files.write("node.pem", issued.certificate)
        self._files.write("identity.json", issued.identity)

    def _refuse_revoked(self, record: NodeRecord) -> None:
        if record.is_shut_out:
            raise RefusedError(
                "identity.revoked",
                f"the identity of {record.node_id} was revoked, so none is issued to it",
                place=str(self.directory),
                next_step=f"let it in again on purpose: sbctl cluster rotate {record.node_id}, then sbctl apply",
            )


def _newest(record: NodeRecord) -> Issued | None:
    """What was issued last, by the ledger; None when nothing was, or when it was revoked."""
    if record.certificate is None or record.identity is None or record.fingerprint is None or record.issuer is None:
        return None
    if record.revoked_epoch >= record.identity_epoch:
        return None
    return Issued(record.certificate, record.identity, record.identity_epoch, record.fingerprint, record.issuer)


def _issued_before(
    record: NodeRecord, grant: Grant, *, key_sha256: str, ca: str, least_epoch: int, now: datetime
) -> Issued | None:
    """What was issued for the same request and never arrived; it must still be above every epoch that was seen."""
    newest = _newest(record)
    asked = (record.key_sha256, record.grant, record.issuer, record.issued_rotation)
    if newest is None or asked != (key_sha256, grant, ca, record.rotation) or newest.identity_epoch <= least_epoch:
        return None
    return newest if is_fresh(newest.certificate, now) else None
