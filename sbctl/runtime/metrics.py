"""Metrics in a registry of their own, by the names SBproxy's dashboards know. Gauges are read from the runtime at the scrape.

Label values come from the bundle and from tables here, never from a request, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_states import ReplicaPhase

__all__ = ["RuntimeMetrics"]

_READY_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 300, 600)
_PREFIX: Final = "sbproxy_model_host_"


class _Gauges(Collector):
    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    def collect(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(_PREFIX + "active_requests", "Requests that run.", labels=["deployment"])
        queued = GaugeMetricFamily(_PREFIX + "queued_requests", "Requests that wait.", labels=["deployment"])
        state = GaugeMetricFamily(
            _PREFIX + "deployment_state",
            "1 for the state a deployment is in.",
            labels=["deployment", "engine", "state"],
        )
        resident = 0
        for name, generation in sorted(self._reconciler.generations.items()):
            row = generation.state()
            active.add_metric([name], sum(replica.gate.active for replica in generation.replicas))
            queued.add_metric([name], sum(replica.gate.queued for replica in generation.replicas))
            for phase in ReplicaPhase:
                state.add_metric([name, generation.member.engine.engine, phase.value], float(row.state == phase.value))
            resident += generation.ready_replicas
        yield active
        yield queued
        yield state
        yield GaugeMetricFamily(_PREFIX + "resident_models", "Engines that are ready.", value=resident)
        yield GaugeMetricFamily("sbctl_runtime_revision", "Commits of this process.", value=self._reconciler.revision)


class RuntimeMetrics:
    """Counters are written where things happen; `render` is the text of /metrics."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._rejections = Counter(
            _PREFIX + "admission_rejections_total",
            "Requests refused at the gate.",
            ["deployment", "priority", "reason"],
            registry=self._registry,
        )
        self._launches = Counter(
            _PREFIX + "launches_total", "Engine launches.", ["engine", "outcome"], registry=self._registry
        )
        self._ready_s = Histogram(
            _PREFIX + "time_to_ready_seconds",
            "From the start of a launch to ready.",
            ["engine"],
            buckets=_READY_BUCKETS,
            registry=self._registry,
        )
        self._requests = Counter(
            "sbproxy_requests_total",
            "Requests by deployment and status.",
            ["deployment", "status"],
            registry=self._registry,
        )
        self._broken = Counter(
            "sbctl_broken_streams_total",
            "Streams that an engine did not finish.",
            ["deployment"],
            registry=self._registry,
        )

    def watch(self, reconciler: Reconciler) -> None:
        """Once: the runtime whose gauges are shown."""
        self._registry.register(_Gauges(reconciler))

    def rejected(self, deployment: str, priority: str, reason: str) -> None:
        self._rejections.labels(deployment, priority, reason).inc()

    def launched(self, engine: str, outcome: Literal["ready", "failed"], seconds: float) -> None:
        self._launches.labels(engine, outcome).inc()
        if outcome == "ready":
            self._ready_s.labels(engine).observe(seconds)

    def answered(self, deployment: str, status: int) -> None:
        self._requests.labels(deployment, str(status)).inc()

    def stream_broke(self, deployment: str) -> None:
        self._broken.labels(deployment).inc()

    def render(self) -> bytes:
        return generate_latest(self._registry)
