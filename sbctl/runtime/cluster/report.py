"""What this node says of itself, out of what its runtime already knows: no engine and no device is asked for it.

Weights and engine builds are read from names on the disk, in a thread, at most every half minute or when the runtime changed something.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import ArtifactError
from sbctl.engines.detect import ArchiveRecord, find_llama_server, installed_engines
from sbctl.engines.memory import usable_device_bytes
from sbctl.node.cluster_documents import (
    SNAPSHOT_REPLICAS_MAX,
    AcceleratorName,
    ArtifactReport,
    AssignmentMark,
    CapacityReport,
    DeviceReport,
    EngineReport,
    HealthReport,
    ReplicaReport,
)
from sbctl.placement.documents import LEAVES
from sbctl.runtime.cluster.assigned_parts import reason_of
from sbctl.runtime.cluster.pending import Pending
from sbctl.runtime.drain import Drain
from sbctl.runtime.generation import Generation
from sbctl.runtime.host_devices import HostDevice, HostDevices
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica import Replica
from sbctl.runtime.room import Budget
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.cluster_bundle import replica_digest

__all__ = ["NodeReport", "Obeying", "Reporter", "watch_replicas"]

_ARTIFACTS_MAX: Final = 512
_DEVICES_MAX: Final = 64
_DISK_LOOK_S: Final = 30.0
_LOOK_S: Final = 0.1


class Obeying(Protocol):
    """How far this node is with what it was assigned."""

    def mark(self) -> AssignmentMark | None: ...

    def pending(self) -> Iterable[Pending]:
        """What is assigned and not here yet."""
        ...


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The parts of a snapshot that are about this machine."""

    health: HealthReport
    capacity: CapacityReport
    engines: tuple[EngineReport, ...]
    devices: tuple[DeviceReport, ...]
    artifacts: tuple[ArtifactReport, ...]
    replicas: tuple[ReplicaReport, ...]
    assignment: AssignmentMark | None


class Reporter:
    """`devices`: as they were seen at the start. `plane_is_ready`: whether gateways get in; `changed`: a device is another than before."""

    def __init__(
        self,
        reconciler: Reconciler,
        drain: Drain,
        *,
        budget: Budget,
        devices: HostDevices,
        cache: Path,
        engines: Path,
        plane_is_ready: Callable[[], bool],
        obeying: Obeying | None,
    ) -> None:
        self._reconciler = reconciler
        self._drain = drain
        self._cache = ArtifactCache(cache)
        self._engines_directory = engines
        self._plane_is_ready = plane_is_ready
        self._obeying = obeying
        self.devices = devices
        """As they were seen last."""
        self._budget = budget
        self._artifacts: tuple[ArtifactReport, ...] = ()
        self._builds: tuple[EngineReport, ...] = ()
        self._looked_s: float | None = None
        self._revision = -1
        self._places = (cache, cache / "snapshots", engines, engines / "llama_cpp")
        self._changed: tuple[int, ...] = ()

    async def now(self) -> NodeReport:
        loop = asyncio.get_running_loop()
        is_due = self._looked_s is None or loop.time() - self._looked_s >= _DISK_LOOK_S
        # What an apply puts on the disk decides where replicas go a moment later, and they stay there.
        changed = tuple(_changed_ns(place) for place in self._places)
        if is_due or self._revision != self._reconciler.revision or changed != self._changed:
            self._looked_s, self._revision, self._changed = loop.time(), self._reconciler.revision, changed
            self._artifacts, self._builds, self.devices = await asyncio.to_thread(self._look)
        return NodeReport(
            health=self._health(),
            capacity=self._capacity(),
            engines=self._builds,
            devices=tuple(map(_device, self.devices.devices[:_DEVICES_MAX])),
            artifacts=self._artifacts,
            replicas=tuple(self._replicas())[:SNAPSHOT_REPLICAS_MAX],
            assignment=None if self._obeying is None else self._obeying.mark(),
        )

    def _capacity(self) -> CapacityReport:
        total = (gpu.get("memory_total_bytes") for gpu in self.devices.usable)
        return CapacityReport(
            memory_bytes=self._budget.host_bytes or 0,
            device_memory_bytes=sum(size for size in total if isinstance(size, int)),
            cpu_count=os.cpu_count() or 0,
            max_engines=self._budget.engines,
        )

    def _health(self) -> HealthReport:
        draining = self._drain.is_on
        failed = any(
            replica.crash_looping for each in self._reconciler.generations.values() for replica in each.replicas
        )
        lacking = {one.withheld for one in self.devices.devices} - {"", "excluded_by_operator"}
        reasons = (*(("crash_loop",) if failed else ()), *(f"device_{code}" for code in sorted(lacking)))
        return HealthReport(
            state="degraded" if reasons else "ready",
            reason_codes=(*reasons, *((LEAVES,) if self._drain.leaves else ())),
            peer_plane="ready" if self._plane_is_ready() else "unavailable",
            draining=draining,
        )

    # Replicas

    def _replicas(self) -> Iterable[ReplicaReport]:
        shown: set[tuple[str, int, int | None]] = set()
        reconciler = self._reconciler
        for generation, replica in (
            *((each, replica) for each in reconciler.generations.values() for replica in each.own),
            *((each, replica) for each in reconciler.staged.values() for replica in each.fresh),
            *((each, replica) for each in reconciler.leaving for replica in each.own),
        ):
            report = _replica(generation, replica)
            # Two processes of one replica are told as the one that serves; a successor on this node has a number of its own.
            if report.state == "ready" and reconciler.staged.get(generation.deployment) is generation:
                # It serves nobody before all of its generation is ready, and may never do.
                report = report.model_copy(update={"state": "preparing"})
            key = report.deployment, report.deployment_generation, report.slot
            if key not in shown:
                shown.add(key)
                yield report
        for pending in () if self._obeying is None else self._obeying.pending():
            for slot in pending.assigned.slots:
                if (pending.deployment, pending.assigned.generation, slot) not in shown:
                    yield _not_here(pending, slot)

    # The disk

    def _look(self) -> tuple[tuple[ArtifactReport, ...], tuple[EngineReport, ...], HostDevices]:
        return tuple(self._found_artifacts()), tuple(self._found_builds()), self.devices.look()

    def _found_artifacts(self) -> Iterable[ArtifactReport]:
        entries = sorted(self._cache.entries(), key=lambda entry: (entry.state != "ready", entry.artifact))
        for entry in entries[:_ARTIFACTS_MAX]:
            facts = self._facts(entry.artifact)
            yield ArtifactReport(
                artifact_digest=entry.artifact,
                model="" if facts is None else facts.model[:256],
                variant="" if facts is None else facts.variant[:256],
                state=entry.state,
                completed_bytes=entry.size_bytes,
                total_bytes=entry.size_bytes if facts is None else facts.total_bytes,
            )

    def _facts(self, artifact: str) -> ArtifactFacts | None:
        try:
            return self._cache.facts(artifact)
        except ArtifactError:
            return None

    def _found_builds(self) -> Iterable[EngineReport]:
        """Builds of ours by their version; a program that the bundle names by its path may be anywhere, so any host offers to look for it."""
        for record in installed_engines(self._engines_directory):
            archive = record if isinstance(record, ArchiveRecord) else None
            yield EngineReport(
                engine="llama_cpp",
                launch=record.launch,
                version=record.version if archive is None else archive.tag,
                availability="available",
                accelerators=() if archive is None else (archive.acceleration,),
            )
        found = find_llama_server(os.environ.get("PATH", ""))
        yield EngineReport(
            engine="llama_cpp",
            launch="binary",
            availability="available" if found is not None else "acquirable",
            reason_code=None if found is not None else "by_path_only",
        )


