"""What one host says about itself: one call, all kinds. Everything in it is foreign until `NodeSnapshot` accepted it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.base.limits import BUNDLE_DEPLOYMENTS_MAX

__all__ = [
    "ArtifactState",
    "BundleState",
    "CertificateState",
    "ClusterState",
    "DeploymentState",
    "DiskState",
    "DrainState",
    "EngineState",
    "EnrollmentState",
    "HostFacts",
    "HostMarker",
    "LeaseState",
    "MemoryRecord",
    "NodePathsState",
    "NodeSnapshot",
    "PortHolder",
    "PublicTlsState",
    "PythonFact",
    "ReplicaState",
    "RuntimeState",
    "is_new_enough",
]


class _Fact(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class PythonFact(_Fact):
    """One Python of the host."""

    path: str = Field(max_length=512)
    version: str = Field(max_length=32)
    """`3.11.2`"""


class PortHolder(_Fact):
    """Who listens on a TCP port. `pid` None: of another user, so this login may see only whose it is. `started_as`: the path
    of its program, as it was called. `unit`: systemd's, where it has one."""

    port: int = Field(ge=1, le=65535)
    address: str = Field(default="", max_length=64)
    pid: int | None = None
    program: str = Field(default="", max_length=128)
    started_as: str = Field(default="", max_length=1024)
    user: str = Field(default="", max_length=128)
    unit: str = Field(default="", max_length=128)


def is_new_enough(version: str) -> bool:
    """Whether a Python of this version, such as `3.11.2`, can run the runtime; older ones, from 3.8 on, only help to install it."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= (3, 11)


class HostFacts(_Fact):
    """The machine, as it tells of itself; empty and 0 mean unknown."""

    hostname: str = Field(default="", max_length=256)
    machine_id: str = Field(default="", max_length=64)
    boot_id: str = Field(default="", max_length=64)
    os_id: str = Field(default="", max_length=64)
    os_version: str = Field(default="", max_length=64)
    kernel: str = Field(default="", max_length=128)
    arch: str = Field(default="", max_length=32)
    libc: str = Field(default="", max_length=32)
    """`glibc-2.36`, `musl-1.2`, or empty."""
    cpu_count: int = Field(default=0, ge=0)
    memory_total_bytes: int = Field(default=0, ge=0)
    memory_available_bytes: int = Field(default=0, ge=0)
    memory_limit_bytes: int | None = Field(default=None, ge=0)
    """What a control group around the node process allows; None: nothing is limited."""
    uid: int = Field(default=0, ge=0)
    init: Literal["systemd_system", "systemd_user", "none"] = "none"
    pythons: tuple[PythonFact, ...] = ()
    """The host's own from 3.8 on, newest first; see `is_new_enough`."""
    now: str = Field(default="", max_length=40)
    gpus: tuple[dict[str, Annotated[str, Field(max_length=256)] | int], ...] = Field(default=(), max_length=64)
    """Each with what it tells: `name`, `vendor`, `bus`, `driver`, `uuid`, `memory_total_bytes`, `memory_free_bytes`, …"""
    gpu_problem: str | None = Field(default=None, max_length=512)
    """Why the NVIDIA driver that is there cannot be used."""
    nvidia_driver: str = Field(default="", max_length=32)
    cuda: str = Field(default="", max_length=32)
    """The newest version that the driver serves; empty before a node process could ask it."""
    cgroup: str = Field(default="", max_length=16)
    """`v2`, `v1`, `hybrid`, or empty."""
    ports: tuple[PortHolder, ...] = Field(default=(), max_length=256)
    """Who listens on the ports that were asked about."""


class HostMarker(_Fact):
    """Whose host this is: the fleet's lineage, and its name there."""

    lineage: str = Field(max_length=64)
    host: str = Field(max_length=128)


class LeaseState(_Fact):
    """Who changes the host at this moment. Times of the host: `since` for reading, `ends_in_s` unless the lease is renewed."""

    owner: str = Field(max_length=256)
    purpose: str = Field(default="", max_length=256)
    lineage: str = Field(default="", max_length=256)
    run: str = Field(default="", max_length=256)
    since: str = Field(default="", max_length=40)
    ends_in_s: float = Field(default=0.0, ge=0)


class CertificateState(_Fact):
    """The node's identity as it is installed. `problem`: why it is none that counts, in one sentence; what could be read is told all the same."""

    node_id: str = Field(default="", max_length=128)
    serial: str = Field(default="", max_length=64)
    fingerprint: str | None = None
    not_before: str | None = None
    not_after: str | None = None
    identity_epoch: int = Field(default=0, ge=0)
    ca: tuple[str, ...] = ()
    issuer: str | None = None
    revocations: int = Field(default=0, ge=0)
    attestation: Literal["enrolled", "manual_pki"] | None = None
    problem: str | None = Field(default=None, max_length=512)
    used: str | None = None
    """Fingerprint of the one that the running runtime holds; None when it holds none or does not run."""
    renewal_problem: str | None = Field(default=None, max_length=600)
    """Of a host that enrolled: since when it cannot renew by itself, and why."""


