"""What all hosts of one run share: results by address, open sessions, and the reason why nothing new may start."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from sbctl.apply.cancellation import Cancellation
from sbctl.apply.outcome import ChangeResult
from sbctl.base.errors import SbctlError
from sbctl.base.ids import Address
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.node.lease import LeaseClaim
from sbctl.provider import NodeSession

__all__ = ["Board"]


class Board:
    """Written by host threads, read by the walk. Once closed, late threads of a hard stop change nothing any more."""

    def __init__(
        self,
        open_session: Callable[[str], NodeSession],
        cancel: Cancellation,
        *,
        fail_fast: bool,
        lease: LeaseClaim | None = None,
        lease_wait_s: float = 0.0,
    ) -> None:
        """`lease` is what each host is claimed with before it is changed; None: hosts are not leased."""
        self._open_session = open_session
        self._cancel = cancel
        self._fail_fast = fail_fast
        self._lease = lease
        self._lease_wait_s = lease_wait_s
        self._lock = threading.Lock()
        self._results: dict[Address, ChangeResult] = {}
        self._sessions: dict[str, NodeSession] = {}
        self._first_failure: Address | None = None
        self._closed = False
        self.journal_error: SbctlError | None = None
        self.host_errors: dict[str, SbctlError] = {}
        self.degraded: dict[str, tuple[str, ...]] = {}

    def settle(self, result: ChangeResult) -> bool:
        """Keep the result of one row; False when it came too late."""
        with self._lock:
            if self._closed:
                return False
            self._results[result.address] = result
            if result.status in ("failed", "unknown") and self._first_failure is None:
                self._first_failure = result.address
            return True

    def result_of(self, address: Address) -> ChangeResult | None:
        with self._lock:
            return self._results.get(address)

    @property
    def settled(self) -> int:
        """How many rows have a result."""
        with self._lock:
            return len(self._results)

    def close(self) -> dict[Address, ChangeResult]:
        """All results; nothing can be added any more."""
        with self._lock:
            self._closed = True
            return dict(self._results)

    @property
    def stop_reason(self) -> str | None:
        """Why no further change may start anywhere; None while the run goes on."""
        if self.journal_error is not None:
            return "the state could not be written"
        if self._cancel.stopping:
            return "interrupted"
        if self._fail_fast and self._first_failure is not None:
            return f"stopped at the first failure, {self._first_failure} (--fail-fast)"
        return None

    def session(self, host: str) -> NodeSession:
        """The host's open session, opened at first use. Raises what opening raises."""
        with self._lock:
            found = self._sessions.get(host)
        if found is not None:
            return found
        opened = self._open_session(host)
        with self._lock:
            self._sessions[host] = opened
        return opened

    def take_lease(self, host: str) -> None:
        """Hold the host for this run until its session is dropped. Raises LockedError `host.leased`, and what opening raises."""
        if self._lease is not None:
            self.session(host).take_lease(
                self._lease,
                wait_s=self._lease_wait_s,
                deadline_s=SNAPSHOT_DEADLINE_S,
                cancelled=lambda: self._cancel.stopping,
            )

    def drop_session(self, host: str) -> None:
        """Close the host's session, if any; the next use opens a new one. Never raises for a session that is already dead."""
        with self._lock:
            found = self._sessions.pop(host, None)
        if found is not None:
            with contextlib.suppress(SbctlError, OSError, EOFError):
                found.close()

    def drop_all_sessions(self) -> None:
        with self._lock:
            hosts = tuple(self._sessions)
        for host in hosts:
            self.drop_session(host)
