"""Metrics: what a request adds, under labels that no request can make."""

from __future__ import annotations

import pytest

from sbctl.runtime.gateway.events import Usage
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.metrics import RuntimeMetrics


def _value(text: str, line: str) -> float:
    return next(float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line + " "))


@pytest.mark.parametrize(
    ("tokens", "queued_s", "total_s", "broke", "counted"),
    [(50, 1.0, 2.0, False, 1), (0, 0.0, 1.0, False, 0), (50, 1.0, 1.0, False, 0), (50, 0.0, 1.0, True, 0)],
)
def test_a_request_adds_its_wait_its_first_byte_and_its_rate(
    tokens: int, queued_s: float, total_s: float, broke: bool, counted: int
) -> None:
    metrics = RuntimeMetrics()
    usage = Usage(prompt_tokens=7, completion_tokens=tokens)
    metrics.finished(Outcome("q", 200, queued_s, 0.5, total_s, usage, broke))
    text = metrics.render().decode()
    assert _value(text, 'sbctl_request_queue_seconds_sum{deployment="q"}') == queued_s
    assert _value(text, 'sbctl_request_first_token_seconds_count{deployment="q"}') == 1
    assert _value(text, 'sbctl_request_tokens_per_second_count{deployment="q"}') == counted
    if counted:
        assert _value(text, 'sbctl_request_tokens_per_second_sum{deployment="q"}') == tokens / (total_s - queued_s)
    assert _value(text, 'sbproxy_requests_total{deployment="q",status="200"}') == 1
