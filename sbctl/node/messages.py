"""Methods of the node interface with their parameters and results.

One channel a host. Each message is a frame: 4 bytes big-endian length, then UTF-8 JSON (at most FRAME_MAX_BYTES).

    node → control   {"hello": {"protocol": 1, "version": "0.1.0", "pid": 4711}}                       once, first
    control → node   {"id": 1, "method": "engine.install", "params": {…}, "secrets": {"name": "<base64>"}}
    node → control   {"id": 1, "progress": {"done": 10, "total": 100, "note": "…"}}                     any number
    node → control   {"id": 1, "result": {…}}   or   {"id": 1, "error": SbctlError.to_wire()}           exactly one

Requests on one channel run one after another. Closing the channel cancels the running one; what it had begun is found by the
next snapshot. Every mutating method is idempotent: called again with the same parameters it finds its work done.

`runtime.install` alone is answered before the node interface exists: the session runs it by the stdlib-only bootstrap script.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, model_serializer

from sbctl.artifacts.egress import PROVIDER_KEY_PATTERN, Egress
from sbctl.base.field_types import DeviceName
from sbctl.base.scrypt import SCRYPT_PATTERN
from sbctl.node.artifact_messages import (
    ArtifactImport,
    ArtifactList,
    ArtifactPrune,
    ArtifactPull,
    ArtifactRemove,
    ArtifactVerify,
    BlobFetch,
    BlobServe,
)
from sbctl.node.cluster_actions import ClusterAct, HostLeave
from sbctl.node.cluster_config import ClusterConfig
from sbctl.node.cluster_messages import ClusterPublish
from sbctl.node.egress_messages import EgressCheck
from sbctl.node.identity_messages import (
    CertificateInstall,
    CertificateRemove,
    CertificateRequest,
    EnrollmentAsk,
    EnrollmentInstall,
    EnrollmentRemove,
    EnrollmentRequest,
    RuntimeCertificate,
    RuntimeKeys,
)
from sbctl.node.params import DIGEST_PATTERN, Params
from sbctl.node.reading_messages import AuditVerify, EventsRead, LogsRead
from sbctl.node.store_messages import StoreInstall, StoreRemove

__all__ = [
    "PROTOCOL_VERSION",
    "AdminOperator",
    "BundleApply",
    "DeploymentAction",
    "EngineInstall",
    "EngineRemove",
    "HostDrain",
    "HostMark",
    "HostResume",
    "HostUnmark",
    "LibraryFile",
    "Method",
    "RuntimeActivate",
    "RuntimeConfig",
    "RuntimeInstall",
    "RuntimeRemove",
    "StandalonePython",
    "WheelFile",
]

PROTOCOL_VERSION: Final = 1


class Method(StrEnum):
    """Every call a host answers."""

    SNAPSHOT = "snapshot"
    HOST_MARK = "host.mark"
    HOST_UNMARK = "host.unmark"
    HOST_DRAIN = "host.drain"
    HOST_RESUME = "host.resume"
    HOST_LEAVE = "host.leave"
    CERTIFICATE_REQUEST = "certificate.request"
    CERTIFICATE_INSTALL = "certificate.install"
    CERTIFICATE_REMOVE = "certificate.remove"
    STORE_INSTALL = "store.install"
    STORE_REMOVE = "store.remove"
    ENROLLMENT_REQUEST = "enrollment.request"
    ENROLLMENT_INSTALL = "enrollment.install"
    ENROLLMENT_REMOVE = "enrollment.remove"
    ENROLLMENT_ASK = "enrollment.ask"
    RUNTIME_INSTALL = "runtime.install"
    RUNTIME_ACTIVATE = "runtime.activate"
    RUNTIME_CERTIFICATE = "runtime.certificate"
    RUNTIME_KEYS = "runtime.keys"
    RUNTIME_REMOVE = "runtime.remove"
    ENGINE_INSTALL = "engine.install"
    ENGINE_REMOVE = "engine.remove"
    ARTIFACT_PULL = "artifact.pull"
    ARTIFACT_IMPORT = "artifact.import"
    ARTIFACT_REMOVE = "artifact.remove"
    ARTIFACT_LIST = "artifact.list"
    ARTIFACT_VERIFY = "artifact.verify"
    ARTIFACT_PRUNE = "artifact.prune"
    BLOB_SERVE = "blob.serve"
    BLOB_FETCH = "blob.fetch"
    BUNDLE_APPLY = "bundle.apply"
    BUNDLE_CLEAR = "bundle.clear"
    CLUSTER_PUBLISH = "cluster.publish"
    CLUSTER_STATUS = "cluster.status"
    CLUSTER_ACT = "cluster.act"
    DEPLOYMENT_ACTION = "deployment.action"
    LOGS_READ = "logs.read"
    EVENTS_READ = "events.read"
    AUDIT_VERIFY = "audit.verify"
    EGRESS_CHECK = "egress.check"


class HostMark(Params):
    """Claim the host for one lineage. Refused with `host.other_lineage` when another one holds it. → {"marker": {…}}"""

    lineage: str
    host: str


class HostUnmark(Params):
    """Give the host up: removes the marker and every directory of ours that is empty or ours alone, weights only if asked. → {}

    Refused with `host.not_empty` while a runtime is installed.
    """

    lineage: str
    keep_weights: bool = False


class HostDrain(Params):
    """Admit no new requests, and wait for those that run at most `deadline_s`. → {"running", "active_requests", "finished"}

    `by` names the operator whose drain holds over restarts until `host.resume`; None: an apply's own, which ends with its lease on the host.
    """

    by: str | None = Field(default=None, min_length=1, max_length=200)
    deadline_s: float = Field(default=60.0, ge=0, le=86_400)


class HostResume(Params):
    """Take a drain back: an operator's (`persistent`) or an apply's own. → {"was_drained": bool}"""

    persistent: bool


class WheelFile(Params):
    """One file of a wheelhouse, already put on the host under its digest."""

    filename: str = Field(pattern=r"^[A-Za-z0-9._+-]{1,200}\.whl$")
    sha256: str = Field(pattern=DIGEST_PATTERN)


class StandalonePython(Params):
    """A standalone Python as an archive that was put on the host under its digest. It is unpacked once, to `<opt>/python/<12 digits of it>`."""

    sha256: str = Field(pattern=DIGEST_PATTERN)
    program: str = Field(pattern=r"^bin/python3\.[0-9]{1,2}$")


class RuntimeInstall(Params):
    """Create `<opt>/<version>` from wheels that were put, offline, hashes required; nothing is switched yet. → {"path": str}

    With `standalone` its program is the interpreter, and `python` is empty: whichever the host has does the work.
    """

    version: str
    python: str
    standalone: StandalonePython | None = None
    uv: WheelFile
    wheels: tuple[WheelFile, ...]


class AdminOperator(Params):
    """Somebody who logs in at the admin API. The hash is scrypt's, salted: what `sbctl admin hash-password` prints."""

    username: str = Field(min_length=1, max_length=128, pattern=r"^[^|:\x00-\x1f]+$")
    password_hash: str = Field(pattern=SCRYPT_PATTERN)
    role: Literal["read_only", "admin"] = "admin"


