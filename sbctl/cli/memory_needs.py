"""What each host's deployments need of its memory and devices, against what there is: rules over what sb.yml asks and hosts told, pure.

A figure of an estimate or of an observation gets the safety margin of the model host on top; one that the operator wrote, and the catalog's,
stand as they are. Deployments that compute on the processor share the host's memory; so do the host's parts of those on devices. What lies on
devices must fit on each of them (`device_layout`), not on all of them together.

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
from sbctl.cli.device_layout import DeviceWish, Layout, devices_of, lay_out
from sbctl.config.compiled import CompiledDeployment, CompiledHost
from sbctl.engines.memory import (
    Figure,
    ReplicaLaunch,
    figure_of,
    memory_key,
    planned_bytes,
    smaller_launches,
    usable_host_bytes,
)
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.placement.model import Device
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
    """One deployment on one host. `figure` is of one replica; the others are of all, with the margin. `layout`: on which devices it lies; None: on none.

    What is usable for one that is loaded on demand is what its warm neighbours leave: of devices `beside` says what those ask. A warm one is looked at
    alone, but lies where it does together with the others if all of them fit.
    """

    deployment: CompiledDeployment
    figure: Figure
    host_bytes: int
    usable_host_bytes: int
    devices: tuple[Device, ...]
    shape: ModelShape | None
    safety_margin: float
    layout: Layout | None = None
    beside: tuple[DeviceWish, ...] = ()
    has_warm_neighbours: bool = False

    @property
    def device_bytes(self) -> int:
        return 0 if self.layout is None else self.layout.total_bytes

    @property
    def short_bytes(self) -> int:
        """What is lacking when it is alone here; 0: it fits."""
        short_on_devices = 0 if self.layout is None else self.layout.short_bytes
        return max(0, self.host_bytes - self.usable_host_bytes, short_on_devices)

    @property
    def said(self) -> str:
        facts, figure, replicas = self.deployment.artifact, self.figure, self.deployment.model.replicas
        each = f" ({format_bytes(figure.total_bytes)} a replica)" if replicas > 1 else ""
        beside = " beside what is warm" if self.has_warm_neighbours else ""
        usable = f"{format_bytes(self.usable_host_bytes)} may be used here{beside}"
        if self.layout is not None:
            usable = f"{self.layout.said}; {format_bytes(self.usable_host_bytes)} of memory may be used here{beside}"
        short = f", {format_bytes(self.short_bytes)} short" if self.short_bytes else ""
        size = self.host_bytes + self.device_bytes
        need = format_bytes(size)
        if size > figure.total_bytes * replicas and figure.source != "catalog":
            need += f" with a margin of {self.safety_margin:.0%}"
        return f"{facts.model}:{facts.variant} needs {need}{each}, {figure.words}; {usable}{short}"

    def remedy(self) -> str:
        """The mildest change of the deployment that fits, by itself."""
        launch = _launch(self.deployment, on_device=self.layout is not None)
        for words, smaller in smaller_launches(launch) if self.figure.source == "estimate" else ():
            figure = figure_of(smaller, shape=self.shape, catalog_bytes=0)
            if self._holds(figure):
                return f"set {words}, or choose {_OTHER_HOST}"
        if self.layout is not None and self.layout.free_bytes is None:
            return f"set a tensor_parallel that the host has devices of one size for, or choose {_OTHER_HOST}"
        if self.deployment.model.replicas > 1:
            return f"set fewer replicas, or choose {_OTHER_HOST}"
        if self.figure.source == "declared":
            return f"correct memory, or choose {_OTHER_HOST}"
        return f"choose {_OTHER_HOST}; if you know better, say memory: with what a replica needs"

    def _holds(self, figure: Figure) -> bool:
        """Whether replicas of that figure would fit where this one does not."""
        if _host_bytes(figure, self.deployment, self.safety_margin) > self.usable_host_bytes:
            return False
        if self.layout is None:
            return True
        wish = _wish(self.deployment, figure, self.devices, self.safety_margin)
        return not lay_out(self.devices, (*self.beside, wish))[wish.name].unplaced


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """All of one host."""

    host: str
    deployments: tuple[DeploymentNeed, ...]
    usable_host_bytes: int
    usable_device_bytes: int = 0
    short_on_devices: int = 0
    """Of all that is warm, together."""

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
            self.short_on_devices,
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
    usable, devices = usable_bytes(snapshot), devices_of(snapshot.host.gpus)
    margin = host.model_host.safety_margin
    found = []
    for deployment in host.deployments.values():
        launch = _launch(deployment, on_device=_on_device(deployment, snapshot.host, devices))
        shape = _shape(deployment, shapes)
        figure = figure_of(
            launch,
            shape=shape,
            catalog_bytes=deployment.artifact.min_memory_bytes,
            declared_bytes=byte_size(deployment.model.memory) if deployment.model.memory is not None else None,
            observed_bytes=observed.get(_key(deployment, launch, snapshot)),
        )
        on_host = _host_bytes(figure, deployment, margin)
        found.append(DeploymentNeed(deployment, figure, on_host, usable, devices, shape, margin))
    return _on_devices(_beside_warm(HostNeeds(host.name, tuple(found), usable)), devices)


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
    if not needs.warm:
        return needs
    told = (
        need if need.deployment.model.warm else replace(need, usable_host_bytes=on_host, has_warm_neighbours=True)
        for need in needs.deployments
    )
    return replace(needs, deployments=tuple(told))


def _on_devices(needs: HostNeeds, devices: tuple[Device, ...]) -> HostNeeds:
    """With the places of those whose engines compute on devices."""
    wishes = {
        need.deployment.id: _wish(need.deployment, need.figure, devices, need.safety_margin)
        for need in needs.deployments
        if need.figure.device_bytes
    }
    together = lay_out(devices, wishes.values())
    warm = tuple(wish for wish in wishes.values() if wish.is_warm)
    all_fit = not any(together[wish.name].unplaced for wish in warm)
    told = []
    for need in needs.deployments:
        wish = wishes.get(need.deployment.id)
        if wish is None:
            told.append(need)
        elif wish.is_warm and not all_fit:
            told.append(replace(need, layout=lay_out(devices, (wish,))[wish.name]))
        else:
            beside = () if wish.is_warm else warm
            told.append(replace(need, layout=together[wish.name], beside=beside))
    return replace(
        needs,
        deployments=tuple(told),
        usable_device_bytes=sum(device.total_bytes for device in devices),
        short_on_devices=sum(together[wish.name].short_bytes for wish in warm),
    )


def _wish(
    deployment: CompiledDeployment, figure: Figure, devices: tuple[Device, ...], safety_margin: float
) -> DeviceWish:
    return DeviceWish.of(
        deployment.id,
        figure,
        devices=len(devices),
        adapter_bytes=_adapter_bytes(deployment),
        safety_margin=safety_margin,
        replicas=deployment.model.replicas,
        is_warm=deployment.model.warm,
        span=deployment.model.tensor_parallel,
        takes_all=deployment.engine_policy.acceleration == "vulkan",
    )


def _shape(deployment: CompiledDeployment, cached: Mapping[str, ModelShape]) -> ModelShape | None:
    """Of the very bytes before what a catalog wrote of them."""
    return cached.get(deployment.artifact.artifact, deployment.shape)


def _on_device(deployment: CompiledDeployment, facts: HostFacts, devices: tuple[Device, ...]) -> bool:
    """For a build that is made for devices. Without any it computes on the processor, unless it is to lie on several, or those that there are are
    withheld: then the runtime refuses it."""
    policy = deployment.engine_policy
    built_for_them = policy.launch == "binary" and policy.acceleration in ("cuda", "vulkan")
    are_withheld = any(gpu.get("withheld") for gpu in facts.gpus)
    return built_for_them and (bool(devices) or are_withheld or (deployment.model.tensor_parallel or 1) > 1)


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


def _host_bytes(figure: Figure, deployment: CompiledDeployment, margin: float) -> int:
    """Of all replicas, with the margin. Adapters weigh what their files do."""
    on_host, _ = planned_bytes(figure, adapter_bytes=_adapter_bytes(deployment), safety_margin=margin)
    return on_host * deployment.model.replicas


def _adapter_bytes(deployment: CompiledDeployment) -> int:
    return sum(adapter.artifact.total_bytes for adapter in deployment.adapters)


def need_body(need: DeploymentNeed) -> dict[str, Any]:
    """For JSON."""
    figure = need.figure
    return {
        "source": figure.source,
        "certainty": figure.certainty,
        "replica_bytes": figure.total_bytes,
        "host_bytes": need.host_bytes,
        "device_bytes": need.device_bytes,
        "devices": [] if need.layout is None else [list(numbers) for numbers in need.layout.replicas],
        "share_bytes": 0 if need.layout is None else need.layout.share_bytes,
        "short_bytes": need.short_bytes,
        "parts": dict(figure.parts()),
        "reason": figure.reason,
    }
