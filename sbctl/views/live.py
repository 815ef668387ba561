"""An apply while it happens, on stderr: a live region on a terminal, plain lines elsewhere, one JSON event a line for programs.

event_view(as_json=False) ─ terminal ──► LiveView   finished changes above, one line for each running step, a total below
                          ├ no terminal► PlainView  start, progress every 10 s or 10 %, end
                          └ as_json ───► JsonView   every event, progress thinned like PlainView
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sbctl.apply.events import (
    CancelRequested,
    ChangeDone,
    ChangeFailed,
    ChangeSkipped,
    EventSink,
    Heartbeat,
    HostFinished,
    HostStarted,
    NodeProgressed,
    RolloutPaused,
    RunFinished,
    RunStarted,
    Stamped,
    StepFinished,
    StepProgress,
    StepStarted,
    event_document,
)
from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.display import format_bytes, format_duration_s
from sbctl.views.apply_lines import ProgressGate, TransferRate, amount_words, safe_line
from sbctl.views.console import note, stderr_console
from sbctl.views.layout import safe

__all__ = ["JsonView", "LiveView", "PlainView", "event_view"]

_REFRESH_PER_S: Final = 8
_BAR_COLUMNS: Final = 12
_ELAPSED_FROM_COLUMNS: Final = 40
_TITLE_MIN_COLUMNS: Final = 24


@contextlib.contextmanager
def event_view(*, as_json: bool = False) -> Iterator[EventSink]:
    """The view that fits stderr as it is now. Nothing is shown before the first event, so plans and questions come first."""
    console = stderr_console()
    if as_json:
        yield JsonView(sys.stderr)
    elif not console.is_terminal or console.is_dumb_terminal:
        yield PlainView(note)
    else:
        view = LiveView(console)
        try:
            yield view
        finally:
            view.stop()


class JsonView:
    """One JSON object a line, with a `message` for people who read logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gate = ProgressGate()

    def emit(self, stamped: Stamped) -> None:
        if not _passes(self._gate, stamped):
            return
        document = event_document(stamped)
        line = safe_line(stamped)
        if line is not None:
            document["message"] = line
        self._stream.write(json.dumps(document, ensure_ascii=True) + "\n")
        self._stream.flush()


