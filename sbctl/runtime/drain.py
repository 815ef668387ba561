"""Taking a host out of service without cutting anybody off: new requests get 503 with Retry-After, those that run go on, /readyz says no.

operator   `sbctl host drain`: a file says so, so it holds over restarts until `sbctl host resume`
leave      an apply that takes a worker out of its cluster: requests are served on, until what it runs is placed elsewhere; as apply else
apply      around a change that restarts something: in memory only, and over as soon as nobody holds the host's lease any more,
           so an apply that dies leaves no host out of service
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Literal

from sbctl.base.errors import EngineError
from sbctl.node.drain_file import read_drain
from sbctl.node.lease_file import may_be_held
from sbctl.node.paths import NodePaths
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.log import get_log

__all__ = ["Drain", "DrainedBy"]

DrainedBy = Literal["operator", "apply", "leave"]

_LOOK_S: Final = 2.0
_RETRY_AFTER_S: Final = 5


class _Counted(contextlib.AbstractContextManager[None]):
    """Holds nothing of one request, so one serves all of them at once."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain

    def __enter__(self) -> None:
        self._drain.active += 1

    def __exit__(self, *_: object) -> None:
        self._drain.active -= 1


class Drain:
    """Of one runtime. `active` counts requests from their arrival to their last byte."""

    def __init__(self, paths: NodePaths, events: EventSink = NO_EVENTS) -> None:
        self._paths = paths
        self._events = events
        self._operator = read_drain(paths)
        self._apply = False
        self.leaves = False
        """This worker is being taken out of its cluster."""
        self.active = 0
        self._counted = _Counted(self)
        self._log = get_log("drain")

    @property
    def is_on(self) -> bool:
        return self._operator is not None or self._apply

    def state(self) -> dict[str, Any] | None:
        """For the status document; None while the host is in service."""
        if not self.is_on:
            return None
        told = self._operator or {"by": "apply", "since": ""}
        return {**told, "persistent": self._operator is not None, "active_requests": self.active}

    def request(self) -> contextlib.AbstractContextManager[None]:
        """Around a request. Raises EngineError `draining` for one that comes too late."""
        if self.is_on:
            raise EngineError(
                "draining",
                "this host is being taken out of service",
                retryable=True,
                detail={"retry_after_s": _RETRY_AFTER_S},
            )
        return self._counted

    def begin(self, by: DrainedBy) -> None:
        """From now on nothing new; again is the same."""
        if by == "leave":
            if self.leaves:
                return
            self.leaves = True
            self._events.tell(
                EventKind.HOST_DRAINED,
                "by an apply: it leaves its cluster, and serves until its replicas are elsewhere",
            )
            return
        if by == "apply":
            self._apply = True
        else:
            self._operator = read_drain(self._paths)
        self._log.info("draining", by=by, active=self.active)
        who = self._operator["by"] if by == "operator" and self._operator is not None else f"an {by}"
        self._events.tell(EventKind.HOST_DRAINED, f"by {who}; {self.active} requests still run")

    def end(self, by: DrainedBy) -> None:
        """Take back what `by` began; what the other began holds on."""
        if by == "leave":
            self.leaves = False
        elif by == "apply":
            self._apply = False
        else:
            self._operator = read_drain(self._paths)
        self._log.info("resumed" if not self.is_on else "still drained", by=by)
        if not self.is_on:
            self._events.tell(EventKind.HOST_RESUMED, f"by an {by}")

    async def watch(self) -> None:
        """End an apply's drain when that apply is gone. Runs until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if (self._apply or self.leaves) and not may_be_held(self._paths):
                self._log.warning("the apply that drained this host is gone")
                if self.leaves:
                    self.end("leave")
                if self._apply:
                    self.end("apply")
