"""The runtime as a node of its cluster, where its configuration says so; nothing of clusters is loaded on a host that is on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.runtime.drain import Drain
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.host_engines import HostEngines
from sbctl.runtime.identity import HeldIdentity
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.settings import Settings

if TYPE_CHECKING:
    from sbctl.runtime.cluster.node import ClusterNode

__all__ = ["joined"]


def joined(  # noqa: PLR0917 - the parts of a daemon
    settings: Settings,
    reconciler: Reconciler,
    engines: HostEngines,
    drain: Drain,
    metrics: RuntimeMetrics,
    identity: HeldIdentity | None,
    events: EventSink,
) -> ClusterNode | None:
    """None on a host of its own, and for a daemon that was started by hand. Raises as `ClusterNode`."""
    config = settings.config.cluster
    if config is None or settings.started_by_hand:
        return None
    from sbctl.runtime.cluster.gauges import ClusterGauges
    from sbctl.runtime.cluster.host import Host
    from sbctl.runtime.cluster.node import ClusterNode

    host = Host(
        settings,
        reconciler,
        engines.provisioner,
        drain,
        metrics,
        engines.budget,
        engines.devices,
        SYSTEM_CLOCK,
        events,
    )
    node = ClusterNode(host, config)
    metrics.watch_cluster(ClusterGauges(node, SYSTEM_CLOCK))
    if identity is not None:
        identity.on_change(node.reload_identity)
    return node
