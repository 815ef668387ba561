"""The directory that an enrollment leaves: complete and verified, or not there.

    .OUT.enrolling/     while it lasts: node-key.pem, which is made first and kept, so that a repeated command is the same request
    OUT/                node-key.pem node.pem ca.pem identity.json authority-verifying.key revocations.json [delegation.json]
                        enrollment-server.json: where it renews

The private key is made here, 0600, and stays. What the authority answered is verified from the files themselves before they get their name.
"""

from __future__ import annotations

import os
import stat
from datetime import datetime
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.certificates import public_key_digest, verify_leaf
from sbctl.trust.enrollment_client import Authenticated
from sbctl.trust.enrollment_source import SOURCE_FILE
from sbctl.trust.identity import Grant
from sbctl.trust.node_identity import IDENTITY_FILE_NAMES, NodeIdentity, NodeIdentityFiles, verify_node_identity

__all__ = ["EnrolledDirectory"]

_KEY: Final = "node-key.pem"
_FILE_MAX_BYTES: Final = 4 * 1024 * 1024


class EnrolledDirectory:
    """One enrollment into `target`."""

    def __init__(self, target: Path) -> None:
        """Raises RefusedError `enroll.exists`, `enroll.unsafe_stage`; SbctlError `disk.*`."""
        self.target = target
        self.stage = target.parent / f".{target.name}.enrolling"
        self._refuse_existing()
        fs.ensure_directory(target.parent, mode=0o755)
        fs.ensure_directory(self.stage)
        status = os.lstat(self.stage)
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise RefusedError(
                "enroll.unsafe_stage",
                "this must be a directory that only you can use, since the private key is made in it",
                place=str(self.stage),
                next_step="look who made it, then remove it",
            )

    def request(self, node_id: str) -> str:
        """The certificate request, PEM: of the key that an earlier try made, or of a new one."""
        try:
            key = self._key()
            public_key_digest(key)
        except SbctlError:
            key = generate_private_key()
            fs.write_atomic(self.stage / _KEY, key.reveal())
        return create_request(key, node_id)

    def finish(self, got: Authenticated, grant: Grant, now: datetime) -> NodeIdentity:
        """Write, verify, and give it its name. Raises what `verify_node_identity` raises; RefusedError `enroll.wrong_identity`, `enroll.exists`."""
        texts = {
            "certificate": got.answer.certificate,
            "ca": got.answer.ca,
            "identity": got.answer.identity,
            "authority_key": got.answer.authority_key.strip() + "\n",
            "revocations": got.answer.revocations,
            "delegation": got.answer.delegation,
        }
        for field, name in IDENTITY_FILE_NAMES.items():
            text = texts[field]
            if text is not None:
                fs.write_atomic(self.stage / name, text.encode())
            else:
                fs.remove_file(self.stage / name)
        fs.write_atomic(self.stage / SOURCE_FILE, got.server.source().to_json())
        identity = self._verified(got, grant, now)
        self._refuse_existing()
        fs.publish_directory(self.stage, self.target)
        return identity

    def abandon(self) -> None:
        """Forget the key: the authority will not answer this request."""
        fs.remove_tree(self.stage)

    def _key(self) -> Secret:
        return Secret(fs.read_bounded(self.stage / _KEY, max_bytes=_FILE_MAX_BYTES))

    def _text(self, field: str) -> str | None:
        if field == "delegation" and not os.path.lexists(self.stage / IDENTITY_FILE_NAMES[field]):
            return None
        return fs.read_bounded(self.stage / IDENTITY_FILE_NAMES[field], max_bytes=_FILE_MAX_BYTES).decode(
            "utf-8", "replace"
        )

    def _verified(self, got: Authenticated, grant: Grant, now: datetime) -> NodeIdentity:
        texts = {field: self._text(field) for field in IDENTITY_FILE_NAMES}
        files = NodeIdentityFiles(
            certificate=texts["certificate"] or "",
            ca=texts["ca"] or "",
            identity=texts["identity"],
            authority_key=texts["authority_key"],
            revocations=texts["revocations"],
            delegation=texts["delegation"],
        )
        identity = verify_node_identity(files, key=self._key(), now=now)
        verify_leaf(files.certificate, got.ca, server_name=identity.claims.server_name, now=now)
        claims = identity.claims
        found = (claims.cluster_id, claims.node_id, claims.roles, claims.labels)
        wanted = (got.cluster_id, grant.node_id, grant.roles, grant.labels)
        names = ("cluster", "name", "roles", "labels")
        wrong = [name for name, one, other in zip(names, found, wanted, strict=True) if one != other]
        if wrong:
            raise RefusedError(
                "enroll.wrong_identity",
                f"the identity that came is not the one that was asked for: another {wrong[0]}",
                next_step="nothing was installed; look into the authority's log",
            )
        return identity

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.target):
            raise RefusedError(
                "enroll.exists",
                "something stands here already, and an identity is never overwritten",
                place=str(self.target),
                next_step="name another directory (--out)",
            )