class EnrollmentState(_Fact):
    """The enrollment server as it is installed. `running` None: nothing on this host could run it (tests below a prefix)."""

    content_sha256: str = Field(default="", max_length=64)
    unit_sha256: str | None = Field(default=None, max_length=64)
    fingerprint: str | None = Field(default=None, max_length=64)
    not_before: str | None = Field(default=None, max_length=40)
    not_after: str | None = Field(default=None, max_length=40)
    running: bool | None = None


class StoreState(_Fact):
    """The cluster's store as it is installed and as its server says. `up_to_date`: it runs with what was installed last. `whole`: it is an
    up-to-date member of a group with a leader; `problem`: why not. `stuck`: its disk was full, and it takes no writes until it is started anew.
    `restarts`: how often it was, by itself, since it last was well for an hour; `restarted_at`: the last time ever."""

    content_sha256: str = Field(default="", max_length=64)
    unit_sha256: str | None = Field(default=None, max_length=64)
    version: str = Field(default="", max_length=64)
    running: bool = False
    up_to_date: bool = False
    whole: bool = False
    leader: str | None = Field(default=None, max_length=128)
    problem: str | None = Field(default=None, max_length=512)
    stuck: bool = False
    restarts: int = Field(default=0, ge=0)
    restarted_at: str = Field(default="", max_length=40)


class StoreProgramFact(_Fact):
    """A nats-server that the host has of its own."""

    path: str = Field(max_length=4096)
    version: str = Field(default="", max_length=64)


class DrainState(_Fact):
    """The host was taken out of service. `persistent`: by an operator, until he takes it back; else by an apply that is at work."""

    by: str = Field(default="", max_length=256)
    since: str = Field(default="", max_length=40)
    persistent: bool = True
    active_requests: int = Field(default=0, ge=0)


class NodePathsState(_Fact):
    """Where things are on the host."""

    etc: str
    state: str
    cache: str
    opt: str
    staging: str
    """Where `put` leaves `blobs/<digest>`."""


class DiskState(_Fact):
    """Free bytes for this user, and types of filesystems (`ext4`, `nfs4`, `fuse.sshfs`); None and empty mean unknown."""

    cache_free_bytes: int | None = None
    state_free_bytes: int | None = None
    opt_free_bytes: int | None = None
    cache_filesystem: str = Field(default="", max_length=32)
    state_filesystem: str = Field(default="", max_length=32)
    opt_filesystem: str = Field(default="", max_length=32)


class PublicTlsState(_Fact):
    """The API's public certificate. `installed` and `used` are fingerprints: of the file on the host, and of what handshakes show now."""

    installed: str | None = Field(default=None, max_length=64)
    used: str | None = Field(default=None, max_length=64)
    followed: bool = False
    """From files that somebody else keeps on the host."""
    subject: str = Field(default="", max_length=256)
    issuer: str = Field(default="", max_length=256)
    not_after: str | None = Field(default=None, max_length=40)
    warn_from: str | None = Field(default=None, max_length=40)
    """From when on its end is near."""
    problem: str | None = Field(default=None, max_length=512)
    """Why what is there cannot be shown, or is not the newest, in one sentence."""


class RuntimeState(_Fact):
    """`config_sha256`, `trust_digest`, `unit_sha256` (all units together) are of the files as they stand; None when missing."""

    installed_versions: tuple[str, ...] = ()
    current_version: str | None = None
    standalone_pythons: tuple[str, ...] = ()
    """Digests of the operator's Python archives that are unpacked here."""
    standalone_used: dict[str, str] = Field(default_factory=dict)
    """Which of them an installed version runs on; a version that is not in it runs on a Python of the host."""
    supervision: Literal["system", "user", "parent", "none"] = "none"
    unit_path: str | None = None
    unit_sha256: str | None = None
    config_sha256: str | None = None
    trust_digest: str | None = None
    running: bool = False
    healthy: bool = False
    pid: int | None = None
    version_running: str | None = None
    started_by_hand: bool = False
    changing: bool = False
    """A bundle is being applied or cleared, or an activation is not ended yet: what the host holds is about to be another."""
    admin_url: str | None = None
    http_url: str | None = None
    https_url: str | None = None
    tls: PublicTlsState | None = None
    """None: no TLS on the API."""


class EngineState(_Fact):
    """One engine that is there. `ours`: sbctl installed it; others are used and never changed."""

    engine: str
    launch: Literal["wheel", "binary"]
    version: str
    digest: str | None = None
    path: str
    ours: bool = True


