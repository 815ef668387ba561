"""What configuration becomes: one merged, checked, immutable value from which every provider derives what it desires.

Merge order: host over group over `fleet.defaults` over the global block. Secrets appear only as references.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbctl.artifacts.egress import Egress, EgressSecret
from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.model import ArtifactFacts, Delivery
from sbctl.base.connection import Connection
from sbctl.base.errors import Diagnostic, SourceSpan
from sbctl.base.secret import Secret
from sbctl.base.update_policy import UpdatePolicy
from sbctl.catalog.loader import Catalog, builtin_catalog
from sbctl.config.host_lock import LOCK_NAME
from sbctl.config.models import DeploymentModel, EngineModel, ModelHostModel, ProxyModel
from sbctl.node.python_archive import PythonArchive
from sbctl.trust.bundle import ApiKeyEntry, EngineMode

if TYPE_CHECKING:
    from sbctl.trust.authority_facts import AuthorityFacts
    from sbctl.trust.own_pki import OwnIdentity
    from sbctl.trust.public_certificate import PublicCertificate

__all__ = [
    "CompiledAdapter",
    "CompiledAlternative",
    "CompiledCluster",
    "CompiledConfig",
    "CompiledDeployment",
    "CompiledEgress",
    "CompiledExternal",
    "CompiledHost",
    "CompiledIdentity",
    "CompiledOrigin",
    "CompiledTls",
    "EnrollServer",
    "OwnPki",
    "PublicRoute",
    "SecretRef",
    "StandalonePython",
]


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret comes from, never what it is.

    `reference` is `env:NAME`, `file:PATH`, `exec:COMMAND`, `node-file:PATH` or `inline:<json pointer>` for a value written in sb.yml itself.
    `fingerprint` is keyed by the lineage (16 hex); None when it cannot be known while planning.
    """

    name: str
    reference: str
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class CompiledAdapter:
    """A LoRA adapter of a deployment: its file, and how strongly it is applied."""

    artifact: ArtifactFacts
    scale: float


@dataclass(frozen=True, slots=True)
class CompiledAlternative:
    """Another variant that a replica may run (`heterogeneous_variants`)."""

    artifact: ArtifactFacts
    context_length: int
    shape: ModelShape | None = None


@dataclass(frozen=True, slots=True)
class CompiledTls:
    """The API's public certificate and where both files come from: `file:PATH` beside sb.yml (the key: any reference), or `node-file:PATH` both.

    `certificate` is None for files that somebody else keeps on the host.
    """

    certificate_reference: str
    key_reference: str
    certificate: PublicCertificate | None

    @property
    def node_files(self) -> tuple[str, str] | None:
        """Chain and key on the host."""
        if self.certificate is not None:
            return None
        return self.certificate_reference.removeprefix("node-file:"), self.key_reference.removeprefix("node-file:")


@dataclass(frozen=True, slots=True)
class CompiledDeployment:
    """One deployment on one host: the user's fields with defaults filled in, and what the catalog says about its model."""

    id: str
    model: DeploymentModel
    artifact: ArtifactFacts
    engine: str
    """Resolved: never `auto`."""
    engine_policy: EngineModel
    context_length: int
    max_concurrency: int
    cold_start: Literal["wait", "reject", "fallback"]
    delivery: Delivery
    span: SourceSpan | None = None
    mode: EngineMode = "chat"
    """By the modality of the model."""
    adapters: tuple[CompiledAdapter, ...] = ()
    shape: ModelShape | None = None
    """What the catalog recorded of the header of the weights."""
    alternatives: tuple[CompiledAlternative, ...] = ()
    """Of a cluster alone, the preferred first."""

    @property
    def artifacts(self) -> tuple[ArtifactFacts, ...]:
        """All weights that the deployment needs: the model's, then its adapters'."""
        return (self.artifact, *(adapter.artifact for adapter in self.adapters))


@dataclass(frozen=True, slots=True)
class PublicRoute:
    """A public model name of an origin and the deployment that answers it."""

    model: str
    deployment: str


@dataclass(frozen=True, slots=True)
class CompiledExternal:
    """An external provider that stands in for deployments. `models`: public names and what they are called there; `keys` are named as files on a host."""

    name: str
    base_url: str
    models: Mapping[str, str]
    keys: tuple[SecretRef, ...]
    no_prompt_training: bool


@dataclass(frozen=True, slots=True)
class CompiledStandIn:
    """Another deployment that answers public names when the one before it cannot."""

    name: str
    deployment: str
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledOrigin:
    """One hostname of the API: its public names, and what answers them."""

    hostname: str
    routes: tuple[PublicRoute, ...]
    default_model: str | None = None
    force_ssl: bool = False
    stand_ins: tuple[CompiledExternal | CompiledStandIn, ...] = ()
    """Who is asked, in this order, when the deployment of a route cannot answer."""

    @property
    def externals(self) -> tuple[CompiledExternal, ...]:
        return tuple(each for each in self.stand_ins if isinstance(each, CompiledExternal))


