"""By what this node judges its peers, and in whose name it signs: its identity directory with the newest revocation list over it.

The list comes with an apply (in the identity directory) or from the store (kept as `<state>/revocations.json`); the newer of the two counts,
at every start and at every change, and an older one never comes back. A peer is checked again with each request, so a revocation takes hold
without any connection ending first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.limits import MIB
from sbctl.base.secret import Secret
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.log import get_log
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.identity import HighWater, admit
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.peer_documents import NodeSigner, Peer, PeerMark, PeerVerifier, TrustedMaterial
from sbctl.trust.revocation import RevocationList, newer_revocations, open_revocations, refuse_revoked

__all__ = ["HeldTrust"]

_NAME: Final = "revocations.json"
_MAX_BYTES: Final = 6 * MIB


class HeldTrust:
    """`files` are those of the identity directory, with the newest list in place of its own. `signer` is None while this node's own identity
    does not count (`problem` says why): it judges peers, and says nothing itself.

    Used by one event loop; `offer_revocations` writes a file and is called where that may block.
    """

    def __init__(self, cluster_id: str, identity: IdentityFiles, state: Path, *, now: datetime) -> None:
        """Raises what reading the identity directory raises, and InputError or RefusedError for a list in it that does not count."""
        self.cluster_id = cluster_id
        self._identity = identity
        self._copy = state / _NAME
        self._log = get_log("cluster")
        self._listeners: list[Callable[[], None]] = []
        self.revocations: RevocationList | None = None
        self.problem: SbctlError | None = None
        self.signer: NodeSigner | None = None
        self.verifier = PeerVerifier(TrustedMaterial(cluster_id, "", None, None))
        self.reload(now=now)

    def reload(self, *, now: datetime) -> None:
        """Take up what the identity directory holds now: after a renewal, an apply, a rollover of the CA. Raises as the constructor."""
        files = self._identity.read()
        if files.authority_key is not None and files.revocations is not None:
            keys = AuthorityKeys.parse(files.authority_key)
            listed = open_revocations(files.revocations, keys)
            files, self.revocations = self._with_newest(files, listed, keys)
        else:
            self.revocations = None
        self._take(files, now)

    def _with_newest(
        self, files: NodeIdentityFiles, listed: RevocationList, keys: AuthorityKeys
    ) -> tuple[NodeIdentityFiles, RevocationList]:
        """The copy from the store, where it is newer. One that the keys of today did not sign is of before a rollover."""
        try:
            text = fs.read_bounded(self._copy, max_bytes=_MAX_BYTES).decode("utf-8", "replace")
            newest = newer_revocations(listed, text, keys, cluster_id=self.cluster_id)
        except InputError as error:
            if error.code != "file.missing":
                self._log.warning("the kept revocation list cannot be read", code=error.code, reason=error.message)
            return files, listed
        except RefusedError as error:
            if error.code != "revocations.stale":
                self._log.warning("the kept revocation list is not used", code=error.code, reason=error.message)
            return files, listed
        return (files, listed) if newest is None else (replace(files, revocations=text), newest)

    def _take(self, files: NodeIdentityFiles, now: datetime) -> None:
        self.files = files
        entries = () if self.revocations is None else self.revocations.entries
        self._revoked = {entry.node_id: entry.identity_epoch for entry in entries}
        self.verifier = self.verifier.followed_by(TrustedMaterial.of(self.cluster_id, files))
        try:
            self.signer, self.problem = NodeSigner(files, self.key(), now=now), None
        except SbctlError as error:
            self.signer, self.problem = None, error
            self._log.error("this node cannot speak in its cluster", code=error.code, reason=error.message)
        for listener in self._listeners:
            listener()

    def required_signer(self) -> NodeSigner:
        """Raises `problem`; SbctlError `cluster.no_identity` where there is none to tell."""
        if self.signer is None:
            raise self.problem or SbctlError("cluster.no_identity", "this node holds no identity")
        return self.signer

    def key(self) -> Secret:
        """The private key that goes with `files`. Raises as `IdentityFiles.key`."""
        return self._identity.key()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Told after every change of list, CA or identity: whoever holds connections looks at their peers again."""
        self._listeners.append(listener)

    def offer_revocations(self, text: str, *, now: datetime) -> bool:
        """A list that the store shows. Durable before it counts. False: it is the one that is held.

        Raises as `newer_revocations`; RefusedError `revocations.none_here` with a PKI of the user's own; SbctlError of the disk.
        """
        if self.files.authority_key is None:
            raise RefusedError(
                "revocations.none_here",
                "with a PKI of your own there is no revocation list of sbctl's",
                next_step="take a node away by a new CA: sbctl apply installs it",
            )
        keys = AuthorityKeys.parse(self.files.authority_key)
        newest = newer_revocations(self.revocations, text, keys, cluster_id=self.cluster_id)
        if newest is None:
            return False
        fs.write_atomic(self._copy, text.encode())
        self.revocations = newest
        self._log.info("revocation list taken up", revision=newest.revision, entries=len(newest.entries))
        self._take(replace(self.files, revocations=text), now)
        return True

    def check(self, peer: Peer, marks: Mapping[str, PeerMark]) -> None:
        """With every request of a peer that proved itself once. Raises RefusedError `identity.revoked`, `identity.epoch_rollback`,
        `identity.epoch_conflict`."""
        if self.revocations is not None and peer.claims.identity_epoch <= self._revoked.get(peer.claims.node_id, 0):
            refuse_revoked(self.revocations, peer.claims)
        seen = marks.get(peer.claims.node_id)
        if seen is not None:
            boot = seen.identity.boot_epoch
            admit(seen.identity, HighWater(peer.claims.identity_epoch, peer.certificate_sha256, boot))
