"""Whether a cluster did what it may while faults were put to it. Pure: a history in, sentences out.

What nodes say of themselves is told over again by several observers, so it is ordered by the numbers that the node itself gives (identity
epoch, boot epoch, counter) and not by when it was read.

    marks        revisions per node never fall and are never forgotten; one revision has one digest, everywhere
    numbers      one number of a node's snapshots stands for one content
    lease        lease epochs per node never fall; one epoch has one holder
    revoked      who was revoked serves nothing, counts nowhere and is placed nowhere, `Limits.propagation_s` after it was acknowledged
    published    what was acknowledged stays: where it was, and in the end everywhere
    engines      on a node never two processes for one replica; across nodes two of one slot only while a plan hands it over, or where
                 the other node is silent
    requests     without a byte of an answer: success, or the documented 503 with Retry-After, and that only because of a fault
    streams      what breaks off ends without [DONE], and breaks off only where something that it ran through was ended
    converged    after each fault everything is as it should be, within `Limits.converge_s`
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final

from sbctl.runtime.peer.codes import REFUSALS
from tests.simulators.cluster_events import Asked, Engines, Fault, History, Mark, Published, Revoked, Slot, Told, View

__all__ = ["DOCUMENTED", "RULES", "check", "converged", "overlaps", "views_of", "window_of"]

DOCUMENTED: Final = frozenset(
    {
        "queue_full",
        "queue_timeout",
        "no_ready_replica",
        "no_eligible_replica",
        "insufficient_capacity",
        "engine_unhealthy",
        "crash_loop",
        "stopped",
        "draining",
        "overloaded",
    }
) | frozenset(REFUSALS)
"""Reasons of a 503 (docs/limits.md), and of refusals between nodes (docs/reference/errors.md)."""


# --- marks, numbers, lease


def _falls(what: str, who: str, seen: Iterable[tuple[float, tuple[int, ...] | None]]) -> Iterator[str]:
    """`seen` in the order in which it was said."""
    for (_, before), (at_s, after) in pairwise(seen):
        if before is not None and (after is None or after < before):
            yield f"{who}: {what} fell from {before} to {after} at {at_s:.1f}"


def _by_number(history: History) -> dict[str, list[Told]]:
    """Of each node, one telling of each number, in their order."""
    found: dict[str, dict[tuple[int, int, int], Told]] = defaultdict(dict)
    for told in history.of(Told):
        found[told.node].setdefault(told.number, told)
    return {node: [numbers[each] for each in sorted(numbers)] for node, numbers in found.items()}


def views_of(history: History) -> dict[str, list[View]]:
    """By observer, in their order."""
    found: dict[str, list[View]] = defaultdict(list)
    for view in history.of(View):
        found[view.observer].append(view)
    return found


def _order(mark: Mark | None) -> tuple[int] | None:
    return None if mark is None else mark[:1]


def _marks(history: History) -> Iterator[str]:
    for node, views in views_of(history).items():
        yield from _falls("revision", node, ((view.at_s, _order(view.mark)) for view in views))
    for node, all_told in _by_number(history).items():
        yield from _falls("revision told", node, ((told.at_s, _order(told.mark)) for told in all_told))
    digests: dict[int, dict[str, str]] = defaultdict(dict)
    for event in history.events:
        if isinstance(event, Told | View | Published) and event.mark is not None:
            who = event.by if isinstance(event, Published) else event.observer
            digests[event.mark[0]].setdefault(event.mark[1], who)
    for revision, found in digests.items():
        if len(found) > 1:
            yield f"revision {revision} has {len(found)} digests, seen by {sorted(found.values())}"


def _numbers(history: History) -> Iterator[str]:
    said: dict[tuple[str, tuple[int, int, int]], Told] = {}
    for told in history.of(Told):
        first = said.setdefault((told.node, told.number), told)
        if (first.mark, first.assignment, first.live) != (told.mark, told.assignment, told.live):
            yield f"{told.node}: number {told.number} stands for two contents, told by {first.observer} and {told.observer}"


def _lease(history: History) -> Iterator[str]:
    for node, all_told in _by_number(history).items():
        yield from _falls("assignment", node, ((told.at_s, told.assignment) for told in all_told))
    holders: dict[int, set[str]] = defaultdict(set)
    for node, views in views_of(history).items():
        yield from _falls("plan", node, ((view.at_s, None if view.plan is None else view.plan[:1]) for view in views))
        for view in views:
            if view.plan is not None:
                holders[view.plan[0]].add(view.plan[1])
    for epoch, found in holders.items():
        if len(found) > 1:
            yield f"lease epoch {epoch} has {len(found)} holders: {sorted(found)}"


# --- revocations and publications


def _revoked(history: History) -> Iterator[str]:
    for one in history.of(Revoked):
        since_s = one.at_s + history.limits.propagation_s
        for event in history.events:
            if event.at_s <= since_s:
                continue
            match event:
                case Asked() if event.node == one.node and event.status == 200:
                    yield f"{one.node} served a request that began at {event.at_s:.1f}, revoked at {one.at_s:.1f}"
                case Told() if event.node == one.node and event.identity_epoch <= one.identity_epoch and event.counted:
                    yield f"{one.node} counts for {event.observer} at {event.at_s:.1f}, revoked at {one.at_s:.1f}"
                case View() if one.node in event.assigned and not _came_back(history, one, event.at_s):
                    yield f"{one.node} has replicas by the plan of {event.observer} at {event.at_s:.1f}, revoked at {one.at_s:.1f}"
                case _:
                    pass


def _came_back(history: History, revoked: Revoked, at_s: float) -> bool:
    return any(
        told.node == revoked.node and told.identity_epoch > revoked.identity_epoch and told.at_s <= at_s
        for told in history.of(Told)
    )


def _published(history: History) -> Iterator[str]:
    publications = history.of(Published)
    if not publications:
        return
    views = views_of(history)
    for one in publications:
        for view in views.get(one.by, ()):
            if view.at_s > one.at_s and (view.mark is None or view.mark[0] < one.mark[0]):
                yield f"{one.by} acknowledged revision {one.mark[0]} and shows {_order(view.mark)} at {view.at_s:.1f}"
                break
    last = max(publications, key=lambda one: one.mark[0]).mark
    gone = {one.node for one in history.of(Revoked)}
    for node in sorted(history.nodes - gone):
        held = views.get(node, ())
        if not held or held[-1].mark is None or held[-1].mark[0] < last[0]:
            yield f"{node} ends with {_order(held[-1].mark) if held else None}, acknowledged was revision {last[0]}"


# --- engines


def _engines(history: History) -> Iterator[str]:
    for seen in history.of(Engines):
        for slot, count in Counter(seen.running).items():
            if count > 1:
                yield f"{seen.node} runs {count} processes for {slot} at {seen.at_s:.1f}"
    yield from _across_nodes(history)


@dataclass(frozen=True, slots=True)
class _Span:
    """One node told of one live replica from here to there without a break."""

    node: str
    slot: Slot
    from_s: float
    to_s: float


def _spans(history: History) -> Iterator[_Span]:
    for node, all_told in _by_number(history).items():
        begun: dict[Slot, float] = {}
        until: dict[Slot, float] = {}
        boot = 0
        for told in [*all_told, None]:
            live = frozenset() if told is None or told.boot_epoch != boot else told.live
            for slot in [each for each in begun if each not in live]:
                yield _Span(node, slot, begun.pop(slot), until.pop(slot))
            if told is None:
                continue
            boot = told.boot_epoch
            for slot in told.live:
                begun.setdefault(slot, told.heard_s)
                until[slot] = told.heard_s


def _across_nodes(history: History) -> Iterator[str]:
    by_deployment: dict[str, list[_Span]] = defaultdict(list)
    for span in _spans(history):
        by_deployment[span.slot[0]].append(span)
    for deployment, spans in by_deployment.items():
        for one, other in combinations(spans, 2):
            from_s, to_s = max(one.from_s, other.from_s), min(one.to_s, other.to_s)
            if from_s >= to_s:
                continue
            if deployment in history.exclusive and one.slot[1] != other.slot[1]:
                yield f"{deployment}: generations {one.slot[1]} and {other.slot[1]} run side by side from {from_s:.1f} to {to_s:.1f}"
            if one.slot == other.slot and one.node != other.node and not _is_handed_over(history, one, other):
                yield f"{one.slot} runs on {one.node} and {other.node} from {from_s:.1f} to {to_s:.1f}"


def _is_handed_over(history: History, one: _Span, other: _Span) -> bool:
    """Whether anybody's plan was handing the deployment over meanwhile, or took one of the nodes for silent."""
    from_s, to_s = max(one.from_s, other.from_s), min(one.to_s, other.to_s)
    slack_s = history.limits.waits_s
    return any(
        one.slot[0] in view.handing or view.absent & {one.node, other.node}
        for view in history.of(View)
        if from_s - slack_s <= view.at_s <= to_s + slack_s
    )


