"""`status`, `logs`, `events` on a served host, by the real `sbctl`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulators.operator_world import OperatorWorld, new_world, until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def fleet(session_world: OperatorWorld) -> Iterator[OperatorWorld]:
    with new_world() as made:
        made.has_the_programs_of(session_world)
        made.sbctl("apply", "--yes", expect=0)
        until(lambda: any(row["state"] == "ready" for row in made.status()), "the engine is ready")
        yield made


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_served_host_is_healthy_and_told_in_80_columns(fleet: OperatorWorld) -> None:
    (host,) = fleet.sbctl("status", "--format", "json", expect=0).json()["hosts"]
    assert (host["host"], host["condition"], host["revision"]) == ("local", "healthy", host["recorded_revision"])
    (deployment,) = host["deployments"]
    assert (deployment["deployment"], deployment["state"], deployment["ready"]) == ("chat", "ready", 1)
    assert deployment["memory_bytes"] > 1_000_000
    shown = fleet.sbctl("status", expect=0)
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "1 host: 1 healthy" in shown.text


def test_events_tell_what_happened_in_its_order(fleet: OperatorWorld) -> None:
    told = _lines(fleet.sbctl("events", "--format", "json", expect=0).out)
    kinds = [event["kind"] for event in told]
    order = ["runtime.started", "engine.started", "bundle.accepted"]
    assert sorted(order, key=kinds.index) == order
    assert "runtime.activated" in kinds
    assert {event["host"] for event in told} == {"local"}
    about = _lines(fleet.sbctl("events", "--deployment", "chat", "--format", "json", expect=0).out)
    assert {event["deployment"] for event in about} == {"chat"}
    assert [event["message"] for event in about if event["kind"] == "replica.changed"][-1] == "preparing → ready"
    assert fleet.sbctl("events", "--since", "0s", expect=0).out == ""


def test_logs_hold_the_runtime_and_what_engines_print(fleet: OperatorWorld) -> None:
    told = _lines(fleet.sbctl("logs", "--format", "json", expect=0).out)
    assert any(line["source"] == "runtime" and line.get("fields", {}).get("event") == "ready" for line in told)
    engine = _lines(fleet.sbctl("logs", "--deployment", "chat", "--format", "json", expect=0).out)
    assert any(line["source"] == "engine" and line["deployment"] == "chat" for line in engine)
    assert len(_lines(fleet.sbctl("logs", "-n", "2", "--format", "json", expect=0).out)) == 2


def test_the_end_of_an_engine_is_seen_by_who_follows_and_ctrl_c_ends_that(fleet: OperatorWorld) -> None:
    following = fleet.start("events", "-f", "-n", "1")
    following.until_said("local")
    fleet.engine.kill()
    following.until_said("engine.crashed chat/0")
    following.signal(signal.SIGINT)
    ended = following.finish()
    assert ended.code == 130, ended
    assert "Traceback" not in ended.err
    until(lambda: any(row["state"] == "ready" for row in fleet.status()), "the engine is back")


def test_a_runtime_that_is_down_is_degraded_and_still_tells_its_past(fleet: OperatorWorld) -> None:
    (supervisor,) = fleet.running("main supervise")
    supervisor.terminate()
    until(lambda: not fleet.running("main serve"), "the runtime ended")
    degraded = fleet.sbctl("status", expect=8)
    assert "the runtime does not run" in degraded.text
    told = _lines(fleet.sbctl("events", "--format", "json", expect=0).out)
    assert told[-1]["kind"] == "runtime.stopped"
    assert "stopped" in fleet.sbctl("logs", "-n", "5", expect=0).out


def test_a_wrong_question_is_refused_before_any_host_is_asked(fleet: OperatorWorld) -> None:
    assert "no stretch of time" in fleet.sbctl("logs", "--since", "yesterday", expect=64).text
    assert 'there is no host "gpu-z"' in fleet.sbctl("status", "gpu-z", expect=3).text
