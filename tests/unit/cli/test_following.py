"""Following a fleet: in order, over a lost host, without holding up the others, and to a clean end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import pytest

from sbctl.base.errors import HostError, InputError, SbctlError, UnreachableError, UsageError
from sbctl.cli.fleet_records import ask_events, ask_logs, seconds_of
from sbctl.cli.following import Answer, Back, Lost, Told, followed, read_once
from sbctl.node.records import LogLine, NodeEvent
from sbctl.remote.session import HostSession
from sbctl.views.record_views import event_line, log_document, log_line

T = TypeVar("T")
LOST = UnreachableError("remote.lost", "the connection was lost", next_step="look at the host")


class Scripted:
    """Hosts that give these answers one after another; the last one is given again and again."""

    def __init__(self, scripts: Mapping[str, Sequence[Answer[str, int] | SbctlError]]) -> None:
        self._scripts = {host: iter(script) for host, script in scripts.items()}
        self.cursors: dict[str, list[int | None]] = {host: [] for host in scripts}
        self.is_closed = False

    def ask(self, host: str, work: Callable[[HostSession], T]) -> T:
        return work(cast("HostSession", host))

    def answer(self, session: HostSession, cursor: int | None) -> Answer[str, int]:
        host = str(session)
        self.cursors[host].append(cursor)
        answer = next(self._scripts[host], Answer((), -1))
        if isinstance(answer, SbctlError):
            raise answer
        return answer

    def close(self) -> None:
        self.is_closed = True


def brief(stop: threading.Event, _seconds: float) -> bool:
    """No test waits for the pauses of a person."""
    return stop.wait(0.001)


def taken(stream: Iterator[Any], count: int) -> list[Any]:
    return [next(stream) for _ in range(count)]


def test_a_lost_host_is_said_once_and_goes_on_where_it_was() -> None:
    fleet = Scripted({"a": [Answer(("one",), 1), LOST, LOST, Answer(("two",), 2), Answer((), 2, lost=True)]})
    stream = followed(fleet, ["a"], fleet.answer, pause=brief)
    assert taken(stream, 5) == [
        Told("a", ("one",)),
        Lost("a", LOST),
        Back("a"),
        Told("a", ("two",)),
        Told("a", (), True),
    ]
    stream.close()
    assert fleet.cursors["a"][:5] == [None, 1, 1, 1, 2]
    assert fleet.is_closed


def test_a_host_that_stays_away_holds_up_nobody() -> None:
    fleet = Scripted({"dead": [LOST] * 10_000, "a": [Answer((str(number),), number) for number in range(20)]})
    stream = followed(fleet, ["dead", "a"], fleet.answer, pause=brief)
    seen = taken(stream, 21)
    stream.close()
    assert [event.items for event in seen if isinstance(event, Told)] == [(str(number),) for number in range(20)]
    assert sum(isinstance(event, Lost) for event in seen) == 1


def test_a_host_that_hangs_does_not_hold_up_the_end() -> None:
    hanging = threading.Event()

    class Hanging(Scripted):
        def ask(self, host: str, work: Callable[[HostSession], T]) -> T:
            if host == "stuck":
                hanging.wait(60)
            return super().ask(host, work)

        def close(self) -> None:
            super().close()
            hanging.set()

    fleet = Hanging({"stuck": [], "a": [Answer(("x",), 1)]})
    stream = followed(fleet, ["stuck", "a"], fleet.answer, pause=brief)
    assert taken(stream, 1) == [Told("a", ("x",))]
    stream.close()
    assert fleet.is_closed


def test_reading_once_tells_what_came_and_who_did_not_answer() -> None:
    fleet = Scripted({"a": [Answer(("x", "y"), 2)], "b": [LOST]})
    assert read_once(fleet, ["a", "b"], fleet.answer, parallelism=4) == ({"a": ["x", "y"]}, {"b": LOST})


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("3d", 259_200)]
)
def test_stretches_of_time(text: str | None, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1w", "-5m", "1.5h", "12345678", "٣m"])
def test_what_is_no_stretch_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        seconds_of(text)


class Session:
    host = "a"

    def __init__(self, answer: Mapping[str, Any] | SbctlError) -> None:
        self._answer = answer
        self.asked: dict[str, Any] = {}

    def call(self, method: str, params: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        self.asked = {"method": method, **params}
        if isinstance(self._answer, SbctlError):
            raise self._answer
        return self._answer


def test_the_first_question_has_the_filter_and_later_ones_the_cursor() -> None:
    session = Session({"events": [], "cursor": 7})
    ask = ask_events(limit=5, since_s=60, deployment="chat")
    assert ask(cast("HostSession", session), None).cursor == 7
    assert session.asked == {"method": "events.read", "after": None, "limit": 5, "since_s": 60, "deployment": "chat"}
    ask(cast("HostSession", session), 7)
    assert (session.asked["after"], session.asked["since_s"]) == (7, None)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"lines": [{"source": "moon", "text": "x"}], "cursor": {}}, "host.answer_invalid"),
        ({"lines": [{"source": "engine", "text": "x" * 10_000}], "cursor": {}}, "host.answer_invalid"),
        ({"lines": []}, "host.answer_invalid"),
        (InputError("node.unknown_method", "this host answers no method"), "node.too_old"),
        (LOST, "remote.lost"),
    ],
)
def test_answers_that_make_no_sense_are_refused_by_host(answer: Any, code: str) -> None:
    with pytest.raises((HostError, UnreachableError)) as caught:
        ask_logs(lines=1, since_s=None, deployment=None)(cast("HostSession", Session(answer)), None)
    assert caught.value.code == code


def test_people_read_sentences_and_machines_read_fields() -> None:
    text = json.dumps({"at": "2026-11-29T12:00:00Z", "level": "warning", "part": "replica", "event": "replica failed",
                       "deployment": "chat", "replica": 1, "code": "crash_loop", "error": "it ended"})  # fmt: skip
    line = LogLine(at="2026-11-29T12:00:00Z", source="runtime", deployment="chat", replica=1, text=text)
    assert log_line("a", line, 3) == (
        '2026-11-29T12:00:00Z a   | runtime: warning replica: replica failed chat/1 code=crash_loop error="it ended"\n'
    )
    assert log_document("a", line)["fields"]["code"] == "crash_loop"
    raw = LogLine(source="engine", deployment="chat", replica=0, text="{broken \x1b[2J")
    assert log_line("a", raw, 1) == f"{'-'.ljust(20)} a | chat/0: {{broken \\x1b[2J\n"
    event = NodeEvent(
        seq=1, at="2026-11-29T12:00:00Z", kind="engine.crashed", message="exit\ncode 1", deployment="chat", replica=0
    )
    assert event_line("gpu-a", event, 5) == "2026-11-29T12:00:00Z gpu-a | engine.crashed chat/0: exit\\x0acode 1\n"
