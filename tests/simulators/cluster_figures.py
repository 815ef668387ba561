"""What faults cost: requests that failed, were refused or tried again, and how long it took until all was as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.simulators.cluster_events import Asked, Fault, History, View
from tests.simulators.cluster_history import converged, overlaps, views_of, window_of

__all__ = ["Figures", "figures", "report"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one fault, from its beginning until everything had converged. `retried`: by gateways, before the first byte. `longest_s`: the longest that
    a request took that succeeded."""

    fault: str
    requests: int
    ok: int
    refused: int
    cut: int
    failed: int
    retried: int
    lasted_s: float
    converged_s: float | None
    longest_s: float
    codes: Mapping[str, int]


def figures(history: History) -> list[Figures]:
    return [_of(history, fault) for fault in history.of(Fault)]


def _of(history: History, fault: Fault) -> Figures:
    window = window_of(history, fault)
    asked = [each for each in history.of(Asked) if overlaps(each, window)]
    counts = Counter(each.outcome for each in asked)
    return Figures(
        fault.name,
        requests=len(asked),
        ok=counts["ok"],
        refused=counts["refused"],
        cut=counts["cut"],
        failed=counts["failed"],
        retried=sum(_grown(views, window) for views in views_of(history).values()),
        lasted_s=fault.ended_s - fault.at_s,
        converged_s=converged(history, fault),
        longest_s=max((each.ended_s - each.at_s for each in asked if each.outcome == "ok"), default=0.0),
        codes=Counter(each.code for each in asked if each.code),
    )


def _grown(views: Iterable[View], window: tuple[float, float]) -> int:
    """How far a counter rose meanwhile; one that begins anew begins at nothing."""
    counts = [view.failovers for view in views if view.failovers is not None and window[0] <= view.at_s <= window[1]]
    return sum(after - before if after >= before else after for before, after in pairwise(counts))


def report(history: History) -> str:
    """The figures as a table."""
    lines = [
        f"{'fault':<34} {'lasted':>7} {'asked':>6} {'ok':>6} {'503':>5} {'cut':>4} {'failed':>6} {'retried':>7} {'longest':>8} {'converged':>9}"
    ]
    for one in figures(history):
        took = "never" if one.converged_s is None else f"{one.converged_s:.1f} s"
        codes = "".join(f" {code}={count}" for code, count in sorted(one.codes.items()))
        lines.append(
            f"{one.fault[:34]:<34} {one.lasted_s:>5.1f} s {one.requests:>6} {one.ok:>6} {one.refused:>5} {one.cut:>4} {one.failed:>6} "
            f"{one.retried:>7} {one.longest_s:>6.2f} s {took:>9}{codes}"
        )
    total = Counter(each.outcome for each in history.of(Asked))
    lines.append(f"in all: {sum(total.values())} requests, {dict(total)}")
    return "\n".join(lines)
