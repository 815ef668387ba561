"""What one replica needs, and how that is known: said by the operator, seen before, computed from the header of its weights, or listed.

declared   `memory` of the deployment: the operator knows better
observed   the most that a process of the very artifact, engine build and flags had on a device of this kind
estimate   `fit.need_of` over the header's facts
catalog    the least memory that the catalog lists, which knows nothing of context, slots or types
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from sbctl.artifacts.formats.shape import Certainty, ModelShape
from sbctl.base.digests import fingerprint
from sbctl.base.display import format_bytes
from sbctl.base.errors import EngineError
from sbctl.base.limits import GIB, MIB
from sbctl.engines.fit import CONTEXT_CHECKPOINTS, LaunchShape, MemoryNeed, need_of, with_margin
from sbctl.engines.flag_tables import kv_cache_type
from sbctl.engines.flags import parse_extra_args

__all__ = [
    "CPU",
    "Figure",
    "ReplicaLaunch",
    "Source",
    "ceiling_bytes",
    "figure_of",
    "memory_key",
    "planned_bytes",
    "planned_shares",
    "smaller_launches",
    "usable_by_device",
    "usable_device_bytes",
    "usable_host_bytes",
]

CPU: Final = "cpu"
"""The device of an engine that computes on the processor."""

Source = Literal["declared", "observed", "estimate", "catalog"]
_UBATCH: Final = 512
_CPU_MEMORY_FRACTION: Final = 0.7
"""Of a machine's memory, what models may take."""
_DEVICE_MEMORY_FRACTION: Final = 0.9
_CEILING: Final = 1.25
"""Of what was planned: what an engine may come to have before it is taken to leak."""
_CEILING_LEAST_SLACK: Final = 512 * MIB
_CEILING_DEVICE_SLACK: Final = 4 * GIB
"""A driver of devices has memory of the host that no header tells of."""
_CEILING_OF_MACHINE: Final = 0.9
_ALL_LAYERS: Final = 1 << 20
_LEAST_CONTEXT: Final = 512


@dataclass(frozen=True, slots=True)
class ReplicaLaunch:
    """What of a deployment decides about the memory of one replica. `on_device`: its engine holds all layers on a GPU."""

    context_length: int
    slots: int = 1
    kv_quant: str = "auto"
    mode: str = "chat"
    extra_args: tuple[str, ...] = ()
    launch: str = "wheel"
    adapters: tuple[str, ...] = ()
    """Digests of the adapters that are loaded with the model."""
    on_device: bool = False

    def shape(self) -> LaunchShape:
        """As the llama.cpp driver starts it. A text for vectors or scores is computed in one piece; of a program whose build nobody pinned,
        the logits of a whole batch are counted, as older ones reserve them.
        """
        kind = kv_cache_type(self.kv_quant) or "f16"
        ubatch = self._ubatch()
        return LaunchShape(
            context_length=self.context_length,
            slots=self.slots,
            key_type=kind,
            value_type=kind,
            ubatch=ubatch,
            device_layers=_ALL_LAYERS if self.on_device else 0,
            checkpoints=CONTEXT_CHECKPOINTS,
            logit_rows=None if self.launch == "wheel" else ubatch,
        )

    def _ubatch(self) -> int:
        try:
            extra = {flag.flag: flag.value for flag in parse_extra_args("llama_cpp", self.extra_args)}
        except EngineError:
            extra = {}
        given = extra.get("--ubatch-size")
        return int(given) if given is not None else self.context_length if self.mode != "chat" else _UBATCH


@dataclass(frozen=True, slots=True)
class Figure:
    """Memory of one replica: of the host, and of devices where its engine uses one."""

    host_bytes: int
    device_bytes: int
    source: Source
    certainty: Certainty
    need: MemoryNeed | None = None
    reason: str = ""

    @property
    def total_bytes(self) -> int:
        return self.host_bytes + self.device_bytes

    @property
    def words(self) -> str:
        """How it is known, for a reader: `at most: weights 4.4 GiB, context 576.0 MiB, …`."""
        match self.source:
            case "declared":
                return "as sb.yml says"
            case "observed":
                return "as it was seen here"
            case "catalog":
                return "the catalog's figure, which knows nothing of context or requests"
            case _:
                parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.parts().items())
                return f"{'at most' if self.certainty != 'unknown' else 'not sure'}: {parts}"

    def parts(self) -> Mapping[str, int]:
        """Of an estimate, by name; nothing of any other."""
        need = self.need
        if need is None:
            return {}
        found = {
            "weights": need.weights + need.device_weights,
            "context": need.context + need.device_context,
            "compute": need.compute + need.device_compute,
            "process": need.process,
            "checkpoints": need.checkpoints,
        }
        return {name: size for name, size in found.items() if size}


