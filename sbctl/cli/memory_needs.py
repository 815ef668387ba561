"""What each host's deployments need of its memory and devices, against what there is: rules over what sb.yml asks and hosts told, pure.

A figure of an estimate or of an observation gets the safety margin of the model host on top; one that the operator wrote, and the catalog's,
stand as they are. Deployments that compute on the processor share the host's memory; so do the host's parts of those on devices.

What is warm stays loaded, so all of that must fit at once. The others are loaded on demand and take turns (`runtime.residency`), so each of
them must fit beside what is warm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.base.display import format_bytes, plural
from sbctl.base.field_types import byte_size
from sbctl.catalog.resolve import Resolution
from sbctl.config.compiled import CompiledDeployment, CompiledHost
from sbctl.engines.memory import (
    Figure,
    ReplicaLaunch,
    figure_of,
    memory_key,
    planned_bytes,
    smaller_launches,
    usable_device_bytes,
    usable_host_bytes,
)
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.views.models_list_views import ModelFit

__all__ = ["DeploymentNeed", "HostNeeds", "model_fit", "need_body", "needs_of", "usable_bytes"]

_MARGIN: Final = 0.1
"""Where no sb.yml says another."""
_MODES: Final[Mapping[str, str]] = {"embedding": "embedding", "rerank": "rerank"}
_OTHER_HOST: Final = "another variant, model or host (required_labels)"


def usable_bytes(snapshot: NodeSnapshot) -> int:
    """Of the host's memory, or of what its control group leaves of it, what models may take."""
    return usable_host_bytes(snapshot.host.memory_total_bytes, snapshot.host.memory_limit_bytes)


@dataclass(frozen=True, slots=True)
class DeploymentNeed:
    """One deployment on one host. `figure` is of one replica; the others are of all, with the margin.

    What is usable for one that is loaded on demand is what its warm neighbours leave.
    """

    deployment: CompiledDeployment
    figure: Figure
    host_bytes: int
    device_bytes: int
    usable_host_bytes: int
    usable_device_bytes: int
    shape: ModelShape | None
    safety_margin: float
    has_warm_neighbours: bool = False

    @property
    def short_bytes(self) -> int:
        """What is lacking when it is alone here; 0: it fits."""
        return max(0, self.host_bytes - self.usable_host_bytes, self.device_bytes - self.usable_device_bytes)

    @property
    def said(self) -> str:
        facts, figure, replicas = self.deployment.artifact, self.figure, self.deployment.model.replicas
        each = f" ({format_bytes(figure.total_bytes)} a replica)" if replicas > 1 else ""
        beside = " beside what is warm" if self.has_warm_neighbours else ""
        usable = f"{format_bytes(self.usable_host_bytes)} may be used here{beside}"
        if self.device_bytes:
            usable = f"{format_bytes(self.usable_device_bytes)} of devices and {usable}"
        short = f", {format_bytes(self.short_bytes)} short" if self.short_bytes else ""
        size = self.host_bytes + self.device_bytes
        need = format_bytes(size)
        if size > figure.total_bytes * replicas and figure.source != "catalog":
            need += f" with a margin of {self.safety_margin:.0%}"
        return f"{facts.model}:{facts.variant} needs {need}{each}, {figure.words}; {usable}{short}"

    def remedy(self) -> str:
        """The mildest change of the deployment that fits, by itself."""
        launch = _launch(self.deployment, on_device=self.device_bytes > 0)
        for words, smaller in smaller_launches(launch) if self.figure.source == "estimate" else ():
            figure = figure_of(smaller, shape=self.shape, catalog_bytes=0)
            on_host, on_device = _with_margin(figure, self.deployment, self.safety_margin)
            if on_host <= self.usable_host_bytes and on_device <= self.usable_device_bytes:
                return f"set {words}, or choose {_OTHER_HOST}"
        if self.deployment.model.replicas > 1:
            return f"set fewer replicas, or choose {_OTHER_HOST}"
        if self.figure.source == "declared":
            return f"correct memory, or choose {_OTHER_HOST}"
        return f"choose {_OTHER_HOST}; if you know better, say memory: with what a replica needs"


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """All of one host."""

    host: str
    deployments: tuple[DeploymentNeed, ...]
    usable_host_bytes: int
    usable_device_bytes: int

    @property
    def warm(self) -> tuple[DeploymentNeed, ...]:
        return tuple(need for need in self.deployments if need.deployment.model.warm)

    @property
    def host_bytes(self) -> int:
        return sum(need.host_bytes for need in self.deployments)

    @property
    def warm_host_bytes(self) -> int:
        return sum(need.host_bytes for need in self.warm)

    @property
    def warm_device_bytes(self) -> int:
        return sum(need.device_bytes for need in self.warm)

    @property
    def short_bytes(self) -> int:
        """What is lacking for all that stays loaded, or for one of the others beside it."""
        return max(
            0,
            self.warm_host_bytes - self.usable_host_bytes,
            self.warm_device_bytes - self.usable_device_bytes,
            *(need.short_bytes for need in self.deployments),
        )

    @property
    def said(self) -> str:
        short = f", {format_bytes(self.short_bytes)} short" if self.short_bytes else ""
        on_devices = (
            f" and {format_bytes(self.warm_device_bytes)} of {format_bytes(self.usable_device_bytes)} on devices"
            if self.warm_device_bytes
            else ""
        )
        warm, others = len(self.warm), len(self.deployments) - len(self.warm)
        turns = f", in turns with {others} on demand" if others else ""
        return (
            f"{plural(warm, 'warm deployment')} at once {'needs' if warm == 1 else 'need'} "
            f"{format_bytes(self.warm_host_bytes)}{on_devices}; {format_bytes(self.usable_host_bytes)} may be used here{turns}{short}"
        )

    def of(self, deployment: str) -> DeploymentNeed | None:
        return next((need for need in self.deployments if need.deployment.id == deployment), None)


