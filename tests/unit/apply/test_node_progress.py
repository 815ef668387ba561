"""Nodes of a cluster while its bundle is published: a line each as they get further, and what to do about those that stay behind."""

from __future__ import annotations

import io
import json
from typing import Any, get_args

import pytest
from rich.console import Console

from sbctl.apply.emitter import Emitter
from sbctl.apply.events import NodeProgressed, Stamped, StepProgress
from sbctl.apply.outcome import nodes_behind
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError
from sbctl.base.ids import Address
from sbctl.base.progress import tell_words
from sbctl.node.cluster_messages import NodeProgress, NodeState, read_note
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.views.apply_lines import event_line
from sbctl.views.ci_cases import apply_report
from sbctl.views.ci_formats import github_text, junit_text
from sbctl.views.live import JsonView, LiveView
from tests.simulators.apply_results import PARTIAL

BUNDLE = Address("bundle", "gw-a")
NOT_READY = HostError(
    "cluster.not_ready",
    "revision 4 is published, and not everything runs yet: w2 is failed: q: crash_loop",
    place="gw-a",
    next_step="the cluster goes on by itself",
    detail={
        "nodes": {"w1": {"state": "ready", "detail": ""}, "w2": {"state": "failed", "detail": "q: crash_loop"}},
        "behind": {"w2": {"state": "failed", "detail": "q: crash_loop", "next_step": "sbctl logs w2 says why"}},
    },
)


def _step(method: Method, host: str = "gw-a") -> Step:
    return Step(key=f"bundle.{host}#1", method=method, params={}, title="publish", retry="safe", deadline_s=60)


class Heard:
    def __init__(self) -> None:
        self.stamped: list[Stamped] = []

    def emit(self, stamped: Stamped) -> None:
        self.stamped.append(stamped)


@pytest.mark.parametrize("state", get_args(NodeState))
@pytest.mark.parametrize("detail", ["", "waits for chat", "q: engine (of two)\nin lines", ")("])
def test_what_a_node_is_at_comes_out_of_its_words_as_it_went_in(state: NodeState, detail: str) -> None:
    one = NodeProgress(state=state, detail=detail)
    assert read_note(one.note("gpu-1.b")) == ("gpu-1.b", one)
    assert one.next_step("gpu-1.b")


@pytest.mark.parametrize("words", ["working", "w1: flying", "fetching 3 of 4", ": ready", "w1 : ready", "w1: ready(x)"])
def test_other_words_are_of_no_node(words: str) -> None:
    assert read_note(words) is None


def test_each_node_is_told_once_however_many_authorities_tell_it() -> None:
    heard = Heard()
    emitter = Emitter(heard, SYSTEM_CLOCK)
    for host in ("gw-a", "gw-b"):
        report = emitter.progress(host, Address("bundle", host), _step(Method.CLUSTER_PUBLISH, host))
        report(0, 2)
        for words in ("w1: accepted (waits for q)", "w1: accepted (waits for q)", "working", "w1: ready"):
            tell_words(report, words)
    told = [one.event for one in heard.stamped if isinstance(one.event, NodeProgressed)]
    assert [(one.host, one.node, one.state) for one in told[:2]] == [
        ("gw-a", "w1", "accepted"),
        ("gw-a", "w1", "ready"),
    ]
    assert sum(isinstance(one.event, StepProgress) for one in heard.stamped) == 2
    other = emitter.progress("gw-a", BUNDLE, _step(Method.BUNDLE_APPLY))
    tell_words(other, "w9: ready")
    tell_words(lambda _done, _total: None, "w9: ready")
    assert all(one.event.node != "w9" for one in heard.stamped if isinstance(one.event, NodeProgressed))


def test_a_node_has_a_line_of_its_own_in_every_view() -> None:
    event = NodeProgressed("gw-a", BUNDLE, "k", "w2", "failed", "q: crash_loop\x1b[31m")
    stamped = Stamped(event, 1, SYSTEM_CLOCK.now(), 1.0)
    line = event_line(stamped)
    assert line is not None
    assert line.startswith("gw-a: w2 has failed: q: crash_loop")
    out = io.StringIO()
    JsonView(out).emit(stamped)
    document: dict[str, Any] = json.loads(out.getvalue())
    assert (document["type"], document["node"], document["state"]) == ("node_progressed", "w2", "failed")
    assert "\x1b" not in document["message"]
    screen = io.StringIO()
    LiveView(Console(file=screen, width=100, force_terminal=True), auto_refresh=False).emit(stamped)
    assert "w2 has failed" in screen.getvalue()
    assert "\x1b[31mq" not in screen.getvalue()


def test_who_stays_behind_is_a_case_of_its_own_with_its_next_step() -> None:
    from dataclasses import replace

    assert [one.node for one in nodes_behind(NOT_READY)] == ["w2"]
    assert nodes_behind(HostError("other", "else", detail=NOT_READY.detail)) == ()
    failed = replace(PARTIAL.changes[0], address=BUNDLE, status="failed", cause=NOT_READY)
    report = apply_report(replace(PARTIAL, changes=(failed, replace(failed, address=Address("bundle", "gw-b")))))
    behind = [case for case in report.cases if case.name.startswith("node.")]
    assert [(case.name, case.outcome, case.detail) for case in behind] == [
        ("node.w2", "failed", ("sbctl logs w2 says why",))
    ]
    assert "node.w2" in github_text(report)
    assert 'name="node.w2"' in junit_text(report)
