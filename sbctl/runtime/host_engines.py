"""What engines have on this host: its memory and devices, whatever starts their processes, and whatever brings their weights and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from sbctl.node.devices import nvidia_devices
from sbctl.node.machine import memory_limit
from sbctl.node.paths import NodePaths
from sbctl.runtime.engine_host import ChildEngineHost, EngineHost
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.launcher_client import LauncherClient
from sbctl.runtime.node_provisioner import NodeProvisioner
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.pull_process import PullProcess
from sbctl.runtime.replica_room import budget_of
from sbctl.runtime.room import Budget
from sbctl.runtime.settings import Settings
from sbctl.runtime.unit_host import UnitEngineHost
from sbctl.runtime.unit_records import UnitRecords
from sbctl.runtime.weight_metrics import WeightMetrics

__all__ = ["HostEngines"]

_LAUNCHER_VARIABLE: Final = "SBCTL_ENGINE_LAUNCHER"


@dataclass(frozen=True, slots=True)
class HostEngines:
    """One a daemon. `budget` is what the machine and `devices` leave to engines."""

    processes: EngineHost
    devices: HostDevices
    budget: Budget
    provisioner: NodeProvisioner

    @classmethod
    def found(cls, settings: Settings, environ: Mapping[str, str], events: EventSink, metrics: WeightMetrics) -> Self:
        """As the machine is now. Asks the devices' driver."""
        config, paths = settings.config, settings.paths
        processes = _processes(paths, environ, events)
        devices = HostDevices.found(paths.state, nvidia_devices().gpus, config.excluded_devices)
        total_bytes = psutil.virtual_memory().total
        budget = budget_of(total_bytes, memory_limit(), devices.usable, config.max_resident_models)
        provisioner = NodeProvisioner(
            paths,
            settings.cache_directory,
            processes.new_socket,
            _puller(settings, environ),
            budget_bytes=config.cache_budget_bytes,
            offline=config.offline,
            by_hand=settings.started_by_hand,
            events=events,
            metrics=metrics,
            devices=budget.devices,
            are_withheld=bool(devices.devices),
            safety_margin=config.safety_margin,
            most_bytes=budget.most_bytes,
        )
        return cls(processes, devices, budget, provisioner)


def _processes(paths: NodePaths, environ: Mapping[str, str], events: EventSink) -> EngineHost:
    """Units by the launcher where our own unit names its socket, children everywhere else."""
    children = OwnershipRecords(paths.engine_records)
    socket_path = environ.get(_LAUNCHER_VARIABLE)
    if socket_path:
        records = UnitRecords(paths.engine_records / "units")
        return UnitEngineHost(LauncherClient(Path(socket_path)), records, children, events=events)
    return ChildEngineHost(children, paths.state / "run", logs=paths.engine_logs, events=events)


def _puller(settings: Settings, environ: Mapping[str, str]) -> PullProcess:
    config = settings.config
    return PullProcess(
        settings.cache_directory, lambda: config.egress, settings.paths.secrets, environ, offline=config.offline
    )
