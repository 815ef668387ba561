"""What this host calls its devices, and which of them engines get.

Each device has a number that it keeps as long as this host's state does: a driver numbers anew when a device is gone, and a number in an
assignment must not come to mean another device. Withheld is what the operator excluded, what is gone, and what its driver says needs help.

<state>/devices.json     the numbers, by the devices' ids
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base import fs, strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, SbctlError
from sbctl.node.devices import nvidia_devices
from sbctl.runtime.log import get_log

__all__ = ["WITHHELD", "HostDevice", "HostDevices", "named_gpus"]

_FILE: Final = "devices.json"
_MAX_BYTES: Final = 64 * 1024
_NUMBER_MOST: Final = 4095

WITHHELD: Final[Mapping[str, str]] = {
    "excluded_by_operator": "sb.yml excludes it (proxy.model_host.excluded_devices)",
    "gone": "its driver does not see it any more",
    "no_identity": "it does not tell its id",
    "rows_not_remapped": "it has memory errors that it cannot work around",
    "needs_reset": "its driver says that it needs a reset",
    "needs_reboot": "its driver says that the machine needs a restart",
}
"""Reason codes, and the words for them."""

Gpu = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class HostDevice:
    """`gpu`: as `node.devices` tells of it. `withheld`: a code of `WITHHELD`; empty: engines may lie on it."""

    number: int
    gpu: Gpu
    withheld: str = ""

    @property
    def device_id(self) -> str:
        return str(self.gpu.get("uuid", ""))


@dataclass(frozen=True, slots=True)
class HostDevices:
    """All that this host has, by number. `numbers`: by id, also of devices that it had once."""

    numbers: Mapping[str, int]
    devices: tuple[HostDevice, ...] = ()
    excluded: frozenset[str] = frozenset()

    @classmethod
    def found(cls, state: Path, gpus: Collection[Gpu], excluded: Iterable[str] = ()) -> HostDevices:
        """With numbers for what is new, which are kept. `excluded`: ids or numbers. A disk that does not take them is told in the log."""
        known = _read_numbers(state)
        numbers = _with_new(known, gpus)
        if numbers != known:
            try:
                fs.write_atomic(state / _FILE, canonical_json({"schema_version": 1, "numbers": numbers}))
            except SbctlError as error:
                get_log("devices").warning("numbers of devices not kept", code=error.code, reason=error.message)
        return cls(numbers, excluded=frozenset(excluded)).seen(gpus)

    def seen(self, gpus: Collection[Gpu]) -> HostDevices:
        """The same host as its driver sees it now. What is not seen any more is gone; what came since waits for the next start."""
        now = {str(gpu["uuid"]): gpu for gpu in gpus if gpu.get("uuid")}
        lost = [one for one in self.devices if one.device_id and one.device_id not in now]
        there = [
            HostDevice(self.numbers[device_id], gpu, self._why_withheld(gpu))
            for device_id, gpu in now.items()
            if device_id in self.numbers
        ]
        there += [HostDevice(one.number, one.gpu, "gone") for one in lost]
        unnamed = itertools.count(_NUMBER_MOST, -1)
        there += [HostDevice(next(unnamed), gpu, "no_identity") for gpu in gpus if not gpu.get("uuid")]
        return HostDevices(self.numbers, tuple(sorted(there, key=lambda one: one.number)), self.excluded)

    def look(self) -> HostDevices:
        """Ask the driver. Where it says nothing at all (it is being replaced, perhaps) nothing is taken back. Blocks."""
        if not self.devices:
            return self
        told = nvidia_devices()
        return self if told.problem is not None else self.seen(told.gpus)

    @property
    def usable(self) -> tuple[Gpu, ...]:
        return tuple(one.gpu for one in self.devices if not one.withheld)

    def by_number(self) -> Mapping[int, HostDevice]:
        return {one.number: one for one in self.devices}

    def _why_withheld(self, gpu: Gpu) -> str:
        device_id = str(gpu["uuid"])
        if device_id in self.excluded or str(self.numbers[device_id]) in self.excluded:
            return "excluded_by_operator"
        fault = str(gpu.get("fault", ""))
        return fault if fault in WITHHELD else ""


def named_gpus(state: Path, gpus: Collection[Gpu], excluded: Iterable[str]) -> tuple[dict[str, str | int], ...]:
    """The same with `number` and, where engines get nothing of it, `withheld`; for who asks beside the runtime. Writes nothing."""
    numbers = _read_numbers(state)
    found = HostDevices(_with_new(numbers, gpus), excluded=frozenset(excluded)).seen(gpus)
    return tuple(
        {**one.gpu, "number": one.number, **({"withheld": one.withheld} if one.withheld else {})}
        for one in found.devices
    )


def _with_new(known: Mapping[str, int], gpus: Iterable[Gpu]) -> dict[str, int]:
    used = set(known.values())
    free = (number for number in itertools.count() if number not in used)
    numbers = dict(known)
    for gpu in gpus:
        if (device_id := str(gpu.get("uuid", ""))) and device_id not in numbers:
            numbers[device_id] = next(free)
    return numbers


def _read_numbers(state: Path) -> dict[str, int]:
    """By id; nothing where there are none, or a file that is none."""
    try:
        document = strict_json.loads(fs.read_bounded(state / _FILE, max_bytes=_MAX_BYTES), max_bytes=_MAX_BYTES)
    except InputError:
        return {}
    told = document.get("numbers") if isinstance(document, dict) else None
    numbers = told if isinstance(told, dict) else {}
    sound = all(type(number) is int and 0 <= number <= _NUMBER_MOST for number in numbers.values())
    return dict(numbers) if sound and len(set(numbers.values())) == len(numbers) else {}
