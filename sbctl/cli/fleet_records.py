"""`logs` and `events`: what is asked of a host, and what of its answer goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from sbctl.base.errors import HostError, SbctlError, UsageError
from sbctl.cli.following import Answer
from sbctl.node.messages import Method
from sbctl.node.records import EventsAnswer, LogLine, LogsAnswer, NodeEvent
from sbctl.remote.answers import read_answer
from sbctl.remote.session import HostSession
from sbctl.remote.transport import no_progress

__all__ = ["ask_events", "ask_logs", "seconds_of"]

_DEADLINE_S = 60.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_Model = TypeVar("_Model", bound=BaseModel)


def seconds_of(text: str | None) -> int | None:
    """`90`, `10m`, `2h`, `3d` as seconds. Raises UsageError for anything else."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    if not number.isascii() or not number.isdigit() or len(number) > 7:
        raise UsageError(
            "usage",
            f"--since {text[:40]!r} is no stretch of time",
            next_step="write 90s, 10m, 2h or 3d: so long before now",
        )
    return int(number) * _UNITS[unit]


def ask_logs(
    *, lines: int, since_s: int | None, deployment: str | None
) -> Callable[[HostSession, dict[str, str] | None], Answer[LogLine, dict[str, str]]]:
    """The question for `following`."""

    def ask(session: HostSession, cursor: dict[str, str] | None) -> Answer[LogLine, dict[str, str]]:
        params = {
            "cursor": cursor,
            "lines": lines,
            "since_s": since_s if cursor is None else None,
            "deployment": deployment,
        }
        told = _asked(session, Method.LOGS_READ, params, LogsAnswer)
        return Answer(told.lines, told.cursor, told.more, told.lost)

    return ask


def ask_events(
    *, limit: int, since_s: int | None, deployment: str | None
) -> Callable[[HostSession, int | None], Answer[NodeEvent, int]]:
    """The question for `following`."""

    def ask(session: HostSession, cursor: int | None) -> Answer[NodeEvent, int]:
        params = {
            "after": cursor,
            "limit": limit,
            "since_s": since_s if cursor is None else None,
            "deployment": deployment,
        }
        told = _asked(session, Method.EVENTS_READ, params, EventsAnswer)
        return Answer(told.events, told.cursor, told.more)

    return ask


def _asked(session: HostSession, method: Method, params: Mapping[str, Any], model: type[_Model]) -> _Model:
    """Raises what the session raises; HostError `node.too_old`, `host.answer_invalid`."""
    try:
        raw = session.call(method, params, secrets={}, deadline_s=_DEADLINE_S, progress=no_progress)
    except SbctlError as error:
        if error.code == "node.unknown_method":
            raise HostError(
                "node.too_old",
                f"the runtime on this host is too old to answer {method}",
                place=session.host,
                next_step="upgrade it: sbctl apply",
            ) from error
        raise
    return read_answer(model, raw, session.host)
