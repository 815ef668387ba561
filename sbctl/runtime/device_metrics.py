"""Devices as the driver tells them, looked at beside the scrapes, since a driver may take its time. What it does not tell has no line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sbctl.node.devices import nvidia_devices

__all__ = ["DeviceMetrics"]

_PREFIX: Final = "sbproxy_model_host_gpu_"
_LOOK_S: Final = 15.0
_DEVICES_MAX: Final = 64

Gpu = Mapping[str, str | int]


def _told() -> tuple[Gpu, ...]:
    return nvidia_devices().gpus


class DeviceMetrics(Collector):
    """`device` is the driver's number of it. `look` may block."""

    def __init__(self, look: Callable[[], tuple[Gpu, ...]] = _told) -> None:
        self._look = look
        self._gpus: tuple[Gpu, ...] = ()

    async def watch(self) -> None:
        """Look again and again, until cancelled; returns at once on a machine that has none."""
        while True:
            self._gpus = (await asyncio.to_thread(self._look))[:_DEVICES_MAX]
            if not self._gpus:
                return
            await asyncio.sleep(_LOOK_S)

    def collect(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(_PREFIX + "vram_bytes", "Memory of a device.", labels=["device", "kind"])
        occupied = GaugeMetricFamily(
            _PREFIX + "memory_occupancy", "Part of a device's memory that is taken, from 0 to 1.", labels=["device"]
        )
        busy = GaugeMetricFamily(
            _PREFIX + "utilization", "Part of the time in which a device worked, from 0 to 1.", labels=["device"]
        )
        for gpu in self._gpus:
            name = str(gpu.get("index", ""))
            total, free, percent = (
                gpu.get(field) for field in ("memory_total_bytes", "memory_free_bytes", "utilization_percent")
            )
            if isinstance(total, int):
                memory.add_metric([name, "total"], total)
            if isinstance(free, int):
                memory.add_metric([name, "free"], free)
            if isinstance(total, int) and isinstance(free, int) and total > 0:
                occupied.add_metric([name], (total - free) / total)
            if isinstance(percent, int):
                busy.add_metric([name], percent / 100)
        yield from (family for family in (memory, occupied, busy) if family.samples)
