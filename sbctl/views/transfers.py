"""Bytes on their way to or from this machine, outside an apply: bars on a terminal, a line now and then elsewhere. On stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.views.apply_lines import amount_words
from sbctl.views.console import note, stderr_console
from sbctl.views.layout import safe

__all__ = ["Report", "transfers"]

Report = Callable[[int, int | None], None]

_INTERVAL_S: Final = 10.0
_TITLE_COLUMNS: Final = 36


@contextlib.contextmanager
def transfers() -> Iterator[Callable[[str], Report]]:
    """Called with a title, what is yielded begins one piece of work and gives the function that reports on it."""
    console = stderr_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(16), DownloadColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as bars:

        def begin(title: str) -> Report:
            task = bars.add_task(_cut(safe(title)), total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield begin


def _cut(title: str) -> str:
    return title if len(title) <= _TITLE_COLUMNS else title[: _TITLE_COLUMNS - 1] + "…"


def _lines(title: str, *, clock: Clock = SYSTEM_CLOCK) -> Report:
    note(title)
    told_s = clock.monotonic_s()

    def report(done: int, total: int | None) -> None:
        nonlocal told_s
        now_s = clock.monotonic_s()
        if now_s - told_s >= _INTERVAL_S and done != total:
            told_s = now_s
            note(f"{title}: {amount_words(done, total)}")

    return report