class RuntimeConfig(Params):
    """What `sbctl-runtime serve` reads from `<etc>/runtime.json`; nothing here changes without a restart."""

    schema_version: Literal[1] = 1
    lineage: str
    host: str
    labels: dict[str, str] = Field(default_factory=dict)
    http_bind_address: str = "127.0.0.1"
    http_bind_port: int = Field(default=8080, ge=0, le=65535)
    https_bind_port: int | None = Field(default=None, ge=0, le=65535)
    """None: no TLS on the API. Its certificate is no part of this: it changes without a restart."""
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    """Both, where somebody else keeps chain and key on this host; else they were installed by `runtime.certificate`."""
    admin_enabled: bool = False
    admin_tls: bool = False
    """The admin API is served over TLS alone, with the host's certificate. Needed off loopback."""
    admin_allow_ips: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=1000)
    """Addresses and networks that may reach it, beside this machine."""
    admin_bind: str = "127.0.0.1"
    admin_port: int = Field(default=9090, ge=0, le=65535)
    admin_username: str = "admin"
    admin_operators: tuple[AdminOperator, ...] = Field(default=(), max_length=1000)
    admin_rate_limit_per_minute: int = Field(default=240, ge=1, le=100_000)
    """Requests from one address; all addresses together may make ten times as many."""
    authority: Literal["file_managed", "admin_managed", "cluster_authority"] = "file_managed"
    cache_directory: str | None = None
    cache_budget_bytes: int | None = Field(default=None, gt=0)
    max_resident_models: int | None = Field(default=None, gt=0)
    excluded_devices: tuple[DeviceName, ...] = Field(default=(), max_length=64)
    """Devices that engines never get, by their ids or the numbers that the host gives them."""
    offline: bool = False
    """Nothing is fetched; weights are imported, or taken from what this machine has."""
    max_parallel_prepares: int = Field(default=2, gt=0)
    safety_margin: float = Field(default=0.10, ge=0, lt=1)
    shutdown_deadline_ms: int = Field(default=30_000, gt=0)
    handoff_timeout_ms: int = Field(default=60_000, gt=0)
    identity: bool = False
    """Whether the host has an identity of its cluster, in `<etc>/identity`."""
    egress: Egress = Field(default=Egress())
    """How the host reaches the outside. The secrets that it names are sent beside `runtime.activate`."""
    provider_keys: tuple[Annotated[str, Field(pattern=PROVIDER_KEY_PATTERN)], ...] = Field(default=(), max_length=64)
    """Secrets for external providers, sent in the same way."""
    cluster: ClusterConfig | None = None
    """None: the host serves by itself; then it is not in the file, nor are `excluded_devices` where there are none."""

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        left_out = {name for name in ("cluster", "excluded_devices") if not getattr(self, name)}
        return {name: value for name, value in document.items() if name not in left_out}

    @property
    def has_tls(self) -> bool:
        """Whether a listener shows the host's public certificate."""
        return self.https_bind_port is not None or (self.admin_enabled and self.admin_tls)


