"""From what the threads of an apply say to one ordered stream of events, and who is busy with what right now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sbctl.apply.events import Event, EventSink, Heartbeat, MultiSink, NodeProgressed, RunningNow, Stamped, StepProgress
from sbctl.base.clock import Clock
from sbctl.base.ids import Address
from sbctl.node.cluster_messages import read_note
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.provider import Progress

__all__ = ["Emitter"]

_PROGRESS_INTERVAL_S: Final = 0.1


class Emitter:
    """Numbers and stamps events under one lock. A sink that cannot write is muted; the apply goes on."""

    def __init__(self, sink: EventSink, clock: Clock) -> None:
        self._sink = MultiSink((sink,))
        self._clock = clock
        self._lock = threading.Lock()
        self._sequence = 0
        self._started_s = clock.monotonic_s()
        self._news_s = self._started_s
        self._busy: dict[str, tuple[str, float]] = {}
        self._nodes: dict[str, tuple[str, str]] = {}
        self._closed = False

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._started_s

    def emit(self, event: Event) -> None:
        with self._lock:
            if self._closed:
                return
            now_s = self._clock.monotonic_s()
            self._news_s = now_s
            self._sequence += 1
            self._sink.emit(Stamped(event, self._sequence, self._clock.now(), now_s - self._started_s))

    def close(self) -> None:
        """No event after this one: threads that a hard stop gave up are not heard any more."""
        with self._lock:
            self._closed = True

    @contextmanager
    def busy(self, host: str, what: str) -> Iterator[None]:
        """While the context is open, heartbeats say that `host` is busy with `what`. Nested: the inner one is said."""
        with self._lock:
            outer = self._busy.get(host)
            self._busy[host] = (what, self._clock.monotonic_s())
        try:
            yield
        finally:
            with self._lock:
                if outer is None:
                    self._busy.pop(host, None)
                else:
                    self._busy[host] = outer

    def beat(self, after_s: float) -> bool:
        """Emit a heartbeat when there was no other news for `after_s` and somebody is busy; whether one was emitted."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if not self._busy or now_s - self._news_s < after_s:
                return False
            running = tuple(RunningNow(host, what, now_s - since) for host, (what, since) in sorted(self._busy.items()))
        self.emit(Heartbeat(running))
        return True

    def progress(self, host: str, address: Address, step: Step) -> Progress:
        """A callback that turns the many reports of one step into at most ten events a second, and always the last one. What it is told of
        nodes of a cluster is told on, each thing once in a run."""
        return _StepReports(self, host, address, step, self._clock)

    def node_progressed(self, event: NodeProgressed) -> None:
        """Several authorities tell the same of one node."""
        said = event.state, event.detail
        if self._nodes.get(event.node) != said:
            self._nodes[event.node] = said
            self.emit(event)


class _StepReports:
    """As `Listening`, of one step."""

    def __init__(self, emitter: Emitter, host: str, address: Address, step: Step, clock: Clock) -> None:
        self._emitter = emitter
        self._host = host
        self._address = address
        self._step = step
        self._clock = clock
        self._told: tuple[int, int | None] | None = None
        self._told_s = 0.0

    def __call__(self, done: int, total: int | None) -> None:
        now_s = self._clock.monotonic_s()
        finished = total is not None and done >= total
        if (done, total) == self._told or (
            self._told is not None and not finished and now_s - self._told_s < _PROGRESS_INTERVAL_S
        ):
            return
        self._told, self._told_s = (done, total), now_s
        self._emitter.emit(StepProgress(self._host, self._address, self._step.key, done, total))

    def say(self, words: str) -> None:
        found = read_note(words) if self._step.method == Method.CLUSTER_PUBLISH else None
        if found is not None:
            node, one = found
            self._emitter.node_progressed(
                NodeProgressed(self._host, self._address, self._step.key, node, one.state, one.detail)
            )
