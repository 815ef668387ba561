"""The bundle: the signed, numbered, complete desired state of one runtime.

Payload models only; `sbctl.trust.verifier` decides whether one is accepted. `content_digest` covers what should run and nothing that
merely numbers or dates it, so an unchanged desired state has an unchanged digest.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from sbctl.artifacts.egress import PROVIDER_KEY_PATTERN
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.digests import fingerprint
from sbctl.base.ids import ID_RE
from sbctl.base.limits import JSON_INT_MAX
from sbctl.base.once import once_per_object

__all__ = [
    "BUNDLE_PAYLOAD_TYPE",
    "COLD_START_DEFAULT",
    "TRUST_PAYLOAD_TYPE",
    "AdapterMember",
    "ApiKeyEntry",
    "BundleContent",
    "BundlePayload",
    "DeploymentMember",
    "EngineMode",
    "EnginePolicy",
    "ExternalMember",
    "KvQuant",
    "LocalStandIn",
    "OriginMember",
    "StandIn",
    "TrustSet",
    "content_digest",
    "member_digest",
]

BUNDLE_PAYLOAD_TYPE: Final = "application/vnd.sbctl.bundle.v1+json"
TRUST_PAYLOAD_TYPE: Final = "application/vnd.sbctl.trust.v1+json"

_Id = Annotated[str, StringConstraints(pattern=f"^{ID_RE.pattern}$", max_length=128)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class EnginePolicy(_Part):
    """Which engine build serves a deployment. `path` is a named executable; else the engine resource of that version."""

    engine: Literal["llama_cpp"]
    launch: Literal["wheel", "binary"]
    version: str | None = None
    path: str | None = None
    acceleration: Literal["cpu", "cuda", "vulkan"] = "cpu"

    @property
    def computes_on_devices(self) -> bool:
        """Whether a build for devices is asked for: all layers lie on them."""
        return self.launch == "binary" and self.acceleration != "cpu"


KvQuant = Literal["auto", "f16", "fp8", "int8", "int4"]
"""How an engine holds the attention cache; each engine has its own nearest type."""

COLD_START_DEFAULT: Final = "wait"
"""What a request meets when no replica is ready and nobody said what it should: the same in sb.yml and in the admin API."""

EngineMode = Literal["chat", "embedding", "rerank"]
"""What an engine answers: text, vectors, or scores."""


class AdapterMember(_Part):
    """A LoRA adapter that the engine loads with the model and applies to every answer, `scale` strong."""

    artifact: ArtifactFacts
    scale: float = Field(ge=-16, le=16, allow_inf_nan=False)


class DeploymentMember(_Part):
    """One deployment as a runtime must run it; every default is written out, so a bundle needs no defaults on the node."""

    model: str
    variant: str
    artifact: ArtifactFacts
    engine: EnginePolicy
    replicas: int = Field(ge=1, le=64)
    pull: Literal["on_boot", "on_demand", "manual"]
    warm: bool
    cold_start: Literal["wait", "reject", "fallback"]
    keep_alive_secs: int | None = Field(default=None, ge=1, le=31_536_000)
    max_concurrency: int = Field(ge=1, le=1_000_000)
    max_queue_depth: int = Field(ge=0, le=1_000_000)
    queue_timeout_ms: int = Field(ge=1, le=86_400_000)
    rollout: Literal["rolling", "recreate"]
    context_length: int = Field(gt=0)
    """Tokens per request slot; the engine gets this times max_concurrency."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    memory_bytes: int | None = Field(default=None, gt=0, le=JSON_INT_MAX)
    """What one replica needs, where the operator knows better than the estimate."""
    mode: EngineMode = "chat"
    kv_quant: KvQuant = "auto"
    adapters: tuple[AdapterMember, ...] = Field(default=(), max_length=16)
    extra_args: tuple[str, ...] = ()
    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    """Devices that one replica spans; None: as many as its memory needs. Left out of a host's document when nobody said."""

    @model_serializer(mode="wrap")
    def _without_unsaid(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        if self.tensor_parallel is None and not self._is_written_whole:
            del document["tensor_parallel"]
        return document

    _is_written_whole: ClassVar[bool] = False

    @property
    def artifacts(self) -> tuple[str, ...]:
        """All weights that it needs: the model's, then its adapters'."""
        return (self.artifact.artifact, *(adapter.artifact.artifact for adapter in self.adapters))


class ExternalMember(_Part):
    """Somebody else's OpenAI-compatible API that stands in for deployments: prompts leave the host for it.

    `models`: public names and what they are called there. `keys`: names of secrets that the host was given (`RuntimeConfig.provider_keys`).
    """

    name: str = Field(min_length=1, max_length=128)
    base_url: str = Field(max_length=2048)
    models: dict[str, str]
    keys: tuple[Annotated[str, StringConstraints(pattern=PROVIDER_KEY_PATTERN)], ...] = Field(default=(), max_length=16)
    no_prompt_training: bool = False


class LocalStandIn(_Part):
    """Another deployment of the same runtime that stands in for one that cannot answer. `models`: public names."""

    name: str = Field(min_length=1, max_length=128)
    deployment: _Id
    models: tuple[str, ...] = Field(min_length=1, max_length=256)


StandIn = ExternalMember | LocalStandIn


class OriginMember(_Part):
    """One hostname: which public model names it serves and by which deployment. `default_model` answers a request that names none.

    `force_ssl`: over https alone. `stand_ins`: who is asked, in this order, when the deployment cannot answer.
    """

    models: dict[str, _Id]
    default_model: str | None = None
    force_ssl: bool = False
    stand_ins: tuple[StandIn, ...] = Field(default=(), max_length=64)


class ApiKeyEntry(_Part):
    """A caller's key, known by its hash only. `models` are public names; None allows all. Limits hold for each runtime by itself."""

    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    priority: Literal["interactive", "standard", "batch"] = "standard"
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)