class RuntimeActivate(Params):
    """Make `version` the running runtime with this configuration and trust.

    Writes `runtime.json`, `trust.json` and secrets (`admin_password`, sent beside the call; generated when absent; those of `egress` and `provider_keys`), renders and verifies
    the unit, switches `current`, restarts only when something decisive differs or the runtime is not healthy, and answers once the control
    socket says healthy. `trust_envelope` is a DSSE envelope of payload type TRUST_PAYLOAD_TYPE. → {"pid", "unit_sha256", "config_sha256",
    "trust_digest", "supervision": "system"|"user"|"parent"}
    """

    version: str
    config: RuntimeConfig
    trust_envelope: str


class RuntimeRemove(Params):
    """Stop the runtime and its engines, remove unit, programs, configuration, secrets and state; not the cache. → {}"""

    lineage: str


class LibraryFile(Params):
    """A shared library for hosts that lack it: `member` of a wheel, installed as `name`."""

    name: str = Field(pattern=r"^[A-Za-z0-9._+-]{1,100}$")
    project: str
    version: str
    wheel: WheelFile
    member: str = Field(max_length=256)
    sha256: str = Field(pattern=DIGEST_PATTERN)


class EngineArchive(Params):
    """A release of an engine, or its source: one gzipped tar, by digest. `tag` is the version that the program must say."""

    filename: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}\.tar\.gz$")
    url: str = Field(max_length=1024)
    sha256: str = Field(pattern=DIGEST_PATTERN)
    tag: str = Field(pattern="^b[0-9]{1,9}$")
    acceleration: Literal["cpu", "cuda", "vulkan", "metal"]
    is_source: bool
    installed_bytes: int = Field(gt=0)