# --- requests


def window_of(history: History, fault: Fault) -> tuple[float, float]:
    """From its beginning until everything had converged, or for as long as it may take."""
    converged_s = converged(history, fault)
    return fault.at_s, fault.ended_s + (history.limits.converge_s if converged_s is None else converged_s)


def overlaps(asked: Asked, window: tuple[float, float], slack_s: float = 0.0) -> bool:
    """Whether a request was under way within it."""
    return asked.ended_s >= window[0] and asked.at_s <= window[1] + slack_s


def _ends_gateway(history: History, asked: Asked) -> bool:
    slack_s = history.limits.waits_s
    return any(
        asked.gateway in fault.nodes and overlaps(asked, (fault.at_s, fault.ended_s), slack_s)
        for fault in history.of(Fault)
    )


def _requests(history: History) -> Iterator[str]:
    windows = [window_of(history, fault) for fault in history.of(Fault) if fault.refuses]
    for asked in history.of(Asked):
        what = f"request at {asked.gateway} from {asked.at_s:.1f} to {asked.ended_s:.1f}"
        match asked.outcome:
            case "refused" if asked.code not in DOCUMENTED:
                yield f"{what}: 503 {asked.code or '(no reason)'}, which is not documented"
            case "refused" if not asked.retry_after:
                yield f"{what}: 503 {asked.code} without Retry-After"
            case "refused" if not any(overlaps(asked, window) for window in windows):
                yield f"{what}: 503 {asked.code}, and nothing was wrong"
            case "failed" if not (asked.status == 0 and _ends_gateway(history, asked)):
                yield f"{what}: {asked.status} {asked.code} {asked.problem}"
            case _:
                pass