def needs_of(host: CompiledHost, snapshot: NodeSnapshot) -> HostNeeds:
    """By what the catalog recorded, what lies in the host's cache, and what was seen there."""
    shapes = {one.artifact: one.shape for one in snapshot.artifacts if one.shape is not None}
    observed = {one.key: one.observed_bytes for one in snapshot.memory}
    usable, devices = usable_bytes(snapshot), usable_device_bytes(snapshot.host.gpus)
    margin = host.model_host.safety_margin
    found = []
    for deployment in host.deployments.values():
        launch = _launch(deployment, on_device=_on_device(deployment, snapshot.host))
        shape = _shape(deployment, shapes)
        figure = figure_of(
            launch,
            shape=shape,
            catalog_bytes=deployment.artifact.min_memory_bytes,
            declared_bytes=byte_size(deployment.model.memory) if deployment.model.memory is not None else None,
            observed_bytes=observed.get(_key(deployment, launch, snapshot)),
        )
        on_host, on_device = _with_margin(figure, deployment, margin)
        found.append(DeploymentNeed(deployment, figure, on_host, on_device, usable, devices, shape, margin))
    return _beside_warm(HostNeeds(host.name, tuple(found), usable, devices))


def model_fit(found: Resolution, host: CompiledHost | None, snapshot: NodeSnapshot | None) -> ModelFit:
    """As its deployment on this host asks for it; without one, one request at a time with the whole context that the model has.

    By the header in the machine's cache, else the catalog's, else the catalog's figure, which knows nothing of context.
    """
    if snapshot is None or not snapshot.host.memory_total_bytes:
        return ModelFit("unknown")
    artifact = found.facts.artifact
    asked = () if host is None else needs_of(host, snapshot).deployments
    needs = [need for need in asked if need.deployment.artifact.artifact == artifact]
    if needs:
        worst = max(needs, key=lambda need: (need.short_bytes, need.host_bytes + need.device_bytes))
        size = worst.host_bytes + worst.device_bytes
        return ModelFit("too-large" if worst.short_bytes else "fits", size, worst.figure.source)
    cached = {one.artifact: one.shape for one in snapshot.artifacts if one.shape is not None}
    shape = cached.get(artifact, found.variant.shape)
    if shape is None and not found.facts.min_memory_bytes:
        return ModelFit("unknown")
    usable, margin = usable_bytes(snapshot), _MARGIN if host is None else host.model_host.safety_margin

    def needed(launch: ReplicaLaunch) -> tuple[int, str]:
        figure = figure_of(launch, shape=shape, catalog_bytes=found.facts.min_memory_bytes)
        return planned_bytes(figure, adapter_bytes=0, safety_margin=margin)[0], figure.source

    launch = ReplicaLaunch(found.facts.context_length, mode=_MODES.get(found.entry.model.modality, "chat"))
    size, source = needed(launch)
    if size <= usable or source == "catalog":
        # What the catalog says is of devices too: the largest one may hold it.
        devices = [gpu.get("memory_total_bytes") for gpu in snapshot.host.gpus] if source == "catalog" else []
        largest = max([usable, *(size for size in devices if isinstance(size, int))])
        return ModelFit("fits" if size <= largest else "too-large", size, source)
    smaller = next((words for words, less in smaller_launches(launch) if needed(less)[0] <= usable), "")
    return ModelFit("fits-smaller" if smaller else "too-large", size, source, smaller)


