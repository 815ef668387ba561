"""`origins` as sb.yml writes them: which hostname exposes which deployment under which public model name (SBproxy, AI providers).

Only an origin of type `ai_proxy` with providers of type `managed_model` is served by sbctl; external providers stand in for them where
`routing` is `fallback_chain`. Other actions and providers stay in the file and are named as not managed, so their fields are not read.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from sbctl.base.field_types import Block, HostName, Id, Items, PlainText, expected

__all__ = [
    "AiActionModel",
    "ExternalProviderModel",
    "OriginModel",
    "OriginName",
    "OtherActionModel",
    "ProviderModel",
    "ServingProviderModel",
    "provider_form",
]

OriginName = HostName


class ProviderModel(Block):
    """A deployment of this file that answers requests."""

    noun: ClassVar[str] = "a managed provider"

    name: PlainText = Field(description="Name of the provider, for logs and metrics.")
    provider_type: Literal["managed_model"] = Field(description="managed_model: a deployment of proxy.model_host.")
    deployment: Id = Field(description="Which deployment answers.")
    models: Items[PlainText] = Field(
        default=(), max_length=256, description="Public model names. Empty: the deployment's id is the name."
    )
    default_model: PlainText | None = Field(
        default=None, description="Which of them answers a request that names none."
    )
    base_url: Any = Field(
        default=None,
        description="Address of an external provider; never with managed_model: the runtime knows where the engine is.",
    )
    api_key: Any = Field(
        default=None,
        description="Key of an external provider, by reference; never with managed_model: there is nobody to authenticate to.",
    )
    no_prompt_training: bool = Field(default=False, description="Always so: prompts stay on the host.")


class ServingProviderModel(Block):
    """A provider that hosts its models itself, SBproxy's older way."""

    model_config = ConfigDict(extra="allow", defer_build=True)
    noun: ClassVar[str] = "a serving provider"

    name: PlainText = Field(description="Name of the provider.")
    serve: dict[str, Any] = Field(
        description="SBproxy's older way to host a model: models, each with model, name, variant, keep_alive …; sbctl migrate rewrites it."
    )


_NOT_EXTERNAL: dict[str, Any] = {
    "not": {
        "anyOf": [
            {"required": ["deployment"]},
            {"required": ["serve"]},
            {"required": ["provider_type"], "properties": {"provider_type": {"const": "managed_model"}}},
        ]
    }
}


def _check_key(text: str) -> str:
    if not text.startswith(("env:", "file:", "exec:", "secret:")) or not text.isprintable():
        raise expected("a reference, never the key itself: env:NAME, file:PATH, exec:COMMAND or secret:NAME")
    return text


KeyReference = Annotated[PlainText, AfterValidator(_check_key)]


class ExternalProviderModel(Block):
    """The form alone: a provider that takes no part in a fallback chain is not read, and may hold whatever SBproxy knows."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_NOT_EXTERNAL, defer_build=True)
    noun: ClassVar[str] = "an external provider"

    name: PlainText = Field(description="Name of the provider, for logs and metrics.")
    base_url: PlainText | None = Field(
        default=None,
        description="Address of an OpenAI-compatible API, as https://api.example.com/v1. With routing: fallback_chain it answers when the deployment cannot; prompts leave the host then.",
    )
    api_key: KeyReference | None = Field(
        default=None, description="Its key, by reference: env:NAME, file:PATH, exec:COMMAND or secret:NAME."
    )
    api_keys: Items[KeyReference] = Field(
        default=(), max_length=16, description="More keys, by reference: the next is used while one is over its limit."
    )
    models: Items[PlainText] = Field(
        default=(), max_length=256, description="Public model names that it stands in for."
    )
    model_map: dict[PlainText, PlainText] = Field(
        default_factory=dict, max_length=256, description="Public model name to what the model is called there."
    )
    no_prompt_training: bool = Field(
        default=False,
        description="Say that this provider does not train on prompts: callers who ask for that (x-sbproxy-disallow-prompt-training) are led only there.",
    )


def provider_form(value: Any) -> str:
    """Which of the three forms a provider has."""
    if not isinstance(value, dict):
        return "managed" if isinstance(value, ProviderModel) else "external"
    if value.get("serve") is not None:
        return "serving"
    managed = value.get("provider_type") == "managed_model" or "deployment" in value
    return "managed" if managed else "external"


Provider = Annotated[
    Annotated[ProviderModel, Tag("managed")]
    | Annotated[ServingProviderModel, Tag("serving")]
    | Annotated[ExternalProviderModel, Tag("external")],
    Discriminator(provider_form),
]


class AiActionModel(Block):
    """An OpenAI-compatible API."""

    noun: ClassVar[str] = "an AI action"

    type: Literal["ai_proxy"] = Field(description="ai_proxy: an OpenAI-compatible API.")
    providers: Items[Provider] = Field(default=(), max_length=64, description="What answers requests.")


class OtherActionModel(Block):
    """What another plane of SBproxy serves: kept, and not managed."""

    model_config = ConfigDict(extra="allow", defer_build=True)
    noun: ClassVar[str] = "an action of another plane"

    type: Literal[
        "proxy", "redirect", "static", "echo", "mock", "beacon", "load_balancer", "websocket", "grpc", "graphql", "storage",
        "a2a", "mcp", "noop",
    ] = Field(description="What the origin does; sbctl serves ai_proxy only.")  # fmt: skip


def _action_form(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    others = OtherActionModel.model_fields["type"].annotation
    return "other" if isinstance(kind, str) and kind in getattr(others, "__args__", ()) else "ai"


Action = Annotated[
    Annotated[AiActionModel, Tag("ai")] | Annotated[OtherActionModel, Tag("other")], Discriminator(_action_form)
]


class OriginModel(Block):
    """One hostname, and what it does."""

    noun: ClassVar[str] = "an origin"

    action: Action = Field(description="What the hostname does.")
    force_ssl: bool = Field(
        default=False,
        description="Answer this hostname over https alone: plain requests are led there, and refused where they carry a key. Needs proxy.https_bind_port.",
    )
