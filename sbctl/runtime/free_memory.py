"""What of a machine is really free, right before an engine starts, whatever its budget says: other programs have memory too.

    free  −  what our own engines were promised and do not have yet  ≥  the need of the one that starts

The kernel calls memory available that holds pages of files, and so the weights that running engines have mapped: what an engine was promised
counts as taken even where the kernel would give it away. What an engine has that cannot be seen counts as all that it was promised. So an
estimate is never held against a machine twice, and a machine that does not tell refuses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbctl.base.display import display_safe, format_bytes
from sbctl.base.limits import MIB
from sbctl.node.devices import nvidia_devices
from sbctl.node.machine import memory_free
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.room import Room

__all__ = ["AGAIN_BYTES", "FreeMemory", "Promised", "free_memory", "lacking"]

AGAIN_BYTES: Final = 256 * MIB
"""More than its need must be free before a model starts that was refused for lack of it: what hovers about a need starts nothing."""
_NAMED_MOST: Final = 3


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes; `host_bytes` None where the machine does not tell. `holders`: of each device, who has how much, by pid."""

    host_bytes: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promised:
    """One engine that has a place: what that is, and what its processes have by now. `pid` None: it has none yet."""

    room: Room
    pid: int | None = None
    memory: ProcessMemory | None = None

    def owed_host_bytes(self) -> int:
        if self.pid is None:
            return self.room.host_bytes
        return 0 if self.memory is None else max(0, self.room.host_bytes - self.memory.held)

    def owed_on(self, device: str, free: FreeMemory) -> int:
        promised = dict(self.room.devices).get(device, 0)
        if self.pid is None:
            return promised
        has = free.holders.get(device, {}).get(self.pid)
        return 0 if has is None else max(0, promised - has)

    def returns(self, free: FreeMemory) -> tuple[int, Mapping[str, int]]:
        """What comes back when it ends."""
        if self.pid is None:
            return 0, {}
        held = self.room.host_bytes if self.memory is None else self.memory.held
        return held, {device: free.holders.get(device, {}).get(self.pid, size) for device, size in self.room.devices}


def free_memory() -> FreeMemory:
    """Of this machine now, within what control groups around this process leave it. Takes milliseconds, more with devices."""
    found = nvidia_devices()
    told = ((gpu.get("uuid"), gpu.get("memory_free_bytes")) for gpu in found.gpus)
    devices = {name: free for name, free in told if isinstance(name, str) and isinstance(free, int)}
    return FreeMemory(memory_free(), devices, found.holders)


def lacking(
    free: FreeMemory,
    wanted: Room,
    *,
    others: Iterable[Promised] = (),
    leaving: Iterable[Promised] = (),
    more_bytes: int = 0,
    ours: Collection[int] = (),
) -> tuple[int, str]:
    """Bytes short and, as part of a sentence, of what; (0, "") when it is there. `leaving` end before the start; of `others` stays what they are
    owed. `more_bytes`: to be free beside it. `ours`: pids that are not named as foreign.
    """
    others = tuple(others)
    back_host, back_device = 0, Counter[str]()
    for one in leaving:
        host, on = one.returns(free)
        back_host += host
        back_device.update(on)
    short, said = 0, []
    if free.host_bytes is not None and wanted.host_bytes:
        there = free.host_bytes + back_host - sum(one.owed_host_bytes() for one in others)
        if (over := wanted.host_bytes + more_bytes - there) > 0:
            short += over
            said.append(f"only {format_bytes(max(0, there))} of this machine's memory are free for it")
    for device, size in wanted.devices:
        if device in free.devices:
            there = free.devices[device] + back_device[device] - sum(one.owed_on(device, free) for one in others)
            if (over := size + more_bytes - there) > 0:
                short += over
                said.append(
                    f"only {format_bytes(max(0, there))} of {device} are free for it{_held(free, device, ours)}"
                )
    return short, " and ".join(said)


def _held(free: FreeMemory, device: str, ours: Collection[int]) -> str:
    foreign = sorted(
        ((size, pid) for pid, size in free.holders.get(device, {}).items() if pid not in ours), reverse=True
    )
    named = [f"pid {pid}{_name(pid)} has {format_bytes(size)}" for size, pid in foreign[:_NAMED_MOST]]
    return f" ({', '.join(named)})" if named else ""


def _name(pid: int) -> str:
    try:
        return f" ({display_safe(Path(f'/proc/{pid}/comm').read_text(encoding='utf-8', errors='replace').strip(), max_chars=32)})"
    except OSError:
        return ""
