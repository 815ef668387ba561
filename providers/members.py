"""What a bundle says about one deployment or origin, as plain data: the same dump for the member's own row and for the bundle.

The fingerprint of a member's spec is its `member_digest`, which the runtime reports back. Hosts of a fleet mostly share their members, so
a dump and its fingerprint are made once for each distinct value; the shared data is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from providers.comparison import Comparison
from providers.engine_policy import engine_policy
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.digests import fingerprint
from sbctl.base.field_types import byte_size
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledDeployment, CompiledExternal, CompiledOrigin, CompiledStandIn
from sbctl.plan.model import Change
from sbctl.trust.bundle import AdapterMember, DeploymentMember, ExternalMember, LocalStandIn, OriginMember, StandIn
from sbctl.trust.cluster_bundle import ClusterDeployment, VariantOption

__all__ = ["MemberCompiler", "artifact_name", "facts_dump", "is_cluster_member", "stands_on", "superseded"]

Member = tuple[dict[str, Any], str]
"""A spec and its fingerprint."""


def is_cluster_member(spec: Mapping[str, Any]) -> bool:
    """Whether a deployment's spec is one of a cluster."""
    return "alternatives" in spec


def superseded(comparison: Comparison) -> Change | None:
    """For a member, or a bundle, that its host had for itself before it became a node of a cluster: nothing is asked of the host, which serves
    on until the cluster tells it otherwise. None for anything else that goes."""
    bundle = comparison.address if comparison.address.kind == "bundle" else comparison.subject.member_of
    if bundle in comparison.context.desired_specs:
        return None
    return comparison.left_to_cluster(
        "the cluster's bundle takes its place; what runs stays until it is assigned elsewhere"
    )


def facts_dump(facts: ArtifactFacts) -> tuple[str, dict[str, Any]]:
    """Without the catalog's own digest: it changes with every entry of the catalog, and would change what uses none of them."""
    text = _named(facts).model_dump_json()
    return text, _loaded(text)


def _named(facts: ArtifactFacts) -> ArtifactFacts:
    return facts.model_copy(update={"catalog_digest": None})


@lru_cache(maxsize=4096)
def _loaded(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@lru_cache(maxsize=4096)
def _member(text: str) -> Member:
    spec = _loaded(text)
    return spec, fingerprint(spec)


class MemberCompiler:
    """Members of one configuration. Values are told apart by identity first, which is what makes a thousand equal hosts cheap."""

    def __init__(self) -> None:
        self._deployments: dict[tuple[Any, ...], Member] = {}
        self._origins: dict[int, Member] = {}
        self._held: list[object] = []

    def deployment(self, deployment: CompiledDeployment) -> Member:
        """Raises ConfigError for an engine that hosts cannot launch yet."""
        key = (
            *(id(part) for part in (deployment.model, deployment.artifact, deployment.engine_policy)),
            deployment.engine,
            tuple(id(adapter) for adapter in deployment.adapters),
            deployment.mode,
            deployment.context_length,
            deployment.max_concurrency,
            deployment.cold_start,
        )
        member = self._deployments.get(key)
        if member is None:
            member = _member(_deployment_member(deployment).model_dump_json())
            self._deployments[key] = member
            self._held.append(deployment)
        return member

    def of_cluster(self, deployment: CompiledDeployment) -> Member:
        """The same deployment as a cluster's bundle has it. Raises as `deployment`."""
        return _member(_cluster_member(deployment).model_dump_json())

    def origin(self, origin: CompiledOrigin) -> Member:
        member = self._origins.get(id(origin))
        if member is None:
            routes = {route.model: route.deployment for route in origin.routes}
            written = OriginMember(
                models=routes,
                default_model=origin.default_model,
                force_ssl=origin.force_ssl,
                stand_ins=tuple(map(_stand_in, origin.stand_ins)),
            )
            member = _member(written.model_dump_json())
            self._origins[id(origin)] = member
            self._held.append(origin)
        return member


def _deployment_member(deployment: CompiledDeployment) -> DeploymentMember:
    model = deployment.model
    return DeploymentMember(
        model=deployment.artifact.model,
        variant=deployment.artifact.variant,
        artifact=_named(deployment.artifact),
        engine=engine_policy(deployment),
        replicas=model.replicas,
        pull=model.pull,
        warm=model.warm,
        cold_start=deployment.cold_start,
        keep_alive_secs=model.keep_alive_secs,
        max_concurrency=deployment.max_concurrency,
        max_queue_depth=model.max_queue_depth,
        queue_timeout_ms=model.queue_timeout_ms,
        rollout=model.rollout,
        context_length=deployment.context_length,
        memory_bytes=byte_size(model.memory) if model.memory is not None else None,
        mode=deployment.mode,
        kv_quant=model.kv_quant,
        adapters=tuple(
            AdapterMember(artifact=_named(adapter.artifact), scale=adapter.scale) for adapter in deployment.adapters
        ),
        extra_args=tuple(model.extra_args),
        tensor_parallel=model.tensor_parallel,
    )


def _cluster_member(deployment: CompiledDeployment) -> ClusterDeployment:
    member, model = _deployment_member(deployment), deployment.model
    alternatives = tuple(
        VariantOption(
            variant=one.artifact.variant,
            artifact=_named(one.artifact),
            engine=member.engine,
            context_length=one.context_length,
            memory_bytes=member.memory_bytes,
            shape=one.shape,
        )
        for one in deployment.alternatives
    )
    return ClusterDeployment(
        **{name: getattr(member, name) for name in DeploymentMember.model_fields},
        required_labels=dict(model.required_labels),
        spread_by=tuple(model.spread_by),
        alternatives=alternatives,
        shape=deployment.shape,
    )


def _stand_in(written: CompiledExternal | CompiledStandIn) -> StandIn:
    if isinstance(written, CompiledStandIn):
        return LocalStandIn(name=written.name, deployment=written.deployment, models=written.models)
    return ExternalMember(
        name=written.name,
        base_url=written.base_url,
        models=dict(written.models),
        keys=tuple(key.name for key in written.keys),
        no_prompt_training=written.no_prompt_training,
    )


def stands_on(host: str, deployment_spec: Mapping[str, Any]) -> frozenset[Address]:
    """What one deployment needs on its host before the bundle may name it: its engine and its artifacts."""
    engine = Address("engine", host, deployment_spec["engine"]["engine"])
    weights = (deployment_spec["artifact"], *(each["artifact"] for each in deployment_spec.get("adapters", ())))
    return frozenset({engine, *(Address("artifact", host, artifact_name(facts)) for facts in weights)})


def artifact_name(facts: Mapping[str, Any]) -> str:
    return f"{facts['model']}:{facts['variant']}"
