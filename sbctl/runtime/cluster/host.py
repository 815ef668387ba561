"""What a node of a cluster is made of: the runtime that becomes one, and the store that it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sbctl.base.clock import Clock
from sbctl.runtime.cluster.store import ClusterStore
from sbctl.runtime.drain import Drain
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.host_devices import HostDevices
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.provision import Provisioner
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.room import Budget
from sbctl.runtime.settings import Settings

__all__ = ["Host", "NodeStore"]


@dataclass(frozen=True, slots=True)
class Host:
    """The runtime that becomes a node."""

    settings: Settings
    reconciler: Reconciler
    provisioner: Provisioner
    drain: Drain
    metrics: RuntimeMetrics
    budget: Budget
    devices: HostDevices
    clock: Clock
    events: EventSink = NO_EVENTS


class NodeStore(ClusterStore, Protocol):
    """The store with a connection of its own."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def prepare(self, *, replicas: int) -> None: ...
