"""One replica as the admin API shows it (SBproxy, "Wire shapes"): what the runtime knows at that moment, without asking an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.generation import Generation
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.replica import Replica

__all__ = ["Seen", "replica_row"]

_NO_ENGINE: Final = ("engine_missing", "engine.incompatible")
Seen = Callable[[RunningEngine], ProcessMemory | None]
"""What an engine had of the host's memory when it was looked at last."""


def replica_row(generation: Generation, replica: Replica, job_id: str | None, seen: Seen) -> dict[str, Any]:
    state = replica.state()
    engine = generation.member.engine
    devices = list(generation.selected_devices(replica))
    return {
        "deployment": generation.deployment,
        "replica": state.replica,
        "generation": generation.number,
        "state": state.state,
        "active_requests": state.active_requests,
        "queued_requests": state.queued_requests,
        "engine": engine.engine,
        "engine_version": engine.version,
        "driver_availability": "incompatible" if state.reason_code in _NO_ENGINE else "available",
        "artifact_digest": generation.member.artifact.artifact,
        "selected_devices": devices,
        "memory": _memory(replica, devices, seen),
        "port": replica.port,
        "restarts": state.restarts,
        "stopped_by": replica.stopped_by,
        "reason_code": state.reason_code,
        "job_id": job_id,
        "last_error": state.last_error,
        "next_step": state.next_step,
    }


def _memory(replica: Replica, devices: list[int], seen: Seen) -> dict[str, Any] | None:
    """What is set aside for it, how that is known, and what it has; None while there is neither an engine nor a start."""
    room = replica.place.room
    if room is None:
        return None
    basis = room.basis
    engine = replica.engine
    has = None if engine is None else seen(engine)
    return {
        "device_indexes": devices,
        "weight_bytes": None if basis is None else basis.weight_bytes,
        "kv_bytes": None if basis is None else basis.context_bytes,
        "runtime_overhead_bytes": None if basis is None else basis.other_bytes,
        "safety_margin_bytes": 0 if basis is None else basis.margin_bytes,
        "total_bytes": room.host_bytes + room.device_bytes,
        "host_bytes": room.host_bytes,
        "device_bytes": room.device_bytes,
        "basis": None if basis is None else basis.source,
        "certainty": None if basis is None else basis.certainty,
        "observed_bytes": None if has is None else has.held,
        "observed_peak_bytes": None if has is None else has.peak,
    }