class PlainView:
    """Lines for a log file: each stands for itself, none is repeated or overwritten."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._gate = ProgressGate()
        self._titles: dict[str, str] = {}

    def emit(self, stamped: Stamped) -> None:
        event = stamped.event
        if isinstance(event, StepStarted):
            self._titles[event.key] = event.title
        left_out = isinstance(event, HostFinished) and event.status == "not_started"
        # The summary says it for all of them at once.
        if left_out or isinstance(event, RunFinished) or not _passes(self._gate, stamped):
            return
        line = safe_line(stamped)
        if line is not None and isinstance(event, StepProgress):
            line = f"{line} ({safe(self._titles.get(event.key, event.address))})"
        if line is not None:
            self._write(line)


def _passes(gate: ProgressGate, stamped: Stamped) -> bool:
    event = stamped.event
    if isinstance(event, StepStarted):
        gate.begin(event.key, stamped.elapsed_s)
    elif isinstance(event, StepFinished):
        gate.end(event.key)
    return not isinstance(event, StepProgress) or gate.passes(event, stamped.elapsed_s)


@dataclass(slots=True)
class _Running:
    """What one host is doing."""

    host: str
    title: str
    since_s: float
    done: int = 0
    total: int | None = None
    rate: TransferRate = field(default_factory=TransferRate)


class LiveView:
    """The live region of a terminal. Events come from host threads, the picture is drawn by rich's own."""

    def __init__(self, console: Console, *, clock: Clock = SYSTEM_CLOCK, auto_refresh: bool = True) -> None:
        self._console = console
        self._clock = clock
        self._auto_refresh = auto_refresh
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._running: dict[str, _Running] = {}
        self._changes = self._done = self._not_done = 0
        self._started_s = clock.monotonic_s()
        self._stopping = ""
        self._paused_until_s = 0.0

    def emit(self, stamped: Stamped) -> None:
        event = stamped.event
        with self._lock:
            above = self._take(stamped)
        if isinstance(event, RunStarted):
            self._start()
        if above is not None:
            self._print(above)
        if isinstance(event, RunFinished):
            self.stop()

    def stop(self) -> None:
        """Take the live region away; what was printed above it stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        self._live = Live(
            console=self._console,
            get_renderable=self.picture,
            auto_refresh=self._auto_refresh,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)

    def _take(self, stamped: Stamped) -> Text | None:
        """Note the event; the line to print above the region, if it is worth one."""
        event = stamped.event
        match event:
            case RunStarted():
                self._changes = event.changes
                self._started_s = self._clock.monotonic_s() - stamped.elapsed_s
            case RolloutPaused():
                self._paused_until_s = stamped.elapsed_s + event.seconds
            case HostStarted():
                self._paused_until_s = 0.0
                title = "comparing the host with the plan"
                self._running[event.host] = _Running(event.host, title, stamped.elapsed_s)
            case StepStarted():
                self._running[event.host] = _Running(event.host, event.title, stamped.elapsed_s)
            case StepProgress():
                running = self._running.get(event.host)
                if running is not None:
                    running.done, running.total = event.done, event.total
                    running.rate.add(stamped.elapsed_s, event.done)
            case ChangeDone():
                self._done += 1
            case ChangeFailed() | ChangeSkipped():
                self._not_done += 1
            case StepFinished() | HostFinished():
                self._running.pop(event.host, None)
            case CancelRequested():
                self._stopping = "stopping at once" if event.hard else "stopping: running steps finish"
            case _:
                pass
        return self._above(stamped)

    def _above(self, stamped: Stamped) -> Text | None:
        event = stamped.event
        signs = {ChangeDone: ("✓ ", "green"), ChangeFailed: ("✗ ", "bold red"), CancelRequested: ("! ", "yellow")}
        sign = signs.get(type(event))
        if isinstance(event, NodeProgressed):
            sign = ("  ", "yellow" if event.state in ("failed", "unseen") else "dim")
        line = safe_line(stamped)
        if sign is None or line is None or isinstance(event, Heartbeat):
            return None
        text = Text()
        text.append(sign[0] if self._unicode else f"{sign[0]}".translate({0x2713: "ok", 0x2717: "x"}), style=sign[1])
        return text.append(line)

    # The picture

    def picture(self) -> Text:
        """The region as it is now: no line longer than the terminal is wide, no more lines than it is high."""
        with self._lock:
            running = sorted(self._running.values(), key=lambda one: one.host)
            now_s = self._clock.monotonic_s() - self._started_s
            room = max(1, self._console.height - 3)
            lines = [self._running_line(one, now_s) for one in running[:room]]
            if len(running) > room:
                lines.append(self._fit(Text(f"… {len(running) - room} more hosts", style="dim")))
            lines.append(self._total_line(now_s))
        return Text("\n").join(lines)

    @property
    def _unicode(self) -> bool:
        return self._console.encoding.lower().replace("-", "") in ("utf8", "utf16", "utf32")

    def _fit(self, line: Text) -> Text:
        line.truncate(self._console.width, overflow="ellipsis" if self._unicode else "crop")
        return line

    def _total_line(self, now_s: float) -> Text:
        parts = [f"{self._done} of {self._changes} changes done"]
        if self._not_done:
            parts.append(f"{self._not_done} not done")
        left_s = self._paused_until_s - now_s
        paused = f"paused, {format_duration_s(left_s)} left" if left_s > 0 and not self._running else ""
        parts += [part for part in (self._stopping or paused,) if part]
        parts.append(format_duration_s(now_s))
        return self._fit(
            Text((" · " if self._unicode else ", ").join(parts), style="bold" if self._stopping else "dim")
        )

    def _running_line(self, one: _Running, now_s: float) -> Text:
        """Host, title, then as many facts as fit: percent first, then elapsed, bar, amount, time left, rate."""
        facts = self._facts(one, now_s)
        width = self._console.width
        host = safe(one.host)
        title = safe(one.title)
        wanted = min(cell_len(host) + 2 + cell_len(title), max(_TITLE_MIN_COLUMNS, width // 2))
        kept: list[tuple[int, Text]] = []
        used = 0
        for place, fact in facts:
            if used + fact.cell_len + 2 + min(wanted, width // 2 if width < 60 else wanted) <= width:
                kept.append((place, fact))
                used += fact.cell_len + 2
        head = Text()
        head.append(host, style="bold").append(f"  {title}")
        room = max(1, width - used)
        head.truncate(room, overflow="ellipsis" if self._unicode else "crop", pad=bool(kept))
        for _, fact in sorted(kept, key=lambda pair: pair[0]):
            head.append("  ").append_text(fact)
        return self._fit(head)

    def _facts(self, one: _Running, now_s: float) -> list[tuple[int, Text]]:
        """By importance; the number is the place in the line."""
        facts = []
        if one.total:
            facts.append((1, Text(f"{min(100, 100 * one.done // one.total):3d} %", style="cyan")))
        if self._console.width >= _ELAPSED_FROM_COLUMNS:
            facts.append((5, Text(set_cell_size(format_duration_s(max(0.0, now_s - one.since_s)), 8), style="dim")))
        if one.total:
            facts.append((0, self._bar(one.done / one.total)))
        if one.total or one.done:
            facts.append((2, Text(amount_words(one.done, one.total))))
        left_s = one.rate.left_s(one.total)
        if left_s is not None and one.done < (one.total or 0):
            facts.append((4, Text(f"{format_duration_s(left_s)} left")))
        rate = one.rate.per_s
        if rate and (one.total or 0) >= 4096:
            facts.append((3, Text(f"{format_bytes(int(rate))}/s")))
        return facts

    def _bar(self, share: float) -> Text:
        filled = round(min(1.0, share) * _BAR_COLUMNS)
        full, empty = ("━", "─") if self._unicode else ("#", "-")
        bar = Text(full * filled, style="cyan")
        return bar.append(empty * (_BAR_COLUMNS - filled), style="dim")
