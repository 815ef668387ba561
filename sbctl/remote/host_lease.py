"""The operator's side of a host's lease: a process on the host that holds it, and a thread here that keeps it.

The thread renews the lease every quarter of its time to live. A lease whose process does not answer is lost: it ends on the host by
itself, and whoever changes the host has to take it anew before the next change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, LockedError, SbctlError
from sbctl.node.lease import LeaseClaim
from sbctl.remote.bootstrap import WORKER_PROGRAM, BootstrapWorker, compose_lease_holder, new_marker
from sbctl.remote.transport import ChannelBroken, Transport

__all__ = ["HostLease", "open_lease"]

_RETRY_S: Final = 0.5
_RENEWALS: Final = 4


class HostLease:
    """One lease of one session. `close` gives it back."""

    def __init__(self, worker: BootstrapWorker, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._held = False
        self._answer_s = 0.0

    @property
    def held(self) -> bool:
        return self._held

    def take(self, claim: LeaseClaim, *, wait_s: float, deadline_s: float, cancelled: Callable[[], bool]) -> None:
        """Raises LockedError `host.leased` after `wait_s`, or what became of the process that should hold it."""
        end_s = self._clock.monotonic_s() + wait_s
        while True:
            try:
                self._ask("take", asdict(claim), deadline_s)
                break
            except LockedError:
                if self._clock.monotonic_s() >= end_s or cancelled():
                    raise
            self._clock.sleep_s(_RETRY_S)
        self._held = True
        self._answer_s = claim.ttl_s / _RENEWALS
        threading.Thread(target=self._keep, name="sbctl-lease", daemon=True).start()

    def _keep(self) -> None:
        while not self._ended.wait(self._answer_s):
            try:
                self._ask("renew", {}, self._answer_s)
            except SbctlError:
                self._held = False
                return

    def _ask(self, command: str, params: Mapping[str, object], deadline_s: float) -> None:
        with self._lock:
            try:
                self._worker.ask(command, params, deadline_s=deadline_s)
            except ChannelBroken as broken:
                raise broken.cause from broken
            except (OSError, EOFError) as error:
                raise HostError(
                    "host.lease_lost",
                    "the lease on this host ended",
                    retryable=True,
                    next_step="run the command again: it reads the host before it acts",
                ) from error

    def close(self) -> None:
        """Give it back: the process sees the end of its input. Never raises."""
        self._held = False
        self._ended.set()
        self._worker.close()


def open_lease(
    transport: Transport,
    python: str,
    environment: Mapping[str, str],
    clock: Clock,
    *,
    place: str,
    deadline_s: float,
) -> HostLease:
    """A lease that nobody holds yet: its process waits on the host. Raises UnreachableError, HostError."""
    argv = [python, "-I", "-c", WORKER_PROGRAM]
    try:
        channel = transport.open_channel(argv, environment, deadline_s=deadline_s)
        worker = BootstrapWorker(
            channel, new_marker(), place=place, clock=clock, deadline_s=deadline_s, compose=compose_lease_holder
        )
    except FileNotFoundError as error:
        raise HostError(
            "host.no_python",
            f"{python} is not there",
            place=place,
            next_step="install Python 3.11 or newer on the host, or correct fleet.runtime.python",
        ) from error
    except ChannelBroken as broken:
        raise broken.cause from broken
    return HostLease(worker, clock)
