"""Metrics in a registry of their own, by the names SBproxy's dashboards know. Gauges are read from the runtime at the scrape.

Label values come from the desired state and from tables here, never from a request; who may change the desired state could still make up names
without end, so what comes after the first two thousand counts as `__other__`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from sbctl.runtime.device_metrics import DeviceMetrics
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.gauges import CertificateGauge, DeploymentGauges, MemoryGauges
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_messages import Evicted
from sbctl.runtime.value_ledger import ValueLedger
from sbctl.runtime.weight_metrics import WeightMetrics

__all__ = ["RuntimeMetrics"]

_READY_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 300, 600)
_WAIT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RATE_BUCKETS: Final = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 250, 500, 1000)
_PREFIX: Final = "sbproxy_model_host_"
_NAMES_MAX: Final = 2000
_OTHER: Final = "__other__"


@dataclass(frozen=True, slots=True)
class _Row:
    """What every request of one deployment counts in, looked up once."""

    name: str
    answered: Counter
    queue_s: Histogram
    first_s: Histogram
    prompt: Counter
    completion: Counter
    rate: Histogram


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
        self._requests = Counter(
            "sbproxy_requests_total",
            "Requests by deployment and status.",
            ["deployment", "status"],
            registry=self._registry,
        )
        self._queue_s = Histogram(
            "sbctl_request_queue_seconds",
            "From a request's arrival to its place at an engine.",
            ["deployment"],
            buckets=_WAIT_BUCKETS,
            registry=self._registry,
        )
        self._first_s = Histogram(
            "sbctl_request_first_token_seconds",
            "From a request's arrival to the first byte of the engine's answer.",
            ["deployment"],
            buckets=_WAIT_BUCKETS,
            registry=self._registry,
        )
        self._rate = Histogram(
            "sbctl_request_tokens_per_second",
            "Tokens written for one request, by the time from its place at an engine to its end.",
            ["deployment"],
            buckets=_RATE_BUCKETS,
            registry=self._registry,
        )
        self._tokens = Counter(
            "sbctl_request_tokens_total",
            "Tokens read (prompt) and written (completion), as engines count them.",
            ["deployment", "kind"],
            registry=self._registry,
        )
        self.weights = WeightMetrics(self._registry)
        self.value = ValueLedger()
        self.devices = DeviceMetrics()
        self._registry.register(self.devices)
        self._names: set[str] = set()
        self._rows: dict[str, _Row] = {}
        self._broken = Counter(
            "sbctl_broken_streams_total",
            "Streams that an engine did not finish.",
            ["deployment"],
            registry=self._registry,
        )

    def watch(self, reconciler: Reconciler) -> None:
        """Once: the runtime whose gauges are shown."""
        self._registry.register(DeploymentGauges(reconciler))
        self._registry.register(MemoryGauges(reconciler.residency))

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
        row = self._rows.get(outcome.deployment)
        if row is None:
            row = self._rows[outcome.deployment] = self._row(self._bounded(outcome.deployment))
        if outcome.status == 200:
            row.answered.inc()
        else:
            self._requests.labels(row.name, str(outcome.status)).inc()
        row.queue_s.observe(outcome.queued_s)
        if outcome.first_byte_s is not None:
            row.first_s.observe(outcome.first_byte_s)
        if outcome.usage is not None:
            row.prompt.inc(outcome.usage.prompt_tokens)
            row.completion.inc(outcome.usage.completion_tokens)
            served_s = outcome.total_s - outcome.queued_s
            if outcome.usage.completion_tokens and served_s > 0 and not outcome.broke:
                row.rate.observe(outcome.usage.completion_tokens / served_s)
        if outcome.broke:
            self._broken.labels(row.name).inc()

    def _row(self, deployment: str) -> _Row:
        return _Row(
            deployment,
            self._requests.labels(deployment, "200"),
            self._queue_s.labels(deployment),
            self._first_s.labels(deployment),
            self._tokens.labels(deployment, "prompt"),
            self._tokens.labels(deployment, "completion"),
            self._rate.labels(deployment),
        )

    def render(self) -> bytes:
        return generate_latest(self._registry)