class ArtifactState(_Fact):
    """Weights in the host's cache. `reason`: what is wrong with corrupt ones."""

    artifact: str
    state: Literal["ready", "partial", "corrupt"]
    size_bytes: int = 0
    reason: str | None = None
    shape: ModelShape | None = None
    """What the model needs, by the headers of its weights; None where they say nothing, or an older version published them."""
    taken_bytes: int = 0
    """Of a partial one: what it has of the disk, space that is reserved for what has not come included."""


class MemoryRecord(_Fact):
    """The most that processes of one kind had. `key`: see `engines.memory.memory_key`."""

    key: str = Field(max_length=64)
    observed_bytes: int = Field(ge=0)


class BundleState(_Fact):
    """The desired state that a runtime accepted."""

    revision: int
    content_digest: str
    key_epoch: int = 0
    signer: str = ""
    origins: dict[str, str] | None = None
    """Hostname → member digest of what it routes; None when nobody told (a runtime that is down)."""
    deployments_revision: int | None = None
    """Of the admin API's store, where that owns the deployments and holds some: those of the bundle are not what runs then."""


class ReplicaState(_Fact):
    """One engine process of a deployment. `reason_code` and `last_error`: why it is not ready."""

    replica: int = 0
    state: str = "configured"
    pid: int | None = None
    restarts: int = 0
    active_requests: int = 0
    queued_requests: int = 0
    last_error: str | None = None
    next_step: str | None = None
    """What to do about `last_error`; None also of a runtime that does not say it yet."""
    reason_code: str | None = None
    memory_bytes: int | None = Field(default=None, ge=0)
    """Resident memory of its engine's first process, as the node read it; None when there is none or it cannot be read."""

    @property
    def cause(self) -> str | None:
        """The error and what to do about it, for one line."""
        return "; ".join(part for part in (self.last_error, self.next_step) if part) or None


class DeploymentState(_Fact):
    """`stopped_by` is `operator` after an explicit stop (drift), `idle` after keep_alive (not drift), else None."""

    deployment: str
    generation: int = 0
    state: str = "configured"
    content_digest: str = ""
    stopped_by: Literal["operator", "idle"] | None = None
    stop_is_owed: bool = False
    """The host's disk took no write: a restart of its runtime would start it again."""
    replicas: tuple[ReplicaState, ...] = ()
    last_error: str | None = None
    warm: bool | None = None
    """Stays loaded, whoever else wants its room; None of a runtime that does not say it yet."""
    keep_alive_secs: int | None = None
    """Unloaded after so long without a request; None: not for that alone."""


class ClusterState(_Fact):
    """The cluster as this node knows it. `bundle`: the cluster's, as it is kept here; None before there was one.

    `members`: digest of each of its deployments, as the bundle has it. `placement`: the newest plan of the lease-holder that this node
    verified, a `PlacementDocument`; None when it knows none. `problem`: why it stands alone, in one sentence. `absent`: workers of sb.yml that
    nothing was ever heard of, as the lease-holder knows them.
    """

    cluster_id: str = Field(max_length=128)
    is_authority: bool = False
    bundle: BundleState | None = None
    members: dict[str, str] = Field(default_factory=dict, max_length=BUNDLE_DEPLOYMENTS_MAX)
    placement: dict[str, Any] | None = None
    store_reachable: bool | None = None
    problem: str | None = Field(default=None, max_length=512)
    absent: tuple[str, ...] = Field(default=(), max_length=10_000)


class NodeSnapshot(_Fact):
    """Everything that is known of one host at one moment."""

    schema_version: Literal[1] = 1
    bootstrapped: bool
    """Whether the node interface answered; before that only `host`, `marker`, `paths`, `disk` and installed versions are known."""
    host: HostFacts = HostFacts.model_construct()
    marker: HostMarker | None = None
    lease: LeaseState | None = None
    """None: nobody changes the host now."""
    drain: DrainState | None = None
    """None: the host is in service."""
    paths: NodePathsState | None = None
    disk: DiskState = DiskState.model_construct()
    runtime: RuntimeState = RuntimeState.model_construct()
    engines: tuple[EngineState, ...] = ()
    """Installed by us, and programs found on PATH (`ours=False`)."""
    artifacts: tuple[ArtifactState, ...] = ()
    bundle: BundleState | None = None
    deployments: tuple[DeploymentState, ...] = ()
    memory: tuple[MemoryRecord, ...] = Field(default=(), max_length=1024)
    """What engines took here, as the runtime saw it."""
    certificate: CertificateState | None = None
    enrollment: EnrollmentState | None = None
    cluster: ClusterState | None = None
    """None: no node of a cluster, or its runtime does not answer."""
    store: StoreState | None = None
    store_program: StoreProgramFact | None = None