class BundleContent(_Part):
    """What should run.

    `catalog`: the operator's own catalog, where the admin API may choose from it. Left out of the document when there is none.
    """

    deployments: dict[_Id, DeploymentMember]
    origins: dict[str, OriginMember]
    api_keys: dict[_Id, ApiKeyEntry]
    public: bool
    catalog: dict[str, JsonValue] | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        return document if self.catalog is not None else {k: v for k, v in document.items() if k != "catalog"}


class BundlePayload(_Part):
    """The signed document. `revision` grows by compare-and-set under the state lock; `key_epoch` fences before it.

    `expires_at` limits first acceptance only: an accepted bundle is served across restarts without limit.
    """

    schema_version: Literal[1] = 1
    lineage: str = Field(min_length=1, max_length=64)
    scope: _Id
    key_epoch: int = Field(ge=0, le=JSON_INT_MAX)
    revision: int = Field(ge=1, le=JSON_INT_MAX)
    issued_at: str = Field(max_length=40)
    expires_at: str | None = Field(default=None, max_length=40)
    catalog_digest: str | None = None
    content: BundleContent
    content_digest: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class TrustSet(_Part):
    """Whose bundles a node accepts. A change is signed by a member of the set that the node holds; the first is taken over SSH."""

    schema_version: Literal[1] = 1
    lineage: str = Field(min_length=1, max_length=64)
    key_epoch: int = Field(ge=0, le=JSON_INT_MAX)
    signers: dict[_Id, str] = Field(min_length=1, max_length=64)
    """Name → `ed25519:<base64 of 32 bytes>`."""


def content_digest(content: BundleContent) -> str:
    """64 hex characters over canonical JSON of the content."""
    return fingerprint(content.model_dump(mode="json"))


@once_per_object
def member_digest(member: DeploymentMember | OriginMember) -> str:
    """64 hex characters; equal exactly when the member asks for the same."""
    return fingerprint(member.model_dump(mode="json"))
