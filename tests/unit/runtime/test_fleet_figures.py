"""Sums over a cluster: counters that each runtime tells, gauges of its replicas; labels that nobody can make up without end."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from sbctl.base.limits import JSON_INT_MAX
from sbctl.runtime.cluster.directory import DirectoryView
from sbctl.runtime.cluster.overview import metrics_document
from sbctl.runtime.fleet_figures import FLEET_COUNTERS
from sbctl.runtime.metrics import RuntimeMetrics


def counted() -> RuntimeMetrics:
    metrics = RuntimeMetrics()
    metrics.launched("llama_cpp", "m", "ready", 2.0)
    metrics.launched("llama_cpp", "m", "failed", 1.0)
    metrics.rejected("chat", "normal", "queue_full")
    metrics.peers.attempted("chat", "peer", "ok")
    metrics.peers.failed_over("chat", "draining")
    metrics.weights.pulled(5_000, 1.0)
    return metrics


def test_a_runtime_tells_its_counters_over_all_labels() -> None:
    told = counted().figures()
    assert set(told) == set(FLEET_COUNTERS)
    assert {name: value for name, value in told.items() if value} == {
        "sbproxy_model_host_launches_total": 2,
        "sbproxy_model_host_admission_rejections_total": 1,
        "sbproxy_managed_replica_attempts_total": 1,
        "sbproxy_managed_replica_failovers_total": 1,
        "sbproxy_model_host_weight_download_bytes_total": 5_000,
    }


def test_each_of_them_is_a_family_of_the_metrics_page() -> None:
    shown = counted().render().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", shown, re.MULTILINE))
    assert {name: kinds.get(name) for name in FLEET_COUNTERS} == dict.fromkeys(FLEET_COUNTERS, "counter")


def row(*roles: str, exclusion: str = "", figures: dict[str, int] | None = None, **replica: Any) -> Any:
    replicas = [SimpleNamespace(**replica)] if replica else []
    snapshot = SimpleNamespace(node=SimpleNamespace(roles=roles), figures=figures or {}, replicas=replicas)
    return SimpleNamespace(snapshot=snapshot, exclusion=exclusion)


def test_the_cluster_s_sums_are_of_nodes_that_count_and_of_names_that_are_known() -> None:
    ready: dict[str, Any] = {"state": "ready", "active_requests": 2, "queue_depth": 1}
    loading: dict[str, Any] = {"state": "preparing", "active_requests": 0, "queue_depth": 4}
    rows = {
        "gw": row("gateway", figures={"sbproxy_requests_total": 7, "made_up_total": 9}),
        "w1": row("worker", figures={"sbproxy_requests_total": 3, "sbproxy_model_host_launches_total": 1}, **ready),
        "w2": row("worker", **loading),
        "w3": row("worker", exclusion="snapshot_expired", figures={"sbproxy_requests_total": JSON_INT_MAX}, **ready),
        "w4": SimpleNamespace(snapshot=None, exclusion="snapshot_missing"),
    }
    told = metrics_document(cast("DirectoryView", SimpleNamespace(rows=rows)))
    assert told["nodes"] == 3
    assert {name: value for name, value in told["metrics"].items() if value} == {
        "sbproxy_requests_total": 10,
        "sbproxy_model_host_launches_total": 1,
        "sbproxy_model_host_active_requests": 2,
        "sbproxy_model_host_queued_requests": 5,
        "sbproxy_model_host_load_queue_depth": 4,
        "sbproxy_model_host_resident_models": 1,
    }


def test_names_and_reasons_that_nobody_knows_do_not_grow_without_end() -> None:
    metrics = RuntimeMetrics()
    for number in range(2_100):
        metrics.peers.attempted(f"made-up-{number}", "peer", f"made_up_{number}")
    shown = metrics.render().decode()
    assert 'deployment="__other__",outcome="unknown"' in shown
    assert len(set(re.findall(r'outcome="([^"]+)"', shown))) <= 130
