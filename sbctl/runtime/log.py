"""Logs: one JSON object a line on stderr, credentials masked, foreign text bounded. Writing a log never fails the caller."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog
from structlog.typing import FilteringBoundLogger

from sbctl.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from sbctl.base.secret import redact

__all__ = ["configure_logging", "get_log"]

_VALUE_MAX_CHARS: Final = 4000


class _Stderr:
    """A closed or full stderr loses lines, not the daemon."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value[:_VALUE_MAX_CHARS])
    if isinstance(value, dict):
        return {str(key): _masked(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_masked(entry) for entry in value]
    return value


def _mask(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: _masked(value) for key, value in event.items()}


class _Forward(logging.Handler):
    """What libraries log, in our form. Their debug and info lines stay out: they may hold addresses with tokens."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]!r}"
        get_log("library").warning("library message", library=record.name, text=text)


def configure_logging(*, clock: Clock = SYSTEM_CLOCK) -> None:
    """Once a process, before the first line."""

    def stamp(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["at"] = rfc3339(clock.now())
        return event

    structlog.configure(
        processors=[structlog.processors.add_log_level, stamp, _mask, structlog.processors.JSONRenderer(default=str)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(_Stderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward(level=logging.WARNING)]
    root.setLevel(logging.WARNING)


def get_log(part: str) -> FilteringBoundLogger:
    """The logger of one part of the runtime."""
    log: FilteringBoundLogger = structlog.get_logger(part=part)
    return log
