"""Events: one vocabulary, one JSON form, sinks that fail alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from sbctl.apply import events
from sbctl.apply.events import (
    CancelRequested,
    ChangeDone,
    ChangeFailed,
    ChangeSkipped,
    Event,
    Heartbeat,
    HostFinished,
    HostStarted,
    MultiSink,
    NodeProgressed,
    RolloutPaused,
    RunFinished,
    RunningNow,
    RunStarted,
    Stamped,
    StepFinished,
    StepProgress,
    StepStarted,
    event_document,
)
from sbctl.base.errors import HostError
from sbctl.base.ids import Address

ENGINE = Address("engine", "a", "llama_cpp")
ERROR = HostError("host.injected", "no", place="a", next_step="repair it")

ONE_OF_EACH: list[Event] = [
    RunStarted(7, "apply", ("a", "b"), 3, 4),
    HostStarted("a", 2, 3),
    StepStarted("a", ENGINE, "k", "engine.install", "install engine", 1, 2),
    StepProgress("a", ENGINE, "k", 10, None),
    StepFinished("a", ENGINE, "k", "install engine", "not_done", 1.23456, ERROR),
    ChangeDone("a", ENGINE, "create", 2.0),
    ChangeFailed("a", ENGINE, "create", "failed", "install engine", ERROR),
    ChangeSkipped("a", ENGINE, "create", "skipped", "x is not done"),
    HostFinished("a", "failed", {"done": 1}, ("chat failed",)),
    Heartbeat((RunningNow("a", "install engine", 12.0),)),
    CancelRequested("SIGINT", hard=False),
    RolloutPaused(30.0, ("b", "c")),
    NodeProgressed("a", ENGINE, "k", "w1", "accepted", "waits for chat"),
    RunFinished(7, "partial", 1, {"done": 1}, {"a": "failed"}, 3.0),
]


def stamped(event: Event, sequence: int = 1) -> Stamped:
    return Stamped(event, sequence, datetime(2026, 11, 29, 12, 0, 5, tzinfo=UTC), 5.00049)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.type)
def test_every_event_is_json_with_the_envelope_first(event: Event) -> None:
    document = event_document(stamped(event))
    assert list(document)[:5] == ["schema_version", "type", "sequence", "at", "elapsed_s"]
    assert document["schema_version"] == 1
    assert document["at"] == "2026-11-29T12:00:05Z"
    assert json.loads(json.dumps(document)) == document


def test_every_event_type_has_an_example_and_a_name_of_its_own() -> None:
    names = {event.type for event in ONE_OF_EACH}
    classes = [value for value in vars(events).values() if isinstance(value, type) and hasattr(value, "type")]
    assert len(names) == len(classes) == len(ONE_OF_EACH)


def test_errors_addresses_and_numbers_in_their_json_form() -> None:
    document = event_document(stamped(ONE_OF_EACH[4]))
    assert document["address"] == "engine.a/llama_cpp"
    assert document["duration_s"] == 1.235
    assert document["error"]["code"] == "host.injected"
    assert document["error"]["next_step"] == "repair it"


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_a_sink_that_cannot_write_is_left_out_and_the_others_go_on(error: Exception) -> None:
    heard: list[Any] = []

    class Good:
        def emit(self, stamped: Stamped) -> None:
            heard.append(stamped)

    class Bad:
        tried = 0

        def emit(self, stamped: Stamped) -> None:
            Bad.tried += 1
            raise error

    sink = MultiSink([Bad(), Good()])
    for number in range(3):
        sink.emit(stamped(ONE_OF_EACH[0], number))
    assert (Bad.tried, len(heard)) == (1, 3)
