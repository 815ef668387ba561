"""Reading a fleet's logs and events: each host by a thread of its own, everything told in one place, in the order it comes.

A host that is lost is told once and asked again, after 1 s, doubled, at most 30 s; the others go on meanwhile. What a host answers that no
retry can change (no runtime, a runtime that is too old) is asked again as seldom.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from sbctl.base.errors import SbctlError
from sbctl.cli.host_lines import Lines
from sbctl.remote.session import HostSession

__all__ = ["Answer", "Ask", "Back", "Lost", "Told", "followed", "read_once"]

_POLL_S: Final = 1.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_JOIN_S: Final = 3.0
_WAITING_MAX: Final = 256
_LOOK_S: Final = 0.5

Item = TypeVar("Item")
Cursor = TypeVar("Cursor")


@dataclass(frozen=True, slots=True)
class Answer(Generic[Item, Cursor]):
    """What a host gave: items in their order, and where it goes on. `more`: there is more already. `lost`: some were gone before they were read."""

    items: Sequence[Item]
    cursor: Cursor
    more: bool = False
    lost: bool = False


Ask = Callable[[HostSession, Cursor | None], Answer[Item, Cursor]]
"""One question; the cursor is None for the first."""


@dataclass(frozen=True, slots=True)
class Told(Generic[Item]):
    """What one host told since it was asked last. `lost`: something before it is gone."""

    host: str
    items: Sequence[Item] = field(default_factory=tuple)
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """It gave no answer, and is asked again after a pause."""

    host: str
    error: SbctlError


@dataclass(frozen=True, slots=True)
class Back:
    """It answers again."""

    host: str


def read_once(
    lines: Lines, hosts: Sequence[str], ask: Ask[Cursor, Item], *, parallelism: int
) -> tuple[dict[str, list[Item]], dict[str, SbctlError]]:
    """Everything that each host has to tell to one first question; hosts that gave no answer, with the reason."""
    from concurrent.futures import ThreadPoolExecutor

    found: dict[str, list[Item]] = {}
    failed: dict[str, SbctlError] = {}

    def read(host: str) -> None:
        try:
            found[host] = list(lines.ask(host, lambda session: ask(session, None)).items)
        except SbctlError as error:
            failed[host] = error

    with ThreadPoolExecutor(max(1, min(parallelism, len(hosts))), thread_name_prefix="read") as pool:
        list(pool.map(read, hosts))
    return (
        {host: found[host] for host in hosts if host in found},
        {host: failed[host] for host in hosts if host in failed},
    )


def followed(
    lines: Lines,
    hosts: Sequence[str],
    ask: Ask[Cursor, Item],
    *,
    pause: Callable[[threading.Event, float], bool] = lambda stop, seconds: stop.wait(seconds),
) -> Generator[Told[Item] | Lost | Back, None, None]:
    """What hosts tell, from the first answer on, until the caller closes the generator. `pause` returns True when it is time to end.

    Closing it closes `lines`, and returns though a host hangs.
    """
    following = _Following(lines, ask, pause)
    threads = [
        threading.Thread(target=following.host, args=(host,), name=f"follow-{host}", daemon=True) for host in hosts
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) or not following.told.empty():
            with contextlib.suppress(queue.Empty):
                # With a deadline: a wait without one would keep Ctrl-C waiting on some systems.
                yield following.told.get(timeout=_LOOK_S)
    finally:
        following.stop.set()
        lines.close()
        for thread in threads:
            thread.join(_JOIN_S / len(threads))


class _Following(Generic[Item, Cursor]):
    """What the threads share."""

    def __init__(self, lines: Lines, ask: Ask[Cursor, Item], pause: Callable[[threading.Event, float], bool]) -> None:
        self.stop = threading.Event()
        self.told: queue.Queue[Told[Item] | Lost | Back] = queue.Queue(maxsize=_WAITING_MAX)
        self._lines = lines
        self._ask = ask
        self._pause = pause

    def host(self, host: str) -> None:
        """One host, until it is time to end."""
        cursor: Cursor | None = None
        failures = 0
        while not self.stop.is_set():
            try:
                answer = self._answer(host, cursor)
            except SbctlError as error:
                again_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures, 10))
                if not failures:
                    self._put(Lost(host, error))
                failures += 1
                if self._pause(self.stop, again_s):
                    return
                continue
            if failures:
                failures = 0
                self._put(Back(host))
            cursor = answer.cursor
            if answer.items or answer.lost:
                self._put(Told(host, answer.items, answer.lost))
            if not answer.more and self._pause(self.stop, _POLL_S):
                return

    def _answer(self, host: str, cursor: Cursor | None) -> Answer[Item, Cursor]:
        return self._lines.ask(host, lambda session: self._ask(session, cursor))

    def _put(self, event: Told[Item] | Lost | Back) -> None:
        while not self.stop.is_set():
            try:
                self.told.put(event, timeout=_LOOK_S)
            except queue.Full:
                continue
            return
