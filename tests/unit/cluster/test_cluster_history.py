"""The checker of a cluster's history: what is good passes, and each rule catches what it is there for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators.cluster_events import (
    Asked,
    Engines,
    Event,
    Fault,
    History,
    Limits,
    Published,
    Revoked,
    Told,
    View,
)
from tests.simulators.cluster_figures import figures, report
from tests.simulators.cluster_history import RULES, check

ONE, TWO = (1, "a" * 64), (2, "b" * 64)
Q0, Q1 = ("q", 1, 0), ("q", 1, 1)
OK = Asked(1.0, 1.2, "gw", 200, 1.1, stream=True, done=True, terminated=True)
REFUSED = Asked(11.0, 11.1, "gw", 503, code="queue_full", retry_after=True)
CUT = Asked(9.5, 11.0, "gw", 200, 9.6, stream=True, code="upstream_failed")
KILL = Fault(10.0, 20.0, "kill w1", frozenset({"w1"}))


def told(at_s: float, node: str = "w1", counter: int = 1, **more: object) -> Told:
    fields: dict[str, object] = {"mark": ONE, "assignment": (1, 1)}
    return Told(at_s, "gw", node, at_s, 1, 1, counter, **{**fields, **more})  # type: ignore[arg-type]


def view(at_s: float, observer: str = "gw", **more: object) -> View:
    fields: dict[str, object] = {"mark": ONE, "plan": (1, "gw"), "settled": True}
    return View(at_s, observer, **{**fields, **more})  # type: ignore[arg-type]


GOOD: tuple[Event, ...] = (
    view(0.5), view(0.5, "w1", plan=None, settled=None), view(0.5, "w2", plan=None, settled=None),
    told(1.0, counter=1, live=frozenset({Q0})), told(1.0, "w2", live=frozenset({Q1})),
    OK,
    Engines(1.0, "w1", (Q0,)),
    Published(0.4, "gw", ONE),
    KILL, CUT, REFUSED,
    replace(OK, at_s=10.5, ended_s=12.0),
    view(10.5, settled=False, absent=frozenset({"w1"}), failovers=1), view(12.0, settled=False, failovers=4),
    told(21.0, counter=2, live=frozenset({Q0})),
    view(22.0, settled=False, failovers=4), view(23.0), view(40.0),
    Published(41.0, "gw", TWO),
    view(42.0, mark=TWO), view(42.0, "w1", mark=TWO, settled=None), view(42.0, "w2", mark=TWO, settled=None),
)  # fmt: skip

LATE = Fault(43.0, 44.0, "again")

BAD: dict[str, tuple[str, tuple[Event, ...]]] = {
    "a revision fell on a node": ("marks", (view(43.0, "w1"), view(44.0, "w1", mark=TWO))),
    "a node forgot its bundle": ("marks", (view(43.0, "w1", mark=None), view(44.0, "w1", mark=TWO))),
    "a later snapshot has an older revision": ("marks", (told(30.0, counter=5, mark=TWO), told(29.0, counter=6))),
    "two digests of one revision": ("marks", (told(30.0, counter=5, mark=(2, "c" * 64)),)),
    "two snapshots with one number": ("numbers", (told(2.0, counter=1, live=frozenset({Q1})),)),
    "an older assignment obeyed": ("lease", (told(30.0, counter=5, assignment=(2, 1)), told(31.0, counter=6))),
    "an assignment forgotten": ("lease", (told(31.0, counter=6, assignment=None),)),
    "an older plan shown": ("lease", (view(43.0, mark=TWO, plan=(3, "gw")), view(44.0, mark=TWO))),
    "two holders of one epoch": ("lease", (view(43.0, mark=TWO, plan=(1, "gw2")),)),
    "a revoked node serves": ("revoked", (Revoked(1.0, "w1"), replace(OK, at_s=30.0, ended_s=31.0, node="w1"))),
    "a revoked node counts": ("revoked", (Revoked(1.0, "w1"), told(30.0, counter=9))),
    "a revoked node is placed on": ("revoked", (Revoked(1.0, "w1"), view(43.0, mark=TWO, assigned=frozenset({"w1"})))),
    "an authority forgot what it acknowledged": ("published", (Published(42.5, "gw", (3, "d" * 64)), view(43.0, mark=TWO))),
    "a node never gets what was acknowledged": ("published", (Published(42.5, "gw2", (3, "d" * 64)),)),
    "two processes for one replica": ("engines", (Engines(5.0, "w2", (Q1, Q1)),)),
    "one replica on two nodes": (
        "engines",
        (told(1.5, "w2", 2, live=frozenset({Q0})), told(9.0, "w2", 3, live=frozenset({Q0})), told(9.0, counter=2, live=frozenset({Q0}))),
    ),
    "recreate runs two generations": (
        "engines",
        tuple(told(at_s, "w2", counter, live=frozenset({("x", counter // 10, 0)})) for at_s, counter in ((1.5, 20), (3.0, 21)))
        + tuple(told(at_s, "w3", counter, live=frozenset({("x", 1, 0)})) for at_s, counter in ((2.0, 2), (4.0, 3))),
    ),
    "a request ends with nothing": ("requests", (Asked(30.0, 31.0, "gw", problem="ConnectionResetError()"),)),
    "a request gets a bare 500": ("requests", (Asked(11.0, 11.1, "gw", 500, code="internal"),)),
    "a request gets a gateway's 502": ("requests", (Asked(11.0, 11.1, "gw", 502, code="upstream_failed"),)),
    "a 503 that no page has": ("requests", (replace(REFUSED, code="somehow"),)),
    "a 503 without Retry-After": ("requests", (replace(REFUSED, retry_after=False),)),
    "a 503 and nothing is wrong": ("requests", (replace(REFUSED, at_s=35.0, ended_s=35.1),)),
    "a 503 where none is allowed": ("requests", (Fault(43.0, 44.0, "roll", refuses=False), replace(REFUSED, at_s=43.5, ended_s=43.6), view(45.0, mark=TWO))),
    "a broken stream ends as if it were whole": ("streams", (replace(CUT, terminated=True),)),
    "a stream breaks and nothing was ended": ("streams", (replace(CUT, at_s=30.0, ended_s=31.0),)),
    "a stream of another node breaks": ("streams", (replace(CUT, node="w2"),)),
    "a fault is never got over": ("converged", (LATE, view(45.0, mark=TWO, settled=False))),
    "it is got over, and breaks again": ("converged", (LATE, view(45.0, mark=TWO), view(46.0, mark=TWO, settled=False))),
    "nobody looks after a fault": ("converged", (LATE,)),
    "it takes too long": ("converged", (LATE, view(45.0, mark=TWO, settled=False), view(90.0, mark=TWO))),
}  # fmt: skip


def history(*events: Event) -> History:
    return History((*GOOD, *events), frozenset({"gw", "w1", "w2"}), frozenset({"x"}), Limits(converge_s=30.0))


def test_what_is_allowed_passes() -> None:
    assert check(history()) == []


@pytest.mark.parametrize("name", BAD)
def test_each_violation_is_caught_by_its_rule_alone(name: str) -> None:
    rule, events = BAD[name]
    assert {said.partition(":")[0] for said in check(history(*events))} == {rule}


def test_every_rule_is_seen_to_catch_something() -> None:
    assert {rule for rule, _ in BAD.values()} == set(RULES)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((Asked(43.5, 43.6, "gw", problem="ConnectionRefusedError()"), Fault(43.0, 44.0, "kill gw", frozenset({"gw"})), view(45.0, mark=TWO)),
                     id="who asks a dead gateway gets nothing from it"),
        pytest.param((Revoked(25.0, "w1"), told(32.0, counter=9, counted=False)), id="a revoked node is seen and does not count"),
        pytest.param((Revoked(25.0, "w1"), Told(32.0, "gw", "w1", 32.0, 2, 1, 1, ONE, (1, 1))), id="it came back with another identity"),
        pytest.param((view(43.0, mark=TWO, handing=frozenset({"q"})), *(told(at_s, node, 30 + at, mark=TWO, live=frozenset({Q0}))
                     for at, at_s in enumerate((42.5, 44.0)) for node in ("w1", "w2"))), id="a replica is handed over"),
        pytest.param((told(43.0, counter=9, live=frozenset({Q0})), Told(43.0, "gw", "w1", 43.0, 1, 2, 1, ONE, (1, 1))), id="a new start counts from one"),
    ],
)  # fmt: skip
def test_what_looks_like_a_violation_and_is_none(events: tuple[Event, ...]) -> None:
    assert check(history(*events)) == []


def test_figures_of_a_fault_are_those_of_the_time_until_it_was_got_over() -> None:
    (one,) = figures(history())
    assert (one.requests, one.ok, one.refused, one.cut, one.failed) == (3, 1, 1, 1, 0)
    assert (one.retried, one.lasted_s, one.converged_s, one.longest_s) == (3, 10.0, 3.0, 1.5)
    assert dict(one.codes) == {"queue_full": 1, "upstream_failed": 1}
    assert "kill w1" in report(history())
    assert "4 requests" in report(history())
