"""How long a source of wrong passwords has to wait: after 5 failures 1 s, doubled by each further one, at most 60 s, whatever it then sends.

A right password takes back the failures of its own account alone: who may log in here could otherwise try the others' passwords in between
without an end. All of them are forgotten a quarter of an hour after the last. At most 1,024 sources are remembered.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from sbctl.base.errors import RefusedError

__all__ = ["Guessing"]

_FREE: Final = 5
_WAIT_CAP_S: Final = 60.0
_FORGET_S: Final = 900.0
_SOURCES_MAX: Final = 1024


@dataclass(slots=True)
class _Source:
    failures: Counter[str] = field(default_factory=Counter)
    """By account; all names that no account has are one."""
    last_s: float = 0.0
    blocked_until_s: float = 0.0


class Guessing:
    """Of one admin listener. Times are the loop's."""

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def check(self, source: str, *, now_s: float) -> None:
        """Raises RefusedError `rate_limited` while the source has to wait."""
        found = self._sources.get(source)
        if found is not None and now_s < found.blocked_until_s:
            wait_s = max(1, round(found.blocked_until_s - now_s))
            raise RefusedError("rate_limited", "too many wrong credentials", detail={"retry_after_s": wait_s})

    def failed(self, source: str, account: str, *, now_s: float) -> None:
        found = self._sources.pop(source, None)
        if found is None or now_s - found.last_s > _FORGET_S:
            found = _Source()
        self._sources[source] = found
        found.failures[account] += 1
        found.last_s = now_s
        beyond = found.failures.total() - _FREE
        if beyond >= 0:
            found.blocked_until_s = now_s + (_WAIT_CAP_S if beyond > _FREE else min(_WAIT_CAP_S, 2.0**beyond))
        if len(self._sources) > _SOURCES_MAX:
            self._sources.popitem(last=False)

    def succeeded(self, source: str, account: str) -> None:
        found = self._sources.get(source)
        if found is not None:
            del found.failures[account]
            if not found.failures:
                del self._sources[source]
