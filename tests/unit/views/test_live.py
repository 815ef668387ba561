"""What is seen while an apply runs: on a terminal, in a log, by a program."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from sbctl.apply.events import (
    CancelRequested,
    ChangeDone,
    ChangeFailed,
    ChangeSkipped,
    Event,
    Heartbeat,
    HostFinished,
    HostStarted,
    RunFinished,
    RunningNow,
    RunStarted,
    Stamped,
    StepFinished,
    StepProgress,
    StepStarted,
)
from sbctl.base.errors import EngineError
from sbctl.base.ids import Address
from sbctl.views import live
from sbctl.views.live import JsonView, LiveView, PlainView, event_view
from tests.simulators.fleet import ManualClock

ENGINE = Address("engine", "gpu-a", "llama_cpp")
MIB = 1024 * 1024
TITLE = "install engine llama_cpp 2026.10.11549"
STARTED = StepStarted("gpu-a", ENGINE, "k", "engine.install", TITLE, 1, 1)
ERROR = EngineError("engine.broken", "it said \x1b[31mno\x1b[0m [/x]", place="gpu-a")


def stamped(event: Event, elapsed_s: float = 0.0) -> Stamped:
    return Stamped(event, 1, datetime(2026, 11, 29, 12, 0, tzinfo=UTC), elapsed_s)


def progress(done: int, total: int | None = 32 * MIB) -> StepProgress:
    return StepProgress("gpu-a", ENGINE, "k", done, total)


def plain(*events: tuple[Event, float]) -> list[str]:
    lines: list[str] = []
    view = PlainView(lines.append)
    for event, elapsed_s in events:
        view.emit(stamped(event, elapsed_s))
    return lines


def test_plain_lines_say_start_progress_and_end() -> None:
    lines = plain(
        (RunStarted(7, "apply", ("gpu-a", "gpu-b"), 3, 4), 0),
        (HostStarted("gpu-a", 3, 4), 0),
        (STARTED, 1),
        (progress(16 * MIB), 2),
        (StepFinished("gpu-a", ENGINE, "k", TITLE, "done", 4.0), 5),
        (ChangeDone("gpu-a", ENGINE, "create", 4.0), 5),
        (ChangeFailed("gpu-a", ENGINE, "update", "failed", TITLE, ERROR), 6),
        (ChangeSkipped("gpu-a", ENGINE, "update", "skipped", "x is not done"), 6),
        (HostFinished("gpu-a", "failed", {"done": 1, "failed": 1}, ("chat failed",)), 7),
        (HostFinished("gpu-b", "unreachable", {"not_started": 2}), 7),
        (HostFinished("gpu-c", "unchanged", {}), 7),
        (HostFinished("gpu-d", "not_started", {"not_started": 2}), 7),
        (RunFinished(7, "partial", 1, {"done": 1}, {}, 7.0), 7),
    )
    assert lines == [
        "serial 7: 3 changes on 2 hosts",
        "gpu-a: comparing the host with the plan",
        f"gpu-a: {TITLE}",
        f"gpu-a: 50 %, 16.0 of 32.0 MiB ({TITLE})",
        "gpu-a: engine.gpu-a/llama_cpp created in 4.0 s",
        f'gpu-a: engine.gpu-a/llama_cpp failed at "{TITLE}": engine.broken: it said \\x1b[31mno\\x1b[0m [/x]',
        "gpu-a: failed; 1 done, 1 failed; degraded: chat failed",
        "gpu-b: unreachable; 2 not started",
        "gpu-c: unchanged",
    ]


@pytest.mark.parametrize(
    ("reports", "shown"),
    [
        pytest.param([(1, 0.1), (2, 0.2), (3, 0.3)], [], id="nine percent in no time: nothing"),
        pytest.param([(1, 0.1), (12, 0.2), (13, 0.3), (25, 0.4)], [12, 25], id="every ten percent"),
        pytest.param([(1, 9.9), (2, 10.0), (3, 19.9), (4, 20.1)], [2, 4], id="every ten seconds"),
        pytest.param([(100, 30.0)], [], id="the end is told by the end of the step"),
    ],
)
def test_progress_in_a_log_comes_every_ten_seconds_or_ten_percent(
    reports: list[tuple[int, float]], shown: list[int]
) -> None:
    lines = plain((STARTED, 0.0), *((progress(done, 100), at) for done, at in reports))
    assert [int(line.split(": ")[1].split(" %")[0]) for line in lines[1:]] == shown


def test_progress_of_unknown_length_has_no_share() -> None:
    assert plain((STARTED, 0.0), (progress(5 * MIB, None), 11.0))[1] == f"gpu-a: 5.0 MiB ({TITLE})"


def test_a_heartbeat_names_who_is_busy() -> None:
    running = tuple(RunningNow(f"h{number}", "pulling", 12.0) for number in range(5))
    assert plain((Heartbeat(running), 80.0)) == [
        "still working after 1 m 20 s: h0: pulling (12 s); h1: pulling (12 s); h2: pulling (12 s); 2 more hosts"
    ]


def test_a_signal_is_answered_at_once() -> None:
    assert plain((CancelRequested("SIGINT", hard=False), 1), (CancelRequested("SIGINT", hard=True), 2)) == [
        "SIGINT: running steps finish, nothing new starts; once more stops at once",
        "SIGINT: stopping at once; the next apply reads the hosts first",
    ]


def test_json_is_one_object_a_line_in_ascii_with_a_message_and_thinned_progress() -> None:
    stream = io.StringIO()
    view = JsonView(stream)
    for event in (STARTED, progress(1, 100), progress(50, 100), StepFinished("gpu-a", ENGINE, "k", TITLE, "done", 1.0)):
        view.emit(stamped(event))
    view.emit(stamped(ChangeFailed("gpu-a", ENGINE, "update", "failed", "\u202e", ERROR)))
    documents = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [document["type"] for document in documents] == [
        "step_started",
        "step_progress",
        "step_finished",
        "change_failed",
    ]
    assert documents[0]["message"] == f"gpu-a: {TITLE}"
    assert "message" not in documents[2]
    assert stream.getvalue().isascii()
    assert "\x1b" not in documents[3]["message"]


# The terminal


def terminal(width: int = 80, *, height: int = 25, color: bool = False) -> tuple[LiveView, io.StringIO, ManualClock]:
    stream = io.StringIO()
    clock = ManualClock()
    console = Console(
        file=stream,
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    return LiveView(console, clock=clock, auto_refresh=False), stream, clock


def feed(view: LiveView, clock: ManualClock, *events: tuple[Event, float]) -> None:
    for event, elapsed_s in events:
        clock.advance(elapsed_s - clock.monotonic_s())
        view.emit(stamped(event, elapsed_s))


BUSY: tuple[tuple[Event, float], ...] = (
    (RunStarted(7, "apply", ("gpu-a", "gpu-b"), 3, 4), 0),
    (HostStarted("gpu-b", 1, 1), 0),
    (HostStarted("gpu-a", 1, 1), 0),
    (STARTED, 1),
    (progress(0), 1),
    (progress(8 * MIB), 3),
    (progress(16 * MIB), 5),
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            120,
            [
                "gpu-a  install engine llama_cpp 2026.10.11549  ━━━━━━──────   50 %  16.0 of 32.0 MiB  4.0 MiB/s  4.0 s left  4.0 s",
                "gpu-b  comparing the host with the plan  5.0 s",
                "0 of 3 changes done · 5.0 s",
            ],
        ),
        (
            80,
            [
                "gpu-a  install engine llama_cpp 2026.10.11549  ━━━━━━──────   50 %  4.0 s",
                "gpu-b  comparing the host with the plan  5.0 s",
                "0 of 3 changes done · 5.0 s",
            ],
        ),
        (20, ["gpu-a  insta…   50 %", "gpu-b  comparing th…", "0 of 3 changes done…"]),
    ],
)
def test_one_line_for_each_running_step_at_any_width(width: int, expected: list[str]) -> None:
    view, _, clock = terminal(width)
    feed(view, clock, *BUSY)
    shown = view.picture().plain.splitlines()
    view.stop()
    assert [" ".join(line.split()) for line in shown] == [" ".join(line.split()) for line in expected]
    assert all(len(line) <= width for line in shown)


def _sending(*shares: int) -> Iterator[tuple[Event, float]]:
    """As many hosts as shares, each so many percent through the same weights."""
    title, total = "send qwen2.5-0.5b-instruct:q4_k_m (468.6 MiB)", 468 * MIB
    for number, share in enumerate(shares):
        host = f"gpu-{number}"
        address = Address("artifact", host, "qwen2.5-0.5b-instruct:q4_k_m")
        yield HostStarted(host, 1, 1), 0.0
        yield StepStarted(host, address, host, "artifact.import", title, 1, 1), 1.0
        yield StepProgress(host, address, host, 0, total), 1.0
        yield StepProgress(host, address, host, total * share // 100, total), 5.0


def test_three_hosts_that_are_sent_to_at_once_stand_below_each_other() -> None:
    view, _, clock = terminal(80)
    feed(view, clock, BUSY[0], *sorted(_sending(3, 50, 100), key=lambda fed: fed[1]))
    lines = view.picture().plain.splitlines()
    view.stop()
    assert [line[:5] for line in lines[:3]] == ["gpu-0", "gpu-1", "gpu-2"]
    assert [line.index(" %") for line in lines[:3]] == [lines[0].index(" %")] * 3
    assert all("send qwen2.5-0.5b-instruct" in line and len(line) <= 80 for line in lines[:3])


def test_three_hosts_that_are_sent_to_at_once_say_in_a_log_which_is_which() -> None:
    lines = plain(BUSY[0], *sorted(_sending(3, 50, 100), key=lambda fed: fed[1]))
    told = [line for line in lines if " % " in line or " %," in line]
    assert told == ["gpu-1: 50 %, 234.0 of 468.0 MiB (send qwen2.5-0.5b-instruct:q4_k_m (468.6 MiB))"]


def test_elapsed_time_goes_on_between_events() -> None:
    view, _, clock = terminal()
    feed(view, clock, *BUSY)
    clock.advance(60)
    shown = view.picture().plain
    view.stop()
    assert "1 m 04 s" in shown


def test_finished_changes_stand_above_and_the_region_goes_away() -> None:
    view, stream, clock = terminal()
    feed(
        view,
        clock,
        *BUSY,
        (StepFinished("gpu-a", ENGINE, "k", TITLE, "done", 4.0), 6),
        (ChangeDone("gpu-a", ENGINE, "create", 4.0), 6),
        (HostFinished("gpu-a", "done", {"done": 1}), 6),
        (ChangeFailed("gpu-b", Address("engine", "gpu-b", "x"), "create", "failed", None, ERROR), 7),
        (ChangeSkipped("gpu-b", Address("bundle", "gpu-b"), "create", "skipped", "x"), 7),
        (Heartbeat(()), 8),
    )
    assert "1 of 3 changes done · 2 not done · 8.0 s" in view.picture().plain
    feed(view, clock, (CancelRequested("SIGINT", hard=False), 9))
    assert "stopping: running steps finish" in view.picture().plain
    feed(view, clock, (CancelRequested("SIGINT", hard=True), 9), (RunFinished(7, "partial", 1, {}, {}, 9.0), 9))
    text = stream.getvalue()
    assert "✓ gpu-a: engine.gpu-a/llama_cpp created in 4.0 s" in text
    assert "✗ gpu-b: engine.gpu-b/x failed: engine.broken: it said \\x1b[31mno\\x1b[0m [/x]" in text
    assert "\x1b[31m" not in text
    assert view._live is None


def test_more_hosts_than_lines_are_counted() -> None:
    view, _, clock = terminal(height=6)
    feed(view, clock, BUSY[0], *((HostStarted(f"h{number:02}", 1, 1), 0.0) for number in range(10)))
    shown = view.picture().plain.splitlines()
    view.stop()
    assert len(shown) == 5
    assert shown[3] == "… 7 more hosts"


def test_a_terminal_without_unicode_gets_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, force_terminal=True, width=80, height=25, color_system=None)
    view = LiveView(console, clock=ManualClock(), auto_refresh=False)
    for event, elapsed_s in BUSY:
        view.emit(stamped(event, elapsed_s))
    view.emit(stamped(ChangeDone("gpu-a", ENGINE, "create", 4.0), 6))
    assert view.picture().plain.isascii()
    assert "######------" in view.picture().plain
    view.stop()


def test_colour_only_where_the_console_has_it() -> None:
    view, stream, clock = terminal(color=True)
    feed(view, clock, *BUSY, (ChangeDone("gpu-a", ENGINE, "create", 4.0), 6))
    view.stop()
    assert "\x1b[32m✓ " in stream.getvalue()


@pytest.mark.parametrize(
    ("as_json", "terminal_like", "dumb", "expected"),
    [
        (True, True, False, JsonView),
        (False, False, False, PlainView),
        (False, True, True, PlainView),
        (False, True, False, LiveView),
    ],
)
def test_the_view_fits_what_stderr_is(
    as_json: bool, terminal_like: bool, dumb: bool, expected: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"TERM": "dumb" if dumb else "xterm"}
    console = Console(file=io.StringIO(), force_terminal=terminal_like, color_system=None, _environ=environ)
    monkeypatch.setattr(live, "stderr_console", lambda: console)
    with event_view(as_json=as_json) as sink:
        assert isinstance(sink, expected)
