"""Counters of how weights come to this host: bytes fetched, time, failures by kind."""

from __future__ import annotations

import contextlib
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sbctl.artifacts.error_kinds import error_kind
from sbctl.base.errors import SbctlError

__all__ = ["WeightMetrics"]

_SECONDS: Final = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600)
_PREFIX: Final = "sbproxy_model_host_"


class WeightMetrics:
    """Written by whoever prepares weights for replicas. What was there already, or came from this machine, is no download."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._errors = Counter(
            _PREFIX + "artifact_errors_total",
            "Weights that could not be made ready, by kind.",
            ["artifact_error_kind"],
            registry=registry,
        )
        self._bytes = Counter(
            _PREFIX + "weight_download_bytes_total", "Bytes of weights that were fetched.", registry=registry
        )
        self._failures = Counter(
            _PREFIX + "weight_download_failures_total", "Pulls of weights that failed.", registry=registry
        )
        self._seconds = Histogram(
            _PREFIX + "weight_download_seconds",
            "How long pulls took that fetched something.",
            buckets=_SECONDS,
            registry=registry,
        )

        self._stale = Gauge(
            _PREFIX + "replicas_on_changed_weights",
            "Engines that serve from weights that changed and were set aside.",
            ["deployment"],
            registry=registry,
        )

    def stale(self, deployment: str, engines: int) -> None:
        """So many engines of it run on weights that are not in the cache any more; none: it is well, and has no row."""
        if engines:
            self._stale.labels(deployment).set(engines)
        else:
            with contextlib.suppress(KeyError):
                self._stale.remove(deployment)

    def pulled(self, downloaded_bytes: int, seconds: float) -> None:
        if downloaded_bytes:
            self._bytes.inc(downloaded_bytes)
            self._seconds.observe(seconds)

    def pull_failed(self, error: SbctlError) -> None:
        self._failures.inc()
        self.failed(error)

    def failed(self, error: SbctlError) -> None:
        """Something else about an artifact than fetching it."""
        self._errors.labels(error_kind(error)).inc()