@dataclass(frozen=True, slots=True)
class StandalonePython:
    """A Python that the operator sends: an archive at an absolute path, and what it holds once that was read (`sbctl.cli.pythons`)."""

    path: str
    sha256: str
    archive: PythonArchive | None = None


@dataclass(frozen=True, slots=True)
class CompiledEgress:
    """How a host reaches the outside; `config.secrets` names exactly the keys of `secrets`."""

    config: Egress
    secrets: Mapping[EgressSecret, SecretRef]


@dataclass(frozen=True, slots=True)
class CompiledHost:
    """One host with its overlays merged in."""

    name: str
    connection: Connection
    roles: frozenset[str]
    labels: Mapping[str, str]
    proxy: ProxyModel
    model_host: ModelHostModel
    deployments: Mapping[str, CompiledDeployment]
    origins: Mapping[str, CompiledOrigin]
    api_keys: Mapping[str, ApiKeyEntry]
    public: bool
    admin_password: SecretRef | None
    delivery: Delivery
    python: str | None = None
    standalone: StandalonePython | None = None
    """Never beside `python`."""
    keep_weights: bool = False
    relay: str | None = None
    """The host that passes on what is pushed to this one."""
    group: str | None = None
    """For people; what it sets is merged in."""
    tls: CompiledTls | None = None
    egress: CompiledEgress | None = None
    """None: sb.yml says nothing of it."""
    data_address: str = "127.0.0.1"
    """How clients reach the host: in endpoints that are printed, never to connect."""
    catalog: Catalog = field(default_factory=builtin_catalog, repr=False, compare=False)
    """The built-in one with the host's `catalog_file` over it."""


@dataclass(frozen=True, slots=True)
class CompiledCluster:
    """`proxy.cluster`: the hosts are nodes of one cluster, and this is what should run somewhere in it. Names of hosts are sorted."""

    cluster_id: str
    deployments: Mapping[str, CompiledDeployment]
    origins: Mapping[str, CompiledOrigin]
    authorities: tuple[str, ...]
    gateways: tuple[str, ...]
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnPki:
    """Files of a PKI of the user's own; `{host}` is a host's name. Paths are absolute, the key is a reference."""

    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class EnrollServer:
    """The enrollment server that an apply runs."""

    host: str
    bind_address: str
    port: int
    validity_hours: int


@dataclass(frozen=True, slots=True)
class CompiledIdentity:
    """`fleet.identity`: whose authority gives the hosts their identities. `directory` is absolute."""

    directory: str
    server_name: str | None
    """None: that of the authority, with which a written one must agree."""
    validity_days: int
    renew_before_days: int | None
    own: OwnPki | None = None
    """None: `directory` is the authority."""
    enroll: EnrollServer | None = None


@dataclass(frozen=True, slots=True)
class CompiledConfig:
    """The whole file. `digest` changes exactly when something that can matter to a plan does; `notes` are findings that do not stop a plan."""

    path: str
    fleet_name: str
    digest: str
    catalog_digest: str
    hosts: Mapping[str, CompiledHost]
    signers: Mapping[str, str] | None
    """Declared by `fleet.trust.signers`; None when the state keeps the set."""
    runtime_version: str | None
    """`fleet.runtime.version`; None: the version of this sbctl."""
    secrets: Mapping[str, SecretRef]
    prevent_destroy: tuple[str, ...] = ()
    """Address patterns."""
    notes: tuple[Diagnostic, ...] = ()
    identity: CompiledIdentity | None = None
    cluster: CompiledCluster | None = None
    """None: every host serves by itself."""
    authority: AuthorityFacts | None = field(default=None, compare=False)
    """What the authority's directory says now; filled in by the command like `lineage`, None without `identity` or with an own PKI."""
    own_identities: Mapping[str, OwnIdentity] | None = field(default=None, compare=False)
    """What the own PKI gave each host, verified; filled in like `authority`."""
    update: UpdatePolicy | None = None
    """How an apply rolls over hosts; None: all at once."""
    lineage: str = ""
    """Filled in by the command from the state (or for a new fleet, by a fresh UUID) before providers are asked; empty after `load`."""
    key_epoch: int = 0
    """Of the signer set; filled in like `lineage`. So is `signers` when sb.yml does not declare it."""
    inline_secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False, compare=False)
    """Values written in sb.yml itself, by their `inline:` reference; in memory only."""
    host_lock: Path = Path(LOCK_NAME)
    """Where `sbctl host trust` pins keys; need not exist."""

    def has_identity(self, host: str) -> bool:
        """Whether a host of this name gets an identity: an own PKI gave it one, or there is an authority that did not revoke the host for good."""
        if self.own_identities is not None:
            return host in self.own_identities
        if self.authority is None:
            return False
        node = self.authority.nodes.get(host)
        return node is None or not node.is_shut_out

    def pushed(self) -> CompiledConfig:
        """The same configuration where no host fetches anything itself, whatever its `delivery` says."""
        hosts: dict[str, CompiledHost] = {}
        for name, host in self.hosts.items():
            deployments = {key: replace(each, delivery="push") for key, each in host.deployments.items()}
            hosts[name] = replace(host, delivery="push", deployments=deployments)
        return replace(self, hosts=hosts)
