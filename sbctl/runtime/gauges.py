"""Gauges, read from the runtime at the moment of a scrape. Nothing is asked that takes time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.replica_states import ReplicaPhase
from sbctl.runtime.residency import Residency

__all__ = ["CertificateGauge", "DeploymentGauges", "MemoryGauges"]

_PREFIX: Final = "sbproxy_model_host_"


class DeploymentGauges(Collector):
    """What runs, waits and loads, by deployment and by model."""

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
        loads = GaugeMetricFamily(
            _PREFIX + "load_queue_depth", "Requests that wait until a model is loaded.", labels=["model"]
        )
        waiting: Counter[str] = Counter()
        resident = adapters = 0
        for name, generation in sorted(self._reconciler.generations.items()):
            row, member = generation.state(), generation.member
            active.add_metric([name], sum(replica.gate.active for replica in generation.replicas))
            queued.add_metric([name], sum(replica.gate.queued for replica in generation.replicas))
            for phase in ReplicaPhase:
                state.add_metric([name, member.engine.engine, phase.value], float(row.state == phase.value))
            waiting[member.model] += generation.cold_waiters
            resident += generation.ready_replicas
            adapters += generation.ready_replicas * len(member.adapters)
        for model, count in waiting.items():
            loads.add_metric([model], count)
        yield from (active, queued, state, loads)
        yield GaugeMetricFamily(_PREFIX + "resident_models", "Engines that are ready.", value=resident)
        yield GaugeMetricFamily(_PREFIX + "resident_adapters", "LoRA adapters that they loaded.", value=adapters)
        yield GaugeMetricFamily("sbctl_runtime_revision", "Commits of this process.", value=self._reconciler.revision)


class MemoryGauges(Collector):
    """Places: what engines were promised of this host's memory and of each device, and how much there is for them."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency

    def collect(self) -> Iterator[Metric]:
        used, budget = self._residency.used, self._residency.budget
        promised = GaugeMetricFamily(
            "sbctl_engine_memory_promised_bytes", "What engines have a place for.", labels=["device"]
        )
        bound = GaugeMetricFamily(
            "sbctl_engine_memory_budget_bytes", "What engines together may take.", labels=["device"]
        )
        promised.add_metric(["host"], used.host_bytes)
        if budget.host_bytes is not None:
            bound.add_metric(["host"], budget.host_bytes)
        placed = dict(used.devices)
        for device, size in sorted(budget.devices.items()):
            promised.add_metric([device], placed.get(device, 0))
            bound.add_metric([device], size)
        yield promised
        yield bound


class CertificateGauge(Collector):
    """When the certificate ends."""

    def __init__(self, tls: PublicTls) -> None:
        self._tls = tls

    def collect(self) -> Iterator[Metric]:
        ends = GaugeMetricFamily(
            "sbctl_tls_certificate_not_after_seconds",
            "When the certificate that callers see ends, in seconds since 1970; 0 without a certificate that can be shown.",
            labels=["plane"],
        )
        held = self._tls.certificate
        ends.add_metric([self._tls.plane], 0.0 if held is None else held.not_after.timestamp())
        yield ends
