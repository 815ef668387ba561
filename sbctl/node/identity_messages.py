"""Parameters of the node interface that concern identities: a host's certificate, the enrollment server, the public certificate, and the keys
with which the host asks others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sbctl.artifacts.egress import PROVIDER_KEY_PATTERN
from sbctl.node.params import Params

__all__ = [
    "CertificateInstall",
    "CertificateRemove",
    "CertificateRequest",
    "EnrollmentAsk",
    "EnrollmentInstall",
    "EnrollmentRemove",
    "EnrollmentRequest",
    "RuntimeCertificate",
    "RuntimeKeys",
]


class CertificateRequest(Params):
    """Make a private key that never leaves the host, and a request for its certificate; one that waits already is found. → {"request": PEM}"""

    lineage: str
    node_id: str = Field(min_length=1, max_length=128)


class CertificateInstall(Params):
    """Take an identity into use: verified as a whole beside the old one, then switched at once; the old one comes back when a running runtime
    refuses the new one. → {"fingerprint", "identity_epoch", "issuer", "revocations"}

    `certificate` None keeps the one that is there, with its key and document, and renews what stands around it. The key is the requested one;
    with a PKI of the user's own it comes beside the call as the secret `node_key`, or is at `key_file` on the host, and there is neither document
    nor authority key.
    """

    lineage: str
    certificate: str | None = Field(default=None, max_length=262_144)
    ca: str = Field(max_length=262_144)
    identity: str | None = Field(default=None, max_length=131_072)
    authority_key: str | None = Field(default=None, max_length=256)
    """Public keys, one a line."""
    revocations: str | None = Field(default=None, max_length=4_194_304)
    key_file: str | None = Field(default=None, max_length=4096, pattern="^/")
    operator_time: str = Field(max_length=40)
    """RFC 3339: a host whose clock is far from it installs nothing."""


class CertificateRemove(Params):
    """Remove keys, certificates and requests. → {"removed": bool}"""

    lineage: str


class EnrollmentRequest(Params):
    """Make the two keys that an enrollment server issues with, which never leave the host; those of this `rotation` are found. → {"request": PEM,
    "verifying_key"}"""

    lineage: str
    rotation: int = Field(ge=0)


class EnrollmentInstall(Params):
    """Have the enrollment server run with this, restarted when something of it changed. → {"content_sha256", "unit_sha256", "fingerprint"}

    `certificate` is of its CA; `roots`, `authority_keys` and `revocations` are what hosts trust, believe and refuse.
    """

    lineage: str
    version: str = Field(max_length=64)
    cluster_id: str = Field(max_length=128)
    server_name: str = Field(max_length=253)
    node_id: str = Field(max_length=128)
    bind_address: str = Field(max_length=64)
    port: int = Field(ge=1, le=65535)
    validity_hours: int = Field(ge=1)
    reserved: tuple[Annotated[str, Field(max_length=128)], ...] = Field(max_length=10_000)
    certificate: str = Field(max_length=262_144)
    delegation: str = Field(max_length=65_536)
    roots: str = Field(max_length=262_144)
    authority_keys: str = Field(max_length=256)
    revocations: str = Field(max_length=4_194_304)
    operator_time: str = Field(max_length=40)


class EnrollmentRemove(Params):
    """Stop the enrollment server and remove its unit, keys, tokens and ledger. → {"removed": bool}"""

    lineage: str


class EnrollmentAsk(Params):
    """Ask the running enrollment server. → as its control socket answers

    `token_create` takes `roles`, `labels`, `node_id`, `ttl_s` in `asked`, and `token_revoke` the `id`.
    """

    lineage: str
    action: Literal["status", "token_list", "token_create", "token_revoke", "nodes"]
    asked: dict[str, Any] = Field(default_factory=dict, max_length=8)


class RuntimeCertificate(Params):
    """Install the API's public certificate; its private key is the secret `tls_key`, sent beside the call. → {"fingerprint", "used": bool,
    "unit_sha256", "supervision"}

    Verified as a pair, written as one file that only root (or the runtime's user) can read, and handed to a running runtime that serves TLS,
    which shows it from the next handshake on.
    """

    lineage: str
    chain: str = Field(max_length=65_536)


class RuntimeKeys(Params):
    """Exchange keys of external providers: secrets sent beside the call, under these names, which the runtime's configuration knows. Written as
    files, and handed to a running runtime, which uses them from the next request on. → {"used": bool, "unit_sha256", "supervision"}
    """

    lineage: str
    names: tuple[Annotated[str, Field(pattern=PROVIDER_KEY_PATTERN)], ...] = Field(min_length=1, max_length=64)
