"""Who acts, for the audit: set where a request enters, read where its change is written, however many calls and threads lie between."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

__all__ = ["ACTING", "RUNTIME", "Actor"]


@dataclass(frozen=True, slots=True)
class Actor:
    """`source` is the way it came: `admin 127.0.0.1`, `control`, `runtime`."""

    name: str
    role: str
    source: str


RUNTIME: Final = Actor("runtime", "runtime", "runtime")
"""By itself."""

ACTING: Final[ContextVar[Actor]] = ContextVar("acting", default=RUNTIME)
