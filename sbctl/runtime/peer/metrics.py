"""Counters of dispatch, by the names that SBproxy's dashboards know. Label values come from the bundle and from tables of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sbctl.runtime.peer.candidates import ExclusionStage
from sbctl.runtime.peer.codes import RetryClass

__all__ = ["PeerMetrics", "RouteClass"]

RouteClass = Literal["local", "peer"]

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_REASONS_MAX: Final = 128
_PROVIDER: Final = "managed"
"""The bundle does not keep what sb.yml calls a provider of managed models."""


class PeerMetrics:
    """Of one runtime: as a gateway it counts attempts, as a worker what it refuses."""

    def __init__(self, registry: CollectorRegistry, bounded: Callable[[str], str] = str) -> None:
        """`bounded`: what a deployment is called in a label."""
        self._bounded = bounded
        self._reasons: set[str] = set()
        self._attempts = Counter(
            "sbproxy_managed_replica_attempts_total",
            "Times a replica was asked, by how that went.",
            ["provider", "deployment", "route_class", "outcome"],
            registry=registry,
        )
        self._failovers = Counter(
            "sbproxy_managed_replica_failovers_total",
            "Times another replica was asked instead, by why.",
            ["provider", "deployment", "reason"],
            registry=registry,
        )
        self._seconds = Histogram(
            "sbproxy_model_plane_peer_dispatch_seconds",
            "From a dispatch to the end of its answer, by how that went.",
            ["outcome"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._rejections = Counter(
            "sbproxy_model_plane_rejections_total",
            "Dispatches that this worker refused.",
            ["code", "retry_class"],
            registry=registry,
        )
        self._cancellations = Counter(
            "sbproxy_model_plane_stream_cancellations_total",
            "Answers that their caller did not wait for.",
            ["route_class"],
            registry=registry,
        )
        self._failing = Gauge(
            "sbproxy_model_plane_failing_peers",
            "Workers that this gateway asks last, since they were not reached or said nothing, and have said nothing since.",
            registry=registry,
        )
        self._excluded = Counter(
            "sbproxy_ai_replica_selection_excluded_total",
            "Replicas that could not be chosen for a request, by the stage that left them out.",
            ["stage"],
            registry=registry,
        )

    def watch_failing(self, count: Callable[[], int]) -> None:
        """`count`: how many workers fail now."""
        self._failing.set_function(count)

    def attempted(self, deployment: str, route: RouteClass, outcome: str) -> None:
        """`outcome`: ok, broken, cancelled, or why it failed."""
        self._attempts.labels(_PROVIDER, self._bounded(deployment), route, self._reason(outcome)).inc()

    def failed_over(self, deployment: str, reason: str) -> None:
        self._failovers.labels(_PROVIDER, self._bounded(deployment), self._reason(reason)).inc()

    def dispatched(self, outcome: str, seconds: float) -> None:
        self._seconds.labels(self._reason(outcome)).observe(seconds)

    def _reason(self, code: str) -> str:
        """A worker of another version may know more codes than this gateway; one that makes them up fills no memory."""
        if code in self._reasons or len(self._reasons) < _REASONS_MAX:
            self._reasons.add(code)
            return code
        return "unknown"

    def refused(self, code: str, kind: RetryClass) -> None:
        self._rejections.labels(code, kind).inc()

    def cancelled(self, route: RouteClass) -> None:
        self._cancellations.labels(route).inc()

    def excluded(self, stages: Mapping[ExclusionStage, int]) -> None:
        for stage, count in stages.items():
            self._excluded.labels(stage).inc(count)
