"""Events of an apply in words: one line each, for logs, for the lines above the live view and for the `message` of JSON events."""

from __future__ import annotations

from collections import deque
from typing import Final

from sbctl.apply.events import (
    CancelRequested,
    ChangeDone,
    ChangeFailed,
    Event,
    Heartbeat,
    HostFinished,
    HostStarted,
    NodeProgressed,
    RolloutPaused,
    RunFinished,
    RunStarted,
    Stamped,
    StepProgress,
    StepStarted,
)
from sbctl.base.display import format_bytes, format_duration_s, plural
from sbctl.views.layout import safe

__all__ = ["ACTION_DONE", "ProgressGate", "TransferRate", "amount_words", "count_words", "event_line", "safe_line"]

ACTION_DONE: Final = {
    "create": "created",
    "update": "updated",
    "replace": "replaced",
    "delete": "removed",
    "forget": "forgotten",
}
_STATUS_WORDS: Final = {
    "done": "done",
    "failed": "failed",
    "unknown": "unknown",
    "interrupted": "interrupted",
    "skipped": "skipped",
    "not_started": "not started",
}
_NODE_WORDS: Final = {
    "unseen": "is not heard",
    "behind": "has not taken the bundle yet",
    "accepted": "has accepted the bundle",
    "prepared": "is prepared",
    "ready": "is ready",
    "idle": "is ready, nothing is placed on it",
    "failed": "has failed",
}
_BYTES_FROM: Final = 4096
"""A smaller total counts pieces (wheels, deployments), not bytes."""
_HEARTBEAT_HOSTS: Final = 3


def count_words(counts: dict[str, int]) -> str:
    """`3 done, 1 failed`; statuses that nobody has are left out."""
    return ", ".join(f"{counts[status]} {word}" for status, word in _STATUS_WORDS.items() if counts.get(status))


def amount_words(done: int, total: int | None) -> str:
    """`14.1 of 33.5 MiB`, `3 of 5`, `14.1 MiB`."""
    if total is None:
        return format_bytes(done)
    if total < _BYTES_FROM:
        return f"{done} of {total}"
    whole, so_far = format_bytes(total), format_bytes(done)
    number, _, unit = so_far.partition(" ")
    return f"{number} of {whole}" if whole.endswith(unit) else f"{so_far} of {whole}"


def event_line(stamped: Stamped) -> str | None:
    """The event in one line, None for those that only fill in details. Foreign text is made safe by whoever prints it."""
    event = stamped.event
    if isinstance(event, StepProgress):
        share = f"{100 * event.done // event.total} %, " if event.total else ""
        return f"{event.host}: {share}{amount_words(event.done, event.total)}"
    if isinstance(event, Heartbeat):
        return _heartbeat(event, stamped.elapsed_s)
    return _line(event)


def _line(event: Event) -> str | None:
    match event:
        case RunStarted():
            return f"serial {event.serial}: {plural(event.changes, 'change')} on {plural(len(event.hosts), 'host')}"
        case HostStarted():
            return f"{event.host}: comparing the host with the plan"
        case StepStarted():
            return f"{event.host}: {event.title}"
        case NodeProgressed():
            return f"{event.host}: {event.node} {_NODE_WORDS.get(event.state, event.state)}{f': {event.detail}' if event.detail else ''}"
        case ChangeDone():
            return f"{event.host}: {event.address} {ACTION_DONE.get(event.action, event.action)} in {format_duration_s(event.duration_s)}"
        case ChangeFailed():
            step = f' at "{event.step}"' if event.step else ""
            return f"{event.host}: {event.address} {event.status}{step}: {event.error.code}: {event.error.message}"
        case HostFinished():
            degraded = f"; degraded: {'; '.join(event.degraded)}" if event.degraded else ""
            return f"{event.host}: {_finished_word(event)}{degraded}"
        case CancelRequested(hard=False):
            return f"{event.signal}: running steps finish, nothing new starts; once more stops at once"
        case CancelRequested():
            return f"{event.signal}: stopping at once; the next apply reads the hosts first"
        case RolloutPaused():
            return f"paused {format_duration_s(event.seconds)} (fleet.update.pause_secs); then {_some(event.waiting)}"
        case RunFinished():
            return f"{event.status} in {format_duration_s(event.duration_s)}: {count_words(dict(event.counts)) or 'nothing to do'}"
        case _:
            return None


def _some(hosts: tuple[str, ...]) -> str:
    more = f" and {plural(len(hosts) - 3, 'more host')}" if len(hosts) > 3 else ""
    return f"{', '.join(hosts[:3])}{more}"


def _finished_word(event: HostFinished) -> str:
    words = count_words(dict(event.counts))
    status = event.status.replace("_", " ")
    return words if status in ("done", "partial") and words else f"{status}; {words}" if words else status


def _heartbeat(event: Heartbeat, elapsed_s: float) -> str:
    shown = [f"{now.host}: {now.what} ({format_duration_s(now.since_s)})" for now in event.running[:_HEARTBEAT_HOSTS]]
    if len(event.running) > len(shown):
        shown.append(f"{plural(len(event.running) - len(shown), 'more host')}")
    return f"still working after {format_duration_s(elapsed_s)}: {'; '.join(shown)}"


class ProgressGate:
    """Lets one step's progress through at most every ten seconds or ten percent, whichever comes first, and its end not at all:
    the end of the step says that."""

    def __init__(self, *, interval_s: float = 10.0, share: float = 0.1) -> None:
        self._interval_s = interval_s
        self._share = share
        self._last: dict[str, tuple[float, float]] = {}

    def begin(self, key: str, elapsed_s: float) -> None:
        self._last[key] = (elapsed_s, 0.0)

    def end(self, key: str) -> None:
        self._last.pop(key, None)

    def passes(self, event: StepProgress, elapsed_s: float) -> bool:
        told_s, told_share = self._last.get(event.key, (elapsed_s, 0.0))
        share = event.done / event.total if event.total else 0.0
        if share >= 1.0 or (elapsed_s - told_s < self._interval_s and share - told_share < self._share):
            return False
        self._last[event.key] = (elapsed_s, share)
        return True


class TransferRate:
    """Units a second over the last ten seconds, and from it the time that is left."""

    _WINDOW_S: Final = 10.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, elapsed_s: float, done: int) -> None:
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((elapsed_s, done))
        while elapsed_s - self._samples[0][0] > self._WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def per_s(self) -> float | None:
        """None until there is half a second of history."""
        if len(self._samples) < 2:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= 0.5 else None

    def left_s(self, total: int | None) -> float | None:
        rate = self.per_s
        if total is None or not rate:
            return None
        return max(0.0, (total - self._samples[-1][1]) / rate)


def safe_line(stamped: Stamped) -> str | None:
    """`event_line` with foreign text made safe."""
    line = event_line(stamped)
    return None if line is None else safe(line)
