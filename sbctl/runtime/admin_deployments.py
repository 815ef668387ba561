"""Deployments by the admin API: what a body may ask for, and what that means on this host (SBproxy, "model-host routes").

A body is the complete map. What it has no field for (context, cache type, adapters, engine build) stays as it was for a deployment of the
same id and weights; else it is as sb.yml has it for the same weights, else as the catalog has it. Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import JSON_INT_MAX
from sbctl.base.suggest import did_you_mean
from sbctl.catalog.licenses import license_of
from sbctl.catalog.loader import Catalog
from sbctl.catalog.resolve import Resolution, resolve
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from sbctl.trust.bundle import COLD_START_DEFAULT, DeploymentMember, EngineMode, EnginePolicy

__all__ = ["Asked", "asked_deployments", "shown_deployment"]

_DEPLOYMENTS_MAX: Final = 1024
_MODES: Final[Mapping[str, EngineMode]] = {"chat": "chat", "embedding": "embedding", "rerank": "rerank"}
_CATALOG_CODES: Final = {
    "catalog.unknown_model": "unknown_catalog_model",
    "catalog.unknown_variant": "unknown_catalog_variant",
}
_Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
_Name = Annotated[str, StringConstraints(pattern=r"^\S(?:.*\S)?$", max_length=256)]


class _Deployment(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    model: _Name
    variant: _Name | None = None
    heterogeneous_variants: Literal[False] = False
    replicas: int = Field(default=1, ge=1, le=64)
    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    required_labels: dict[str, str] = Field(default_factory=dict, max_length=0)
    spread_by: tuple[str, ...] = Field(default=(), max_length=0)
    pull: Literal["on_boot", "on_demand", "manual"] = "on_demand"
    warm: bool = False
    cold_start: Literal["wait", "reject", "fallback"] = COLD_START_DEFAULT
    keep_alive_secs: int | None = Field(default=None, ge=1, le=31_536_000)
    max_concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    max_queue_depth: int = Field(default=128, ge=0, le=1_000_000)
    queue_timeout_ms: int = Field(default=30_000, ge=1, le=86_400_000)
    engine: Literal["auto", "llama_cpp"] = "auto"
    rollout: Literal["rolling", "recreate"] = "rolling"

    def over(self, base: DeploymentMember) -> DeploymentMember:
        """`base` with everything that a body can say."""
        return base.model_copy(
            update={
                "replicas": self.replicas,
                "pull": self.pull,
                "warm": self.warm,
                "cold_start": self.cold_start,
                "keep_alive_secs": self.keep_alive_secs,
                "max_concurrency": self.max_concurrency or 1,
                "max_queue_depth": self.max_queue_depth,
                "queue_timeout_ms": self.queue_timeout_ms,
                "rollout": self.rollout,
                "tensor_parallel": self.tensor_parallel,
            }
        )

    def is_of(self, member: DeploymentMember) -> bool:
        return member.model == self.model and self.variant in (None, member.variant)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    expected_revision: int | None = Field(ge=0, le=JSON_INT_MAX)
    deployments: dict[_Id, Any] = Field(max_length=_DEPLOYMENTS_MAX)


@dataclass(frozen=True, slots=True)
class Asked:
    """A body that can be carried out: the whole map as this host would run it, and the revision that it replaces."""

    expected_revision: int | None
    deployments: Mapping[str, DeploymentMember]


def asked_deployments(
    document: Mapping[str, Any],
    *,
    stored: Mapping[str, DeploymentMember],
    offered: Mapping[str, DeploymentMember],
    catalog: Catalog,
) -> Asked:
    """`stored` is what the API owns now, `offered` what the accepted bundle has.

    Raises InputError `invalid_body`, `invalid_desired`, `unknown_catalog_model`, `unknown_catalog_variant`; RefusedError
    `engine_incompatible`. Each names the deployment.
    """
    try:
        body = _Body.model_validate(document)
    except ValidationError as error:
        raise InputError("invalid_body", f"{_first(error)}; {_BODY}") from None
    known = (*stored.values(), *offered.values())
    members = {}
    for name, written in body.deployments.items():
        wanted = _parsed(name, written)
        same = next((each for each in (stored.get(name), offered.get(name)) if each and wanted.is_of(each)), None)
        members[name] = wanted.over(same or _member(name, wanted, known, catalog))
        _refuse_without_devices(name, members[name])
    return Asked(body.expected_revision, members)


def _refuse_without_devices(name: str, member: DeploymentMember) -> None:
    if (member.tensor_parallel or 1) > 1 and not member.engine.computes_on_devices:
        raise RefusedError(
            "engine_incompatible",
            f'deployment "{name}" spans {member.tensor_parallel} devices, and its engine computes on the processor',
            next_step="leave tensor_parallel out, or give the host an engine that is built for devices (engines.llama_cpp in sb.yml)",
            detail={"deployment": name},
        )


_BODY: Final = 'the body is {"expected_revision": <number or null>, "deployments": {"<id>": {...}}}'


def _parsed(name: str, written: Any) -> _Deployment:
    engine = written.get("engine") if isinstance(written, dict) else None
    if engine in ("vllm", "sglang", "mistralrs"):
        raise RefusedError(
            "engine_incompatible",
            f'deployment "{name}" asks for the engine {engine}, and this runtime starts llama_cpp',
            next_step="choose a gguf variant and the engine llama_cpp, or leave engine out",
            detail={"deployment": name},
        )
    try:
        return _Deployment.model_validate_json(json.dumps(written))
    except ValidationError as error:
        message = f'deployment "{name}": {_first(error)}'
        raise InputError("invalid_desired", message, detail={"deployment": name}) from None


def _member(name: str, wanted: _Deployment, known: Iterable[DeploymentMember], catalog: Catalog) -> DeploymentMember:
    """The weights as this host knows them already, else as its catalog has them."""
    members = tuple(known)
    for member in members:
        if wanted.is_of(member):
            tuned = {
                "context_length": member.artifact.context_length,
                "kv_quant": "auto",
                "adapters": (),
                "extra_args": (),
            }
            return member.model_copy(update=tuned)
    found, mode = _servable(name, wanted, catalog)
    engine = next(
        (member.engine for member in members),
        EnginePolicy(engine="llama_cpp", launch="wheel", version=LLAMA_CPP_WHEEL_DEFAULT),
    )
    return DeploymentMember(
        model=found.facts.model,
        variant=found.facts.variant,
        artifact=found.facts.model_copy(update={"catalog_digest": None}),
        engine=engine,
        replicas=1,
        pull="on_demand",
        warm=False,
        cold_start=COLD_START_DEFAULT,
        max_concurrency=1,
        max_queue_depth=128,
        queue_timeout_ms=30_000,
        rollout="rolling",
        context_length=found.facts.context_length,
        mode=mode,
    )


def _servable(name: str, wanted: _Deployment, catalog: Catalog) -> tuple[Resolution, EngineMode]:
    """What the catalog has under this name, where this runtime can serve it and nobody's word is needed for its licence."""
    try:
        found = resolve(catalog, wanted.model, wanted.variant, engine=wanted.engine)
    except InputError as error:
        raise InputError(
            _CATALOG_CODES.get(error.code, "invalid_desired"),
            f'deployment "{name}": {error.message}',
            next_step="GET /admin/model-host/catalog lists what may be named; models of your own come with catalog_file in sb.yml, by sbctl apply",
            detail={"deployment": name},
        ) from None
    mode = _MODES.get(found.entry.model.modality)
    if found.engine != "llama_cpp" or mode is None:
        raise RefusedError(
            "engine_incompatible",
            f'deployment "{name}": llama_cpp does not serve {wanted.model} ({found.entry.model.modality}, {found.facts.format})',
            detail={"deployment": name},
        )
    license_ = license_of(found.facts.license)
    if license_.restrictive:
        raise InputError(
            "invalid_desired",
            f'deployment "{name}": the licence of {wanted.model} has to be read by somebody: {license_.phrase}',
            next_step="accept it in sb.yml, in a deployment of this model with accept_license, and apply",
            detail={"deployment": name},
        )
    return found, mode


def shown_deployment(member: DeploymentMember) -> dict[str, Any]:
    """In the form of a body, so that what GET answers can be changed and sent back."""
    held = member.model_dump(mode="json")
    fields = (name for name in _Deployment.model_fields if name in held and name != "engine")
    return {**{name: held[name] for name in fields}, "engine": member.engine.engine}


def _first(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        near = did_you_mean(str(found["loc"][-1]), _Deployment.model_fields)
        return f"{where[:200]} is not a field" + (f', did you mean "{near}"?' if near else "")
    return f"{where[:200]}: {found['msg']}" if where else str(found["msg"])