class EngineInstall(Params):
    """Install an engine of our own; deployments that run on what it replaces are restarted. → {"path", "version", "digest", "restarted"}

    A wheel (`launch: wheel`) or an archive (`launch: binary`): put by digest, or fetched when `pull`. `libraries` are used only where the
    wheel cannot be loaded without them.
    """

    engine: Literal["llama_cpp"]
    launch: Literal["wheel", "binary"]
    version: str
    project: str = ""
    wheel: WheelFile | None = None
    archive: EngineArchive | None = None
    libraries: tuple[LibraryFile, ...] = ()
    python: str = ""
    standalone: StandalonePython | None = None
    """Its program is the interpreter then, and `python` is empty."""
    delivery: Literal["pull", "push"]


class EngineRemove(Params):
    """Remove an engine that we installed; one found on PATH is not ours. → {"removed": bool}"""

    engine: Literal["llama_cpp"]
    version: str


class BundleApply(Params):
    """Hand a signed bundle to the runtime: verified, fenced, prepared, committed as one transaction. → {"revision", "content_digest", "report"}

    `expected_revision` is compared and set: the revision the operator planned from, None when the runtime had none.
    """

    envelope: str
    expected_revision: int | None = None


class DeploymentAction(Params):
    """Load, stop, drain or reset one deployment now, as a job of the runtime; desired state is untouched. → the status row

    `by` names the operator in the audit. `drain_s`: how long a drain lets requests run; None: to their end, within the runtime's bounds.
    """

    deployment: str
    action: Literal["load", "stop", "drain", "reset"]
    by: str | None = Field(default=None, min_length=1, max_length=200)
    drain_s: float | None = Field(default=None, ge=0, le=86_400)


PARAMS: Final[dict[Method, type[BaseModel]]] = {
    Method.HOST_MARK: HostMark,
    Method.HOST_UNMARK: HostUnmark,
    Method.STORE_INSTALL: StoreInstall,
    Method.STORE_REMOVE: StoreRemove,
    Method.ENROLLMENT_REQUEST: EnrollmentRequest,
    Method.ENROLLMENT_INSTALL: EnrollmentInstall,
    Method.ENROLLMENT_REMOVE: EnrollmentRemove,
    Method.ENROLLMENT_ASK: EnrollmentAsk,
    Method.HOST_DRAIN: HostDrain,
    Method.HOST_RESUME: HostResume,
    Method.HOST_LEAVE: HostLeave,
    Method.CERTIFICATE_REQUEST: CertificateRequest,
    Method.CERTIFICATE_INSTALL: CertificateInstall,
    Method.CERTIFICATE_REMOVE: CertificateRemove,
    Method.RUNTIME_INSTALL: RuntimeInstall,
    Method.RUNTIME_ACTIVATE: RuntimeActivate,
    Method.RUNTIME_CERTIFICATE: RuntimeCertificate,
    Method.RUNTIME_KEYS: RuntimeKeys,
    Method.RUNTIME_REMOVE: RuntimeRemove,
    Method.ENGINE_INSTALL: EngineInstall,
    Method.ENGINE_REMOVE: EngineRemove,
    Method.ARTIFACT_PULL: ArtifactPull,
    Method.ARTIFACT_IMPORT: ArtifactImport,
    Method.EGRESS_CHECK: EgressCheck,
    Method.ARTIFACT_REMOVE: ArtifactRemove,
    Method.ARTIFACT_LIST: ArtifactList,
    Method.ARTIFACT_VERIFY: ArtifactVerify,
    Method.ARTIFACT_PRUNE: ArtifactPrune,
    Method.BLOB_SERVE: BlobServe,
    Method.BLOB_FETCH: BlobFetch,
    Method.BUNDLE_APPLY: BundleApply,
    Method.CLUSTER_PUBLISH: ClusterPublish,
    Method.CLUSTER_ACT: ClusterAct,
    Method.DEPLOYMENT_ACTION: DeploymentAction,
    Method.AUDIT_VERIFY: AuditVerify,
    Method.LOGS_READ: LogsRead,
    Method.EVENTS_READ: EventsRead,
}
"""SNAPSHOT, BUNDLE_CLEAR and CLUSTER_STATUS take no parameters."""
