"""The authority's directory on the operator's machine: names, rights, and how it comes to be.

    ca.pem ca-key.pem              the CA that issues
    authority-signing.key          Ed25519: signs identity documents, revocations and delegations
    authority-verifying.key        its public half
    ca-next*.pem authority-next-*  those that take over, while a rollover lasts
    authority.json                 cluster, server name
    node.pem node-key.pem          the authority's own identity, which an enrollment server shows
    identity.json                  … and its signed document
    revocations.json               the signed revocation list
    nodes/<node id>.json           the ledger: what was issued to each node, its epoch, what is asked for next
    enrollment.json                what the enrollment server was given to issue with
    .authority.lock                held by whoever writes
    .gitignore                     keeps the private keys out of commits

Names as SBproxy has them where it has them; there is no gossip.key, since nothing gossips here. The directory is 0700 and every file 0600; private
keys may be absent (a checkout that only plans). It is built beside its place and renamed once, so it exists whole or not at all. On every
read a link, a foreign owner or rights for others are refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs, strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, LockedError, RefusedError, SbctlError
from sbctl.base.flock import exclusive
from sbctl.base.ids import is_id
from sbctl.base.schema_faults import first_fault
from sbctl.base.secret import Secret
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificate_making import KeyPair
from sbctl.trust.certificates import matches, read_chain
from sbctl.trust.identity import Grant
from sbctl.trust.keys import SigningKey, parse_public_key

__all__ = ["KEY_ID", "AuthorityFiles", "AuthoritySettings", "EnrollmentRecord", "NodeRecord", "staged"]

KEY_ID: Final = "authority"
"""Under which the authority signs."""
_PUBLIC_MAX_BYTES: Final = 4 * 1024 * 1024
_KEY_MAX_BYTES: Final = 8 * 1024
_LOCK_DEADLINE_S: Final = 30.0
_RESTORE: Final = "restore the file from version control or from your copy of the directory"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class AuthoritySettings(_Strict):
    """`authority.json`."""

    schema_version: Literal[1] = 1
    cluster_id: str
    server_name: str
    node_id: str
    """Whose identity node.pem is."""


class NodeRecord(_Strict):
    """One line of the ledger. `rotation` counts how often a new identity was asked for; `revoked_epoch` is the last that was taken away."""

    schema_version: Literal[1] = 1
    node_id: str
    grant: Grant | None = None
    identity_epoch: int = Field(default=0, ge=0)
    certificate: str | None = None
    identity: str | None = None
    fingerprint: str | None = None
    key_sha256: str | None = None
    issuer: str | None = None
    """Fingerprint of the CA that issued it."""
    rotation: int = Field(default=0, ge=0)
    issued_rotation: int = Field(default=0, ge=0)
    """`rotation` when `certificate` was issued."""
    revoked_epoch: int = Field(default=0, ge=0)

    @property
    def is_shut_out(self) -> bool:
        """Its newest identity was revoked, and nobody asked for another one since."""
        return 0 < self.identity_epoch <= self.revoked_epoch and self.rotation <= self.issued_rotation


class EnrollmentRecord(_Strict):
    """`enrollment.json`: what an enrollment server was given to issue with. `epoch` counts delegations; `revoked_epoch` is the last that was
    taken away."""

    schema_version: Literal[1] = 1
    node_id: str
    epoch: int = Field(ge=1)
    certificate: str
    fingerprint: str
    key_sha256: str
    verifying_key: str
    issuer: str
    delegation: str
    revoked_epoch: int = Field(default=0, ge=0)


_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    """Reading and writing the files of one directory; it decides nothing."""

    directory: Path

    def path(self, name: str) -> Path:
        return self.directory / name

    def exists(self) -> bool:
        return os.path.lexists(self.directory)

    def check(self) -> None:
        """Raises InputError `authority.missing`, RefusedError `authority.permissions`, InputError `authority.incomplete`."""
        try:
            status = os.lstat(self.directory)
        except OSError:
            raise InputError(
                "authority.missing",
                "there is no authority directory here",
                place=str(self.directory),
                next_step="make one with sbctl cluster init, or copy the fleet's own here",
            ) from None
        keyed = os.path.lexists(self.path("ca-key.pem")) or os.path.lexists(self.path("authority-signing.key"))
        _check_rights(self.directory, status, kind="directory", open_bits=0o077 if keyed else 0o022)
        for name in ("authority.json", "ca.pem", "authority-verifying.key", "revocations.json"):
            if not os.path.lexists(self.path(name)):
                raise InputError(
                    "authority.incomplete",
                    f"the authority directory has no {name}",
                    place=str(self.directory),
                    next_step="restore it from a backup; without it no identity of this cluster can be renewed",
                )
        self.signing_pair_is_whole()

    def signing_pair_is_whole(self) -> None:
        """Of identity.json and authority-verifying.key none stands alone. Raises InputError `identity.incomplete`."""
        there = [os.path.lexists(self.path(name)) for name in ("identity.json", "authority-verifying.key")]
        if any(there) != all(there):
            missing = "authority-verifying.key" if there[0] else "identity.json"
            raise InputError(
                "identity.incomplete",
                f"{missing} is missing: identity.json and authority-verifying.key go together",
                place=str(self.directory),
                next_step="restore the missing file from a backup",
            )

    def settings(self) -> AuthoritySettings:
        return self.document("authority.json", AuthoritySettings)

    def text(self, name: str) -> str:
        """A public file. Raises InputError `file.*`, `authority.invalid`; RefusedError `authority.permissions`."""
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError):
            _check_rights(path, os.lstat(path), kind="file", open_bits=0o022)
        try:
            content = fs.read_bounded(path, max_bytes=_PUBLIC_MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            raise InputError("authority.invalid", "the file is not text", place=str(path), next_step=_RESTORE) from None
        if path.suffix == ".pem":
            with self._naming(name):
                read_chain(content)
        return content

    def secret(self, name: str) -> Secret:
        """A private file. Raises RefusedError `authority.no_key` where it is not here, `authority.permissions`."""
        path = self.path(name)
        try:
            status = os.lstat(path)
        except OSError:
            raise RefusedError(
                "authority.no_key",
                f"this copy of the authority directory has no {name}, so nothing can be issued from it",
                place=str(self.directory),
                next_step="run it on the machine that keeps the authority's keys, or bring them here (mode 0600)",
            ) from None
        _check_rights(path, status, kind="file", open_bits=0o077)
        return Secret(fs.read_bounded(path, max_bytes=_KEY_MAX_BYTES))

    def document(self, name: str, model: type[_Model]) -> _Model:
        """Raises InputError `authority.invalid`, `json.*`."""
        with self._naming(name):
            document = strict_json.loads(self.text(name).encode(), max_bytes=_PUBLIC_MAX_BYTES)
        try:
            return model.model_validate_json(json.dumps(document))
        except ValidationError as error:
            where, what = first_fault(error)
            raise InputError(
                "authority.invalid",
                f"wrong at {where}: {what}",
                place=str(self.path(name)),
                next_step=_RESTORE,
            ) from None

    def has(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def key_pair(self, name: str) -> KeyPair:
        """`ca` or `ca-next`. Raises InputError `certificate.*`, and `authority.invalid` where the two do not belong together."""
        certificate, key = self.text(f"{name}.pem"), self.secret(f"{name}-key.pem")
        with self._naming(f"{name}-key.pem"):
            if not matches(certificate, key):
                raise InputError("authority.invalid", f"this is not the private key of {name}.pem")
        return KeyPair(certificate, key)

    def signing_key(self, stem: Literal["authority", "authority-next"] = "authority") -> SigningKey:
        with self._naming(f"{stem}-signing.key"):
            return SigningKey.from_pem(self.secret(f"{stem}-signing.key"))

    def verifying_key(self, stem: str = "authority") -> str:
        with self._naming(f"{stem}-verifying.key"):
            return parse_public_key(self.text(f"{stem}-verifying.key").strip()).text

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """An error about what a file of this directory holds names the file."""
        try:
            yield
        except SbctlError as error:
            if error.place is None:
                error.place, error.next_step = str(self.path(name)), _RESTORE
            raise

    def trusted_keys(self) -> AuthorityKeys:
        """Whose revocations and documents hosts believe."""
        stems = ("authority", "authority-next") if self.has("ca-next.pem") else ("authority",)
        return AuthorityKeys(tuple(dict.fromkeys(self.verifying_key(stem) for stem in stems)))

    def pinned_ca(self) -> str:
        """The certificate whose key new tokens pin, PEM."""
        return self.text("ca.pem")

    def trusted_ca(self) -> str:
        """What hosts trust, PEM."""
        return "".join(self.text(name) for name in ("ca.pem", "ca-next.pem") if self.has(name))

    def delegation(self) -> str | None:
        """The authority's word for whoever signs here; None: it is the authority itself."""
        return None

    def reserved(self) -> frozenset[str]:
        """Names that no token gives, since those hosts get their identity by an apply; all are free where that ledger is this one."""
        return frozenset()

    def chain(self) -> str:
        """What stands behind every certificate that is issued, up to the CA that hosts trust: nothing, since it is that CA."""
        return ""

    def enrollment(self) -> EnrollmentRecord | None:
        """What the enrollment server was given last."""
        return self.document("enrollment.json", EnrollmentRecord) if self.has("enrollment.json") else None

    def node(self, node_id: str) -> NodeRecord:
        """The ledger's line; an empty one for a node that nothing was issued to."""
        if not is_id(node_id):
            raise InputError(
                "identity.name",
                f"{node_id[:64]!r} is not a node's name",
                next_step="use 1 to 128 of A-Z a-z 0-9 . _ -; sbctl cluster status lists the nodes",
            )
        if not self.has(f"nodes/{node_id}.json"):
            return NodeRecord(node_id=node_id)
        return self.document(f"nodes/{node_id}.json", NodeRecord)

    def nodes(self) -> Mapping[str, NodeRecord]:
        """Every line of the ledger."""
        with contextlib.suppress(FileNotFoundError):
            names = sorted(name for name in os.listdir(self.path("nodes")) if name.endswith(".json"))
            return {name[:-5]: self.node(name[:-5]) for name in names}
        return {}

    def write(self, name: str, content: str | bytes | Secret) -> None:
        """Durably, 0600."""
        data = content.reveal() if isinstance(content, Secret) else content
        path = self.path(name)
        fs.ensure_directory(path.parent)
        fs.write_atomic(path, data.encode() if isinstance(data, str) else data)

    def write_document(self, name: str, model: BaseModel) -> None:
        document: dict[str, Any] = model.model_dump(mode="json")
        self.write(name, canonical_json(document))

    def write_node(self, record: NodeRecord) -> None:
        self.write_document(f"nodes/{record.node_id}.json", record)

    def remove(self, name: str) -> None:
        fs.remove_file(self.path(name))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer. Raises LockedError `authority.locked`."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self.path(".authority.lock"), deadline_s=_LOCK_DEADLINE_S))
            except LockedError:
                raise LockedError(
                    "authority.locked",
                    "another command writes to the authority directory",
                    place=str(self.directory),
                    next_step="let it end, then run the command again",
                ) from None
            yield