def _beside_warm(needs: HostNeeds) -> HostNeeds:
    on_host = max(0, needs.usable_host_bytes - needs.warm_host_bytes)
    on_device = max(0, needs.usable_device_bytes - needs.warm_device_bytes)
    if not needs.warm:
        return needs
    told = (
        need
        if need.deployment.model.warm
        else replace(need, usable_host_bytes=on_host, usable_device_bytes=on_device, has_warm_neighbours=True)
        for need in needs.deployments
    )
    return replace(needs, deployments=tuple(told))


def _shape(deployment: CompiledDeployment, cached: Mapping[str, ModelShape]) -> ModelShape | None:
    """Of the very bytes before what a catalog wrote of them."""
    return cached.get(deployment.artifact.artifact, deployment.shape)


def _on_device(deployment: CompiledDeployment, facts: HostFacts) -> bool:
    """For a build that is made for devices."""
    policy = deployment.engine_policy
    built_for_one = policy.launch == "binary" and policy.acceleration in ("cuda", "vulkan")
    return built_for_one and usable_device_bytes(facts.gpus) > 0


def _launch(deployment: CompiledDeployment, *, on_device: bool) -> ReplicaLaunch:
    return ReplicaLaunch(
        context_length=deployment.context_length,
        slots=deployment.max_concurrency,
        kv_quant=deployment.model.kv_quant,
        mode=deployment.mode,
        extra_args=tuple(deployment.model.extra_args),
        launch=deployment.engine_policy.launch,
        adapters=tuple(adapter.artifact.artifact for adapter in deployment.adapters),
        on_device=on_device,
    )


def _key(deployment: CompiledDeployment, launch: ReplicaLaunch, snapshot: NodeSnapshot) -> str:
    policy = deployment.engine_policy
    version = policy.version
    if version is None:
        found = (
            one.version for one in snapshot.engines if one.engine == deployment.engine and one.launch == policy.launch
        )
        version = next(found, "")
    return memory_key(deployment.artifact.artifact, deployment.engine, version, launch)


def _with_margin(figure: Figure, deployment: CompiledDeployment, margin: float) -> tuple[int, int]:
    """Of all replicas, on the host and on devices. Adapters weigh what their files do."""
    replicas = deployment.model.replicas
    adapters = sum(adapter.artifact.total_bytes for adapter in deployment.adapters)
    on_host, on_device = planned_bytes(figure, adapter_bytes=adapters, safety_margin=margin)
    return on_host * replicas, on_device * replicas


def need_body(need: DeploymentNeed) -> dict[str, Any]:
    """For JSON."""
    figure = need.figure
    return {
        "source": figure.source,
        "certainty": figure.certainty,
        "replica_bytes": figure.total_bytes,
        "host_bytes": need.host_bytes,
        "device_bytes": need.device_bytes,
        "short_bytes": need.short_bytes,
        "parts": dict(figure.parts()),
        "reason": figure.reason,
    }
