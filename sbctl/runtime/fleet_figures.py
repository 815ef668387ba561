"""The few figures of a runtime that a whole cluster's sums are made of: each a metric of /metrics, summed over its labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import Metric

from sbctl.base.limits import JSON_INT_MAX

__all__ = ["FLEET_COUNTERS", "figures_of"]

FLEET_COUNTERS: Final = (
    "sbproxy_requests_total",
    "sbctl_request_tokens_total",
    "sbctl_broken_streams_total",
    "sbctl_stand_in_requests_total",
    "sbproxy_managed_replica_attempts_total",
    "sbproxy_managed_replica_failovers_total",
    "sbproxy_model_plane_rejections_total",
    "sbproxy_model_plane_stream_cancellations_total",
    "sbproxy_model_host_admission_rejections_total",
    "sbproxy_model_host_launches_total",
    "sbproxy_model_host_evictions_total",
    "sbproxy_model_host_artifact_errors_total",
    "sbproxy_model_host_weight_download_bytes_total",
    "sbproxy_model_host_weight_download_failures_total",
)
"""They begin at nothing with each start of a runtime."""


def figures_of(families: Iterable[Metric]) -> dict[str, int]:
    """Those of `FLEET_COUNTERS` that are told; what was never counted is 0."""
    sums: dict[str, float] = dict.fromkeys(FLEET_COUNTERS, 0.0)
    for family in families:
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return {name: min(int(value), JSON_INT_MAX) for name, value in sums.items()}
