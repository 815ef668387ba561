"""The identity directory of a node: where its files are, how a new one takes the place of the old one, and how it is read.

    <etc>/identity                     a link to the one in use: identities/<16 hex of its content>
    <etc>/identities/<content>/        node.pem node-key.pem ca.pem identity.json authority-verifying.key revocations.json
                                   [delegation.json]
    <etc>/identities/request/          node-key.pem and node-request.pem of an identity that was asked for and is not here yet

A directory is complete before the link names it, and the old one stays until the new one was taken up. A private key is made here and never
leaves. Where the runtime has an account of its own, which the group of <etc> says, it may read and nobody else.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.digests import fingerprint, sha256_bytes
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.paths import NodePaths
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.certificates import certificate_facts, public_key_digest, read_chain, request_key_digest
from sbctl.trust.node_identity import IDENTITY_FILE_NAMES, NodeIdentity, NodeIdentityFiles, verify_node_identity

__all__ = ["IdentityFiles", "Pending", "installed_state"]

_FILE_MAX_BYTES: Final = 4 * 1024 * 1024
_KEY: Final = "node-key.pem"
_REQUEST: Final = "request"


@dataclass(frozen=True, slots=True)
class Pending:
    """A key that waits for its certificate."""

    key: Secret
    request: str


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """What of this node's identity is installed, and the request that waits for another one."""

    paths: NodePaths

    @property
    def link(self) -> Path:
        return self.paths.etc / "identity"

    @property
    def store(self) -> Path:
        return self.paths.etc / "identities"

    def exists(self) -> bool:
        return os.path.lexists(self.link)

    def read(self, directory: Path | None = None) -> NodeIdentityFiles:
        """Raises InputError `file.*` when certificate or CA are missing."""
        place = directory or self.link
        texts = {field: _text(place / name) for field, name in IDENTITY_FILE_NAMES.items()}
        for field in ("certificate", "ca"):
            if texts[field] is None:
                raise InputError(
                    "file.missing",
                    "the node's identity lacks this file",
                    place=str(place / IDENTITY_FILE_NAMES[field]),
                    next_step="run sbctl apply",
                )
        return NodeIdentityFiles(
            certificate=texts["certificate"] or "",
            ca=texts["ca"] or "",
            identity=texts["identity"],
            authority_key=texts["authority_key"],
            revocations=texts["revocations"],
            delegation=texts["delegation"],
        )

    def key(self, directory: Path | None = None) -> Secret:
        """Raises InputError `file.*`; RefusedError `identity.permissions` for a key that others can read, or a link."""
        path = (directory or self.link) / _KEY
        with suppress(FileNotFoundError):
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o027:
                raise RefusedError(
                    "identity.permissions",
                    f"the node's private key must be a file that only the runtime can read; mode {stat.S_IMODE(status.st_mode):04o}",
                    place=str(path),
                    next_step="who could read it may have it: sbctl cluster rotate NODE, then sbctl apply",
                )
        return Secret(fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES))

    def verified(self, now: datetime, directory: Path | None = None) -> NodeIdentity:
        """What is installed, wholly checked. Raises what `verify_node_identity`, `read` and `key` raise."""
        return verify_node_identity(self.read(directory), key=self.key(directory), now=now)

    def pending(self) -> Pending | None:
        """The request that waits; None when there is none, or when a crash left only half of one."""
        directory = self.store / _REQUEST
        try:
            key = self.key(directory)
            request = _text(directory / "node-request.pem") or ""
            if request_key_digest(request) == public_key_digest(key):
                return Pending(key, request)
        except SbctlError:
            return None
        return None

    def ask(self, node_id: str) -> Pending:
        """The waiting request, or a new key with a new request."""
        found = self.pending()
        if found is not None:
            return found
        key = generate_private_key()
        made = Pending(key, create_request(key, node_id))
        directory = self.store / _REQUEST
        fs.ensure_directory(self.paths.etc, mode=0o755)
        fs.ensure_directory(self.store)
        fs.ensure_directory(directory)
        fs.write_atomic(directory / _KEY, key.reveal())
        fs.write_atomic(directory / "node-request.pem", made.request.encode())
        return made

    def stage(self, files: NodeIdentityFiles, key: Secret) -> Path:
        """A complete directory that nothing names yet. The same content is the same directory."""
        texts = {name: getattr(files, field) for field, name in IDENTITY_FILE_NAMES.items()}
        content = {name: sha256_bytes(text.encode()) for name, text in texts.items() if text is not None}
        target = self.store / fingerprint({**content, _KEY: public_key_digest(key)})[:16]
        if self._holds(target, files, key):
            return target
        if target.exists():
            # Damaged, and perhaps in use: what replaces it stands beside it until the switch.
            target = self.store / secrets.token_hex(8)
        fs.ensure_directory(self.paths.etc, mode=0o755)
        fs.ensure_directory(self.store)
        stage = fs.temporary_path(self.store)
        fs.ensure_directory(stage)
        for name, text in texts.items():
            if text is not None:
                fs.write_atomic(stage / name, text.encode())
        fs.write_atomic(stage / _KEY, key.reveal())
        self._hand_over(stage)
        fs.publish_directory(stage, target)
        return target

    def _holds(self, directory: Path, files: NodeIdentityFiles, key: Secret) -> bool:
        """Whether these texts and this key are there, with their rights."""
        try:
            return self.read(directory) == files and self.key(directory).reveal() == key.reveal()
        except SbctlError:
            return False

    def in_use(self) -> Path | None:
        """The directory that the link names."""
        try:
            return self.store / Path(os.readlink(self.link)).name
        except OSError:
            return None

    def switch(self, directory: Path) -> None:
        """Take this directory into use, at once and durably."""
        fs.replace_symlink(self.link, f"{self.store.name}/{directory.name}")

    def tidy(self) -> None:
        """Remove every directory but the one in use: old identities, what a crash left, and the request that was answered."""
        used = self.in_use()
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.store)):
                if used is None or name != used.name:
                    fs.remove_tree(self.store / name)

    def remove(self) -> bool:
        """All of it. False when nothing was there."""
        found = self.exists()
        if found:
            fs.remove_file(self.link)
        return fs.remove_tree(self.store) or found

    def _hand_over(self, directory: Path) -> None:
        """To the account of the runtime, as far as it may read: the group that <etc> belongs to."""
        group = os.stat(self.paths.etc).st_gid
        if os.geteuid() != 0 or group == 0:
            return
        for path, mode in ((self.store, 0o750), (directory, 0o750)):
            os.chown(path, 0, group)
            os.chmod(path, mode)
        for name in os.listdir(directory):
            os.chown(directory / name, 0, group, follow_symlinks=False)
            os.chmod(directory / name, 0o640)


def installed_state(paths: NodePaths, now: datetime) -> dict[str, Any]:
    """What a snapshot tells of the identity in use, `used` apart. One that does not count is told with its problem; never raises."""
    files = IdentityFiles(paths)
    problem: str | None = None
    told: dict[str, Any] = {}
    try:
        content = files.read()
        facts = certificate_facts(content.certificate)
        told = {
            "node_id": facts.subject,
            "serial": facts.serial,
            "fingerprint": facts.fingerprint,
            "not_before": rfc3339(facts.not_before),
            "not_after": rfc3339(facts.not_after),
            "ca": [one.fingerprint for one in read_chain(content.ca)],
            "identity_epoch": facts.claims.identity_epoch,
        }
        identity = files.verified(now)
        told |= {
            "issuer": identity.issuer,
            "revocations": identity.revocations,
            "attestation": identity.attestation,
        }
    except SbctlError as error:
        problem = f"{error.code}: {error.message}"[:512]
    return {**told, "problem": problem}


def _text(path: Path) -> str | None:
    try:
        return fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES).decode("utf-8", "replace")
    except InputError as error:
        if error.code == "file.missing":
            return None
        raise