def _streams(history: History) -> Iterator[str]:
    faults = [fault for fault in history.of(Fault) if fault.nodes]
    for asked in history.of(Asked):
        if asked.outcome != "cut":
            continue
        what = f"answer of {asked.gateway} from {asked.at_s:.1f} to {asked.ended_s:.1f}"
        if asked.terminated:
            yield f"{what} is not whole and ends with [DONE]: {asked.code} {asked.problem}"
        if not any(
            overlaps(asked, (fault.at_s, fault.ended_s), history.limits.waits_s)
            and (not asked.node or asked.node in fault.nodes or asked.gateway in fault.nodes)
            for fault in faults
        ):
            yield f"{what} broke off, and nothing that it ran through was ended: {asked.code} {asked.problem}"


# --- after faults


def converged(history: History, fault: Fault) -> float | None:
    """Seconds from the fault's end until everything was as it should be, and stayed so until the next one began; None: never."""
    until_s = min((each.at_s for each in history.of(Fault) if each.at_s > fault.ended_s), default=float("inf"))
    views = [view for view in history.of(View) if fault.ended_s < view.at_s < until_s and view.settled is not None]
    unsettled_s = max((view.at_s for view in views if not view.settled), default=fault.ended_s)
    good = [view.at_s for view in views if view.at_s > unsettled_s]
    return good[0] - fault.ended_s if good else None


def _converged(history: History) -> Iterator[str]:
    for fault in history.of(Fault):
        took_s = converged(history, fault)
        if took_s is None:
            yield f"{fault.name}: not converged after its end at {fault.ended_s:.1f}"
        elif took_s > history.limits.converge_s:
            yield f"{fault.name}: converged {took_s:.1f} s after its end, {history.limits.converge_s:g} s are allowed"


RULES: Final[Mapping[str, Callable[[History], Iterator[str]]]] = {
    "marks": _marks,
    "numbers": _numbers,
    "lease": _lease,
    "revoked": _revoked,
    "published": _published,
    "engines": _engines,
    "requests": _requests,
    "streams": _streams,
    "converged": _converged,
}


def check(history: History) -> list[str]:
    """Every violation, by its rule; a rule says the same of one thing once."""
    return [f"{name}: {said}" for name, rule in RULES.items() for said in dict.fromkeys(rule(history))]