def _changed_ns(directory: Path) -> int:
    """When its names changed last; 0 where it is not."""
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return 0


def _device(device: HostDevice) -> DeviceReport:
    """How busy and how full it is, is of the last look: between replicas that are alike otherwise, gateways choose by it."""
    total, free = (device.gpu.get(f"memory_{which}_bytes") for which in ("total", "free"))
    percent = device.gpu.get("utilization_percent")
    occupied = None
    if isinstance(total, int) and isinstance(free, int) and 0 <= free <= total and total > 0:
        occupied = 1000 * (total - free) // total
    accelerator: AcceleratorName = "cuda"
    capability = device.gpu.get("compute_capability")
    return DeviceReport(
        index=device.number,
        vendor="nvidia",
        accelerator=accelerator,
        name=str(device.gpu.get("name", ""))[:128],
        total_memory_bytes=total if isinstance(total, int) else 0,
        usable_memory_bytes=usable_device_bytes((device.gpu,)),
        available_memory_bytes=free if isinstance(free, int) else 0,
        compute_capability=None if capability is None else str(capability)[:16],
        compute_utilization_millis=min(1000, 10 * percent) if isinstance(percent, int) and percent >= 0 else None,
        memory_occupancy_millis=occupied,
        withheld=device.withheld or None,
    )


def _replica(generation: Generation, replica: Replica) -> ReplicaReport:
    assigned, member = generation.assigned, generation.member
    index = generation.replicas.index(replica)
    return ReplicaReport(
        deployment=generation.deployment,
        deployment_generation=generation.number if assigned is None else assigned.generation,
        slot=assigned.slots[index] if assigned is not None and index < len(assigned.slots) else None,
        state=replica.phase.value,
        selected_devices=generation.selected_devices(replica),
        active_requests=replica.gate.active,
        queue_depth=replica.gate.queued,
        reason_code=None if replica.error is None else reason_of(replica.error.code),
        **_of_member(member),
    )


def _not_here(pending: Pending, slot: int) -> ReplicaReport:
    return ReplicaReport(
        deployment=pending.deployment,
        deployment_generation=pending.assigned.generation,
        slot=slot,
        state="failed" if pending.error is not None else "assigned",
        reason_code=None if pending.error is None else reason_of(pending.error.code),
        **_of_member(pending.member),
    )


def _of_member(member: DeploymentMember) -> dict[str, Any]:
    return {
        "model": member.model[:256],
        "variant": member.variant[:256],
        "engine": member.engine.engine,
        "artifact_digest": member.artifact.artifact,
        "member_digest": replica_digest(member),
    }


async def watch_replicas(reconciler: Reconciler, drain: Drain, changed: Callable[[], None]) -> None:
    """Call `changed` when a replica comes, goes or gets another state, or the host is taken out of service. Until cancelled."""
    before: tuple[object, ...] = ()
    while True:
        await asyncio.sleep(_LOOK_S)
        generations = (*reconciler.generations.values(), *reconciler.staged.values(), *reconciler.leaving)
        now = (
            (drain.is_on, drain.leaves),
            *((each.deployment, each.assigned, *(one.phase for one in each.replicas)) for each in generations),
        )
        if now != before:
            before = now
            changed()
