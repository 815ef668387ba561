"""Metrics in a registry of their own, by the names SBproxy's dashboards know. Gauges are read from the runtime at the scrape.

Label values come from the desired state and from tables here, never from a request; who may change the desired state could still make up names
without end, so what comes after the first two thousand counts as `__other__`.
"""

from __future__ import annotations

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from sbctl.runtime.device_metrics import DeviceMetrics
from sbctl.runtime.fleet_figures import FLEET_COUNTERS, figures_of
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.gauges import CertificateGauge, DeploymentGauges, MemoryGauges
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_messages import Evicted
from sbctl.runtime.request_metrics import RequestMetrics
from sbctl.runtime.value_ledger import ValueLedger
from sbctl.runtime.weight_metrics import WeightMetrics

__all__ = ["RuntimeMetrics"]

_READY_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 300, 600)
_PREFIX: Final = "sbproxy_model_host_"
_NAMES_MAX: Final = 2000
_OTHER: Final = "__other__"


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
        self._fallbacks = Counter(
            "sbctl_stand_in_requests_total",
            "Requests that another deployment or an external provider was asked for, by why the deployment could not answer.",
            ["deployment", "provider", "reason"],
            registry=self._registry,
        )
        self._launches = Counter(
            _PREFIX + "launches_total", "Engine launches.", ["engine", "model", "outcome"], registry=self._registry
        )
        self._ready_s = Histogram(
            _PREFIX + "time_to_ready_seconds",
            "From the start of a launch to ready.",
            ["engine", "model"],
            buckets=_READY_BUCKETS,
            registry=self._registry,
        )
        self._evictions = Counter(
            _PREFIX + "evictions_total",
            "Engines that were unloaded: for another's room (lru), unused for keep_alive_secs (keep_alive), by an operator (manual).",
            ["reason"],
            registry=self._registry,
        )
        self._requests = RequestMetrics()
        self._registry.register(self._requests)
        self.weights = WeightMetrics(self._registry)
        self.peers = PeerMetrics(self._registry, self._bounded)
        self.value = ValueLedger()
        self.devices = DeviceMetrics()
        self._registry.register(self.devices)
        self._names: set[str] = set()

    def watch(self, reconciler: Reconciler) -> None:
        """Once: the runtime whose gauges are shown."""
        self._registry.register(DeploymentGauges(reconciler))
        self._registry.register(MemoryGauges(reconciler.residency))

    def watch_cluster(self, cluster: Collector) -> None:
        """Once: what this node knows of its cluster."""
        self._registry.register(cluster)

    def watch_certificate(self, tls: PublicTls) -> None:
        """Once: the certificate whose end is shown."""
        self._registry.register(CertificateGauge(tls))

    def rejected(self, deployment: str, priority: str, reason: str) -> None:
        self._rejections.labels(self._bounded(deployment), priority, reason).inc()

    def fell_back(self, deployment: str, provider: str, reason: str) -> None:
        """An external provider is asked in place of a deployment."""
        self._fallbacks.labels(self._bounded(deployment), self._bounded(provider), reason).inc()

    def launched(self, engine: str, model: str, outcome: Literal["ready", "failed"], seconds: float) -> None:
        model = self._bounded(model)
        self._launches.labels(engine, model, outcome).inc()
        if outcome == "ready":
            self._ready_s.labels(engine, model).observe(seconds)

    def evicted(self, reason: Evicted) -> None:
        self._evictions.labels(reason).inc()

    def _bounded(self, name: str) -> str:
        if name in self._names or len(self._names) < _NAMES_MAX:
            self._names.add(name)
            return name
        return _OTHER

    def finished(self, outcome: Outcome) -> None:
        """One request that had a deployment has its answer, or its caller is gone (status 499)."""
        self.value.finished(outcome)
        self._requests.finished(self._bounded(outcome.deployment), outcome)

    def figures(self) -> dict[str, int]:
        """What the cluster's sums take of this runtime, by metric."""
        counters = self._registry.restricted_registry(FLEET_COUNTERS).collect()
        return figures_of((*counters, *self._requests.collect()))

    def render(self) -> bytes:
        return generate_latest(self._registry)