@contextlib.contextmanager
def staged(directory: Path) -> Iterator[AuthorityFiles]:
    """A directory that is filled inside the block and gets its name when the block ends well; otherwise nothing of it stays.

    Raises RefusedError `authority.exists` where something stands already.
    """
    if os.path.lexists(directory):
        raise _exists(directory)
    fs.ensure_directory(directory.parent, mode=0o755)
    stage = fs.temporary_path(directory.parent)
    try:
        fs.ensure_directory(stage)
        yield AuthorityFiles(stage)
        try:
            fs.publish_directory(stage, directory)
        except SbctlError as error:
            raise (_exists(directory) if error.code == "disk.exists" else error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _exists(directory: Path) -> RefusedError:
    return RefusedError(
        "authority.exists",
        "something stands here already, and an authority is never overwritten",
        place=str(directory),
        next_step="name another directory (--dir), or use the authority that is there: sbctl cluster status --identities",
    )


def _check_rights(path: Path, status: os.stat_result, *, kind: Literal["file", "directory"], open_bits: int) -> None:
    right = stat.S_ISREG(status.st_mode) if kind == "file" else stat.S_ISDIR(status.st_mode)
    mode, wanted = stat.S_IMODE(status.st_mode), "0600" if kind == "file" else "0700"
    if right and not mode & open_bits and status.st_uid in (0, os.geteuid()):
        return
    what = f"it has mode {mode:04o}, owner {status.st_uid}" if right else "it is something else (a link?)"
    raise RefusedError(
        "authority.permissions",
        f"the authority's {kind} must be a {'regular file' if kind == 'file' else 'directory'} of yours "
        f"with mode {wanted}; {what}",
        place=str(path),
        next_step=f"look who could have read it, then: chmod {wanted[1:]} {path}",
    )
