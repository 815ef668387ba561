"""NVIDIA devices of this machine, by the driver's own library (NVML). Best effort: what a device does not tell is left out.

A machine without the library is asked nothing, so it does not pay for the binding either.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["NvidiaDevices", "nvidia_devices"]

_LIBRARY: Final = "libnvidia-ml.so.1"
_NAME_MAX_CHARS: Final = 128
_REBOOTS: Final = frozenset({2, 7})
"""Of NVML's recovery actions: of the node, of the system. The others want the device reset, some after it was drained."""


@dataclass(frozen=True, slots=True)
class NvidiaDevices:
    """`problem` is one sentence when the driver is there and cannot be used; `cuda` is the newest version that the driver serves."""

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[dict[str, str | int], ...] = ()
    """Each with `name`, `uuid`, `memory_total_bytes`, `memory_free_bytes`, `utilization_percent`, `compute_capability`, as far as it tells;
    `fault` where the driver says that it needs help. One that fell off its bus is left out."""
    holders: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Of each device by its uuid: the processes that compute on it, with the bytes of it that they have."""
    problem: str | None = None


def nvidia_devices() -> NvidiaDevices:
    """Never raises: a broken driver is a `problem`, no driver is nothing."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return NvidiaDevices()
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvidiaDevices(problem=f"the NVIDIA driver cannot be used: {str(error).rstrip('.')}")
    try:
        seen = (_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        gpus = tuple(gpu for gpu in seen if gpu is not None)
        holders = {str(gpu["uuid"]): _holders(pynvml, int(gpu["index"])) for gpu in gpus if "uuid" in gpu}
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return NvidiaDevices(
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{version // 1000}.{version % 1000 // 10}",
            gpus=gpus,
            holders=holders,
        )
    except pynvml.NVMLError as error:
        return NvidiaDevices(problem=f"the NVIDIA devices cannot be read: {str(error).rstrip('.')}")
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> dict[str, str | int] | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            return None
        raise
    told: dict[str, str | int] = {"index": index}
    with contextlib.suppress(nvml.NVMLError):
        told["name"] = _text(nvml.nvmlDeviceGetName(handle))
    with contextlib.suppress(nvml.NVMLError):
        told["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        told["memory_total_bytes"], told["memory_free_bytes"] = int(memory.total), int(memory.free)
    with contextlib.suppress(nvml.NVMLError):
        told["utilization_percent"] = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        told["compute_capability"] = f"{major}.{minor}"
    if fault := _fault(nvml, handle):
        told["fault"] = fault
    return told


def _fault(nvml: Any, handle: Any) -> str:
    """What the driver says of a device that had errors (Xid, ECC): a code; empty when it works, or does not tell."""
    with contextlib.suppress(nvml.NVMLError):
        (action,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        if action.nvmlReturn == nvml.NVML_SUCCESS and action.value.uiVal:
            return "needs_reboot" if action.value.uiVal in _REBOOTS else "needs_reset"
    with contextlib.suppress(nvml.NVMLError):
        *_counts, failed = nvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return "rows_not_remapped"
    return ""


def _holders(nvml: Any, index: int) -> Mapping[int, int]:
    """What a driver does not say of a process (in a container, of a foreign user) is left out."""
    with contextlib.suppress(nvml.NVMLError):
        processes = nvml.nvmlDeviceGetComputeRunningProcesses_v3(nvml.nvmlDeviceGetHandleByIndex(index))
        return {int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory is not None}
    return {}


def _text(value: str | bytes) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return text[:_NAME_MAX_CHARS]
