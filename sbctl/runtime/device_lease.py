"""One engine starts or stops on a device at a time, and a stop is done when the device has its memory back.

An engine that starts measures how much of its device is free; a neighbour that starts or stops meanwhile makes that wrong. So a lease is held
from before the process exists until it is ready, and from the signal until its memory is seen again. The driver shows freed memory late
(about a second), hence the second look. What is not back by then is said, and the device is looked at again before the next start.

Each device has a key of its own: engines on different devices start and stop beside each other. Keys are taken in the order of their names,
so two that want several never wait for each other. An engine that may use every device takes all keys, and one more, which is the only one
where devices cannot be told apart. Engines on the CPU take none: they measure nothing, and their memory goes with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sbctl.base.display import format_bytes
from sbctl.engines.model import EVERY_DEVICE
from sbctl.node.devices import nvidia_devices
from sbctl.runtime.log import get_log

__all__ = ["DeviceLeases", "free_device_memory"]

_POLL_S: Final = 0.25
_BACK_WITHIN_S: Final = 15.0
_ENOUGH: Final = 0.75


def free_device_memory() -> Mapping[str, int]:
    """Bytes free, by device id; empty where no device can be asked."""
    found = {}
    for gpu in nvidia_devices().gpus:
        name, free = gpu.get("uuid"), gpu.get("memory_free_bytes")
        if isinstance(name, str) and isinstance(free, int):
            found[name] = free
    return found


class DeviceLeases:
    """Of one daemon."""

    def __init__(self, free_memory: Callable[[], Mapping[str, int]] = free_device_memory) -> None:
        self._free_memory = free_memory
        self._locks: dict[str, asyncio.Lock] = {}
        self._taken: dict[tuple[str, ...], Mapping[str, int]] = {}
        """What the engine on these devices was seen to take when it became ready."""
        self._log = get_log("devices")

    @asynccontextmanager
    async def starting(self, devices: Collection[str]) -> AsyncIterator[None]:
        """Held until the engine is ready or gone."""
        async with self._held(devices):
            before = await self._free(devices)
            yield
            after = await self._free(devices)
            self._taken[tuple(sorted(devices))] = {
                device: max(0, before[device] - after[device]) for device in before.keys() & after.keys()
            }

    @asynccontextmanager
    async def stopping(self, devices: Collection[str]) -> AsyncIterator[None]:
        """Held until the engine's memory is back, at most 15 s after its end."""
        async with self._held(devices):
            before = await self._free(devices)
            yield
            await self._memory_back(devices, before)

    @asynccontextmanager
    async def _held(self, devices: Collection[str]) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for device in sorted(await self._keys(devices)):
                await stack.enter_async_context(self._locks.setdefault(device, asyncio.Lock()))
            yield

    async def _keys(self, devices: Collection[str]) -> set[str]:
        every = await asyncio.to_thread(self._free_memory) if EVERY_DEVICE in devices else {}
        return {*devices, *every}

    async def _free(self, devices: Collection[str]) -> Mapping[str, int]:
        if not devices:
            return {}
        free = await asyncio.to_thread(self._free_memory)
        return free if EVERY_DEVICE in devices else {device: free[device] for device in devices if device in free}

    async def _memory_back(self, devices: Collection[str], before: Mapping[str, int]) -> None:
        taken = self._taken.pop(tuple(sorted(devices)), {})
        wanted = {device: before[device] + int(_ENOUGH * taken[device]) for device in before.keys() & taken.keys()}
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _BACK_WITHIN_S
        while wanted:
            free = await self._free(devices)
            short = {
                device: least - free.get(device, 0) for device, least in wanted.items() if free.get(device, 0) < least
            }
            if not short:
                return
            if loop.time() >= deadline_s:
                for device, missing in short.items():
                    self._log.warning("memory not back after a stop", device=device, missing=format_bytes(missing))
                return
            await asyncio.sleep(_POLL_S)