def figure_of(
    launch: ReplicaLaunch,
    *,
    shape: ModelShape | None,
    catalog_bytes: int,
    declared_bytes: int | None = None,
    observed_bytes: int | None = None,
) -> Figure:
    """The best that is known. An observed figure is of host memory, so it does not count where a device holds the model."""
    if declared_bytes is not None:
        on_host, on_device = (0, declared_bytes) if launch.on_device else (declared_bytes, 0)
        return Figure(on_host, on_device, "declared", "exact")
    if observed_bytes is not None and not launch.on_device:
        return Figure(observed_bytes, 0, "observed", "exact")
    if shape is not None:
        need = need_of(shape, launch.shape())
        return Figure(need.host_bytes, need.device_bytes, "estimate", need.certainty, need, need.reason)
    on_host, on_device = (0, catalog_bytes) if launch.on_device else (catalog_bytes, 0)
    return Figure(on_host, on_device, "catalog", "unknown", reason="the header of its weights is not known")


def planned_bytes(figure: Figure, *, adapter_bytes: int, safety_margin: float) -> tuple[int, int]:
    """What is set aside for one replica, on the host and on devices: an estimate with its adapters' files, which it does not know, and what is
    not said by somebody with the margin on top.
    """
    on_host, on_device = figure.host_bytes, figure.device_bytes
    if figure.source == "estimate":
        on_host, on_device = (on_host, on_device + adapter_bytes) if on_device else (on_host + adapter_bytes, on_device)
    if figure.source in ("estimate", "observed"):
        on_host, on_device = with_margin(on_host, safety_margin), with_margin(on_device, safety_margin)
    return on_host, on_device


def planned_shares(figure: Figure, *, adapter_bytes: int, safety_margin: float, most: int) -> tuple[int, ...]:
    """What is set aside on each device of a replica that lies on one, on two, and so on up to `most`. Of a figure without parts, equal parts."""
    on_device = planned_bytes(figure, adapter_bytes=adapter_bytes, safety_margin=safety_margin)[1]
    need = figure.need
    if need is None:
        return tuple(-(-on_device // count) for count in range(1, most + 1))
    parts = (need.largest_part(count) + -(-adapter_bytes // count) for count in range(2, most + 1))
    return (on_device, *(with_margin(part, safety_margin) for part in parts)) if most else ()


def ceiling_bytes(figure: Figure, planned_host_bytes: int, machine_bytes: int) -> int | None:
    """Of the host's memory, what one engine may have before the kernel ends it, and it alone. A figure that is not sure bounds nothing but
    the machine. None where the machine's memory is not known.
    """
    if machine_bytes <= 0:
        return None
    most = int(machine_bytes * _CEILING_OF_MACHINE)
    if figure.certainty == "unknown":
        return most
    slack = _CEILING_DEVICE_SLACK if figure.device_bytes else _CEILING_LEAST_SLACK
    return min(most, max(int(planned_host_bytes * _CEILING), planned_host_bytes + slack))


def usable_host_bytes(total_bytes: int, limit_bytes: int | None) -> int:
    """Of a machine's memory, or of what its control group leaves of it, what models may take."""
    return int((total_bytes if limit_bytes is None else min(limit_bytes, total_bytes)) * _CPU_MEMORY_FRACTION)


def usable_device_bytes(gpus: Iterable[Mapping[str, object]]) -> int:
    """Of all devices together that engines get, as `HostFacts.gpus` tells of them."""
    told = (gpu.get("memory_total_bytes") for gpu in gpus if not gpu.get("withheld"))
    return sum(int(size * _DEVICE_MEMORY_FRACTION) for size in told if isinstance(size, int))


def usable_by_device(gpus: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """The same, of each device that has an id."""
    told = ((gpu.get("uuid"), usable_device_bytes((gpu,))) for gpu in gpus)
    return {name: size for name, size in told if isinstance(name, str) and size}


def memory_key(artifact: str, engine: str, version: str, launch: ReplicaLaunch, device: str = CPU) -> str:
    """64 hex characters; equal exactly for processes that take the same memory."""
    return fingerprint(
        {
            "artifact": artifact,
            "engine": [engine, launch.launch, version],
            "flags": [launch.context_length, launch.slots, launch.kv_quant, launch.mode, list(launch.extra_args)],
            "adapters": sorted(launch.adapters),
            "device": device,
        }
    )


def smaller_launches(launch: ReplicaLaunch) -> Iterable[tuple[str, ReplicaLaunch]]:
    """Ways to need less, mildest first, each with the words for sb.yml: a quantised cache, half the context and less, fewer at once."""
    if launch.kv_quant in ("auto", "f16"):
        yield "kv_quant: int8", replace(launch, kv_quant="int8")
    context = launch.context_length
    while context > _LEAST_CONTEXT:
        context //= 2
        yield f"max_context: {context}", replace(launch, context_length=context)
    for slots in _halves(launch.slots):
        yield f"max_concurrency: {slots}", replace(launch, slots=slots)
    if launch.slots > 1:
        yield (
            "max_concurrency: 1 and max_context: 2048",
            replace(launch, slots=1, context_length=min(2048, launch.context_length)),
        )


def _halves(count: int) -> Sequence[int]:
    found = []
    while count > 1:
        count //= 2
        found.append(count)
    return found
