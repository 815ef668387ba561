"""What finished requests count in: by deployment their statuses, waits, first bytes and tokens.

On every request's way, so counting is additions alone; the families are put together at the scrape. One event loop uses it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sbctl.runtime.gateway.ports import Outcome

__all__ = ["RequestMetrics"]

_WAIT_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RATE_BUCKETS: Final = (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 250, 500, 1000)


class _Distribution:
    """How many values lie in each bucket, bounds included above, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, deployment: str) -> None:
        below, rows = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            below += count
            rows.append((str(bound), float(below)))
        family.add_metric([deployment], rows, self._sum)


class _Row:
    """Of one deployment."""

    __slots__ = ("broken", "completion", "first_s", "prompt", "queue_s", "rate", "statuses")

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.queue_s = _Distribution(_WAIT_BUCKETS)
        self.first_s = _Distribution(_WAIT_BUCKETS)
        self.rate = _Distribution(_RATE_BUCKETS)
        self.prompt = 0
        self.completion = 0
        self.broken = 0


class RequestMetrics(Collector):
    """As many rows as names that it is given."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def finished(self, deployment: str, outcome: Outcome) -> None:
        """One request, counted under this name."""
        row = self._rows.get(deployment)
        if row is None:
            row = self._rows[deployment] = _Row()
        row.statuses[outcome.status] = row.statuses.get(outcome.status, 0) + 1
        row.queue_s.observe(outcome.queued_s)
        if outcome.first_byte_s is not None:
            row.first_s.observe(outcome.first_byte_s)
        if outcome.usage is not None:
            row.prompt += outcome.usage.prompt_tokens
            row.completion += outcome.usage.completion_tokens
            served_s = outcome.total_s - outcome.queued_s
            if outcome.usage.completion_tokens and served_s > 0 and not outcome.broke:
                row.rate.observe(outcome.usage.completion_tokens / served_s)
        row.broken += outcome.broke

    def collect(self) -> Iterator[Metric]:
        by_deployment = ["deployment"]
        requests = CounterMetricFamily(
            "sbproxy_requests", "Requests by deployment and status.", labels=["deployment", "status"]
        )
        queue_s = HistogramMetricFamily(
            "sbctl_request_queue_seconds", "From a request's arrival to its place at an engine.", labels=by_deployment
        )
        first_s = HistogramMetricFamily(
            "sbctl_request_first_token_seconds",
            "From a request's arrival to the first byte of the engine's answer.",
            labels=by_deployment,
        )
        rate = HistogramMetricFamily(
            "sbctl_request_tokens_per_second",
            "Tokens written for one request, by the time from its place at an engine to its end.",
            labels=by_deployment,
        )
        tokens = CounterMetricFamily(
            "sbctl_request_tokens",
            "Tokens read (prompt) and written (completion), as engines count them.",
            labels=["deployment", "kind"],
        )
        broken = CounterMetricFamily(
            "sbctl_broken_streams", "Streams that an engine did not finish.", labels=by_deployment
        )
        for name, row in sorted(self._rows.items()):
            for status, count in sorted(row.statuses.items()):
                requests.add_metric([name, str(status)], count)
            row.queue_s.add_to(queue_s, name)
            row.first_s.add_to(first_s, name)
            row.rate.add_to(rate, name)
            tokens.add_metric([name, "prompt"], row.prompt)
            tokens.add_metric([name, "completion"], row.completion)
            broken.add_metric([name], row.broken)
        yield from (requests, queue_s, first_s, rate, tokens, broken)
