"""What a cluster's bundle asks of placement: each deployment with all ways to run it and the room that each way takes, as the model host counts it.

The only module here that knows bundles. `sbctl plan` and the lease-holder both begin with it, so they place the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sbctl.engines.memory import Figure, ReplicaLaunch, figure_of, planned_bytes, planned_shares
from sbctl.placement.model import DeploymentDemand, Way
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.cluster_bundle import (
    ClusterDeployment,
    VariantOption,
    generation_digest,
    replica_digest,
    replicas_of,
)

__all__ = ["DEGREES", "demand_of", "demands_of"]

DEGREES: Final = (1, 2, 4, 8)
"""Devices that a replica may span where the deployment does not say: the fewest that hold it."""
_VULKAN_DEGREES: Final = tuple(range(1, 9))
"""A Vulkan build takes all devices of its node, however many."""


def demands_of(
    deployments: Mapping[str, ClusterDeployment],
    *,
    safety_margin: float,
    handoff_timeout_ms: int,
    drain_timeout_ms: int,
) -> tuple[DeploymentDemand, ...]:
    """All deployments of a bundle. The bounds are those of the model host (`proxy.model_host`)."""
    return tuple(
        demand_of(
            name,
            deployment,
            safety_margin=safety_margin,
            handoff_timeout_ms=handoff_timeout_ms,
            drain_timeout_ms=drain_timeout_ms,
        )
        for name, deployment in sorted(deployments.items())
    )


def demand_of(
    name: str,
    deployment: ClusterDeployment,
    *,
    safety_margin: float,
    handoff_timeout_ms: int,
    drain_timeout_ms: int,
) -> DeploymentDemand:
    """Its variants in order of preference, each on as few devices as hold it."""
    options = zip(deployment.options, replicas_of(deployment), strict=True)
    ways = [way for option, member in options for way in _ways(deployment, option, member, safety_margin)]
    return DeploymentDemand(
        deployment=name,
        digest=generation_digest(deployment),
        ways=tuple(ways),
        replicas=deployment.replicas,
        model=deployment.model,
        required_labels=dict(deployment.required_labels),
        spread_by=deployment.spread_by,
        pull=deployment.pull,
        warm=deployment.warm,
        rollout=deployment.rollout,
        handoff_timeout_ms=handoff_timeout_ms,
        drain_timeout_ms=drain_timeout_ms,
    )


def _ways(
    deployment: ClusterDeployment, option: VariantOption, member: DeploymentMember, safety_margin: float
) -> Iterable[Way]:
    policy = member.engine
    on_device = policy.computes_on_devices
    figure = _figure(member, option, on_device=on_device)
    adapters = sum(adapter.artifact.total_bytes for adapter in member.adapters)
    host_bytes, _ = planned_bytes(figure, adapter_bytes=adapters, safety_margin=safety_margin)
    degrees: tuple[int, ...] = (0,)
    if on_device and deployment.tensor_parallel is not None:
        degrees = (deployment.tensor_parallel,)
    elif on_device:
        degrees = _VULKAN_DEGREES if policy.acceleration == "vulkan" else DEGREES
    shares = planned_shares(figure, adapter_bytes=adapters, safety_margin=safety_margin, most=max(degrees))
    for degree in degrees:
        yield Way(
            variant=member.variant,
            artifact_digest=member.artifact.artifact,
            member_digest=replica_digest(member),
            engine=policy.engine,
            host_bytes=host_bytes,
            accelerator=policy.acceleration,
            devices=degree,
            device_bytes=shares[degree - 1] if degree else 0,
            engine_version=None if policy.path is not None else policy.version,
            launch=policy.launch,
            artifact_format=member.artifact.format,
            artifacts=member.artifacts,
        )


def _figure(member: DeploymentMember, option: VariantOption, *, on_device: bool) -> Figure:
    launch = ReplicaLaunch(
        context_length=member.context_length,
        slots=member.max_concurrency,
        kv_quant=member.kv_quant,
        mode=member.mode,
        extra_args=member.extra_args,
        launch=member.engine.launch,
        adapters=tuple(adapter.artifact.artifact for adapter in member.adapters),
        on_device=on_device,
    )
    listed = max(member.artifact.min_memory_bytes, member.artifact.total_bytes)
    return figure_of(launch, shape=option.shape, catalog_bytes=listed, declared_bytes=member.memory_bytes)
