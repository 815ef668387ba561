"""The room that one replica needs on this node, by the same rules as a plan's: declared, seen here before, or computed from its header."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.engines.memory import (
    Figure,
    ReplicaLaunch,
    ceiling_bytes,
    figure_of,
    memory_key,
    planned_bytes,
    planned_shares,
    usable_by_device,
    usable_host_bytes,
)
from sbctl.runtime.room import Basis, Budget, Room
from sbctl.trust.bundle import DeploymentMember

__all__ = ["budget_of", "kind_of_process", "room_of"]


def budget_of(
    total_bytes: int, limit_bytes: int | None, gpus: Iterable[Mapping[str, object]], max_engines: int | None
) -> Budget:
    """Of a machine that tells its memory; one that does not has no bound of bytes."""
    host = usable_host_bytes(total_bytes, limit_bytes) if total_bytes else None
    return Budget(host, usable_by_device(gpus), max_engines)


def _launch_of(member: DeploymentMember, *, on_device: bool) -> ReplicaLaunch:
    return ReplicaLaunch(
        context_length=member.context_length,
        slots=member.max_concurrency,
        kv_quant=member.kv_quant,
        mode=member.mode,
        extra_args=tuple(member.extra_args),
        launch=member.engine.launch,
        adapters=tuple(adapter.artifact.artifact for adapter in member.adapters),
        on_device=on_device,
    )


def kind_of_process(member: DeploymentMember, version: str) -> str:
    """As `engines.memory.memory_key`, of an engine on the processor."""
    launch = _launch_of(member, on_device=False)
    return memory_key(member.artifact.artifact, member.engine.engine, version, launch)


def room_of(
    member: DeploymentMember,
    version: str,
    *,
    shape: ModelShape | None,
    observed: Mapping[str, int],
    devices: Collection[str],
    safety_margin: float,
    machine_bytes: int = 0,
) -> Room:
    """`version` is of the build that will run, `shape` of the weights on this disk. Without a header the files themselves are counted.

    `devices` are all that there are; a Vulkan build, which cannot be told to take one, lies on each of them.
    """
    policy = member.engine
    on_device = bool(devices) and policy.computes_on_devices
    facts: dict[str, Any] = {
        "shape": shape,
        "catalog_bytes": max(member.artifact.min_memory_bytes, member.artifact.total_bytes),
        "declared_bytes": member.memory_bytes,
    }
    launch = _launch_of(member, on_device=on_device)
    adapters = sum(adapter.artifact.total_bytes for adapter in member.adapters)

    def planned(figure: Figure) -> tuple[int, int]:
        return planned_bytes(figure, adapter_bytes=adapters, safety_margin=safety_margin)

    figure = figure_of(launch, observed_bytes=observed.get(kind_of_process(member, version)), **facts)
    on_host, on_devices = planned(figure)
    # What was seen would raise the ceiling of an engine that leaks, each time a little.
    expected = figure_of(launch, **facts)
    room = Room(
        on_host,
        on_devices,
        ceiling_bytes=ceiling_bytes(expected, planned(expected)[0], machine_bytes),
        basis=_basis(figure, on_host + on_devices, adapters),
        shares=planned_shares(figure, adapter_bytes=adapters, safety_margin=safety_margin, most=len(devices))
        if on_device
        else (),
        span=member.tensor_parallel if on_device else None,
    )
    return room.on(devices) if policy.acceleration == "vulkan" else room


def _basis(figure: Figure, planned: int, adapters: int) -> Basis:
    need = figure.need
    if need is None:
        return Basis(figure.source, figure.certainty, None, None, None, planned - figure.total_bytes)
    weights = need.weights + need.device_weights + adapters
    context = need.context + need.device_context + need.checkpoints
    margin = planned - figure.total_bytes - adapters
    return Basis(
        figure.source, figure.certainty, weights, context, figure.total_bytes + adapters - weights - context, margin
    )
