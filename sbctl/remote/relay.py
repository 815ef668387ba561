"""One copy a site: what is pushed to several hosts of a site goes once to its relay, a host among them, and from there to the others.

    operator ──put──► relay's staging ──blob.serve──► listener on the relay's data address
                                                         ▲ token, TLS pinned by digest
    operator ──blob.fetch (where, token, digest)──► neighbour, which compares the bytes

The relay has a second session of its own here, so that its own work goes on meanwhile. Whatever cannot go this way is sent directly, and
said once: a relay saves bytes and time, and is never a reason to fail.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, InterruptedBySignal, SbctlError, UnreachableError
from sbctl.base.file_slice import ByteSource
from sbctl.base.secret import Secret
from sbctl.node.lease import LeaseClaim
from sbctl.node.messages import Method
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.session import HostSession
from sbctl.remote.transport import Progress, lost, no_progress

__all__ = ["RelayHost", "RelayedSession", "SiteRelay"]

_WORTH_BYTES: Final = 1 << 20
"""Less is sent directly: asking twice would take as long."""
_START_WAIT_S: Final = 15.0
_POLL_S: Final = 0.25
_SERVE_DEADLINE_S: Final = 60.0
_HASH_BYTES_PER_S: Final = 50_000_000
"""A slow disk, for the time a relay may take to look at what was put."""


@dataclass(frozen=True, slots=True)
class RelayHost:
    """`data_address`: where neighbours reach it, and what its listener binds. `peers`: their addresses."""

    host: str
    data_address: str
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    port: int
    certificate_sha256: str


class _Unusable(Exception):  # noqa: N818 - an event between two layers, never shown as it is
    """The relay cannot be used (any more); the text says why."""


class SiteRelay:
    """One relay for one run, shared by the threads of its neighbours and its own."""

    def __init__(self, site: RelayHost, connect: Callable[[], HostSession], clock: Clock, *, has_runtime: bool) -> None:
        """`connect` opens the second session; `has_runtime` is whether the host could serve when the plan was made."""
        self.site = site
        self.token = Secret(secrets.token_hex(32).encode())
        self._connect = connect
        self._clock = clock
        self._session: HostSession | None = None
        self._work = threading.Lock()
        self._changed = threading.Condition()
        self._has_runtime = has_runtime
        self._at_work = False
        self._was_at_work = False
        self._broken: str | None = None

    def note_work(self, *, begun: bool) -> None:
        """The relay's own chain of changes begins, or ends."""
        with self._changed:
            self._at_work = begun
            self._was_at_work = True
            self._changed.notify_all()

    def note_runtime(self, *, there: bool) -> None:
        with self._changed:
            self._has_runtime = there
            self._changed.notify_all()

    @contextmanager
    def exclusive(self, wait: Callable[[], None]) -> Iterator[None]:
        """One transfer to the relay at a time, its own among them. `wait` is called while another one runs; what it raises ends the wait."""
        while not self._work.acquire(timeout=_POLL_S):
            wait()
        try:
            yield
        finally:
            self._work.release()

    def hold(self, sha256: str) -> None:
        """Keep what was just put on the relay readable for neighbours. The caller has it `exclusive`; failing costs a second transfer."""
        if self._has_runtime and self._broken is None:
            with suppress(SbctlError, _Unusable):
                self._serve(sha256)

    def offer(self, sha256: str, source: ByteSource, size: int, *, deadline_s: float, progress: Progress) -> _Offer:
        """Have the relay serve a blob, sending it there when nobody did. Raises _Unusable, and what `progress` raises."""

        def wait() -> None:
            progress(0, size)

        self._await_runtime(wait)
        with self.exclusive(wait):
            if self._broken is not None:
                raise _Unusable(self._broken)
            try:
                return self._offered(sha256, source, deadline_s, progress)
            except InterruptedBySignal:
                raise
            except SbctlError as error:
                self.give_up(error.message)
                raise _Unusable(error.message) from error

    def give_up(self, reason: str) -> None:
        """Send everything directly from now on."""
        self._broken = reason
        self.close()

    def close(self) -> None:
        """End the listener and the session. Never raises."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _offered(self, sha256: str, source: ByteSource, deadline_s: float, progress: Progress) -> _Offer:
        offer = self._serve(sha256)
        if offer is None:
            assert self._session is not None
            self._session.put(sha256, source, deadline_s=deadline_s, progress=progress)
            offer = self._serve(sha256)
        if offer is None:
            raise HostError(
                "relay.lost_blob",
                "the relay does not have what was put there",
                place=self.site.host,
                next_step="run the command again; if it stays so, look at the disk of the relay",
            )
        return offer

    def _serve(self, sha256: str) -> _Offer | None:
        """None: the relay does not have the blob."""
        if self._session is None:
            self._session = self._connect()
        params = {"digests": [sha256], "peers": list(self.site.peers), "bind": self.site.data_address}
        answer = self._session.call(
            Method.BLOB_SERVE,
            params,
            secrets={"token": self.token},
            deadline_s=_SERVE_DEADLINE_S,
            progress=no_progress,
        )
        if sha256 in answer.get("missing", ()):
            return None
        return _Offer(int(answer["port"]), str(answer["certificate_sha256"]))

    def _await_runtime(self, wait: Callable[[], None]) -> None:
        """Until the relay can serve, as long as its own chain may still make it so."""
        start_by_s = self._clock.monotonic_s() + _START_WAIT_S
        while True:
            with self._changed:
                if self._broken is not None:
                    raise _Unusable(self._broken)
                if self._has_runtime:
                    return
                may_begin = not self._was_at_work and self._clock.monotonic_s() < start_by_s
                if not self._at_work and not may_begin:
                    raise _Unusable("it has no runtime yet")
                self._changed.wait(_POLL_S)
            wait()


class RelayedSession:
    """A session whose host is a relay, or has one. Everything but `put` goes straight to the host."""

    def __init__(
        self,
        inner: HostSession,
        relay: SiteRelay,
        note: Callable[[str], None],
        *,
        has_runtime: bool,
    ) -> None:
        """`note` tells the operator, once a host, why something was sent directly."""
        self.host = inner.host
        self._inner = inner
        self._relay = relay
        self._note = note
        self._is_relay = relay.site.host == inner.host
        self._has_runtime = has_runtime
        self._direct = False
        self._closed = False
        if self._is_relay:
            relay.note_work(begun=True)

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        found = self._inner.snapshot(deadline_s)
        self._set_runtime(there=found.bootstrapped)
        return found

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        result = self._inner.call(method, params, secrets=secrets, deadline_s=deadline_s, progress=progress)
        if method in (Method.RUNTIME_INSTALL, Method.RUNTIME_REMOVE):
            self._set_runtime(there=method == Method.RUNTIME_INSTALL)
        return result

    def put(self, sha256: str, source: ByteSource, *, deadline_s: float, progress: Progress) -> None:
        """Raises what the host's own `put` raises: a relay that fails only costs the detour."""
        size = source.stat().st_size
        if self._is_relay:
            with self._relay.exclusive(lambda: progress(0, size)):
                self._inner.put(sha256, source, deadline_s=deadline_s, progress=progress)
                if size >= _WORTH_BYTES:
                    self._relay.hold(sha256)
            return
        if self._has_runtime and not self._direct and size >= _WORTH_BYTES:
            try:
                self._put_by_relay(sha256, source, size, deadline_s, progress)
            except _Unusable as why:
                self._require_open()
                self._direct = True
                self._note(f"{self.host}: sent directly, not through {self._relay.site.host}: {why}")
            else:
                return
        self._inner.put(sha256, source, deadline_s=deadline_s, progress=progress)

    def take_lease(self, claim: LeaseClaim, *, wait_s: float, deadline_s: float, cancelled: Callable[[], bool]) -> None:
        self._inner.take_lease(claim, wait_s=wait_s, deadline_s=deadline_s, cancelled=cancelled)

    def close(self) -> None:
        self._closed = True
        if self._is_relay:
            self._relay.note_work(begun=False)
        self._inner.close()

    def _require_open(self) -> None:
        """Raises UnreachableError `remote.lost` once the run has closed this session, so that nothing is begun after that."""
        if self._closed:
            raise lost(self.host)

    def _set_runtime(self, *, there: bool) -> None:
        self._has_runtime = there
        if self._is_relay:
            self._relay.note_runtime(there=there)

    def _put_by_relay(self, sha256: str, source: ByteSource, size: int, deadline_s: float, progress: Progress) -> None:
        """Half of the bar is the way to the relay, where there is one to go. Raises _Unusable, UnreachableError of this host."""
        sent = 0

        def to_relay(done: int, _total: int | None) -> None:
            nonlocal sent
            self._require_open()
            sent = done // 2
            progress(sent, size)

        offer = self._relay.offer(sha256, source, size, deadline_s=deadline_s, progress=to_relay)
        params = {
            "sha256": sha256,
            "size_bytes": size,
            "address": self._relay.site.data_address,
            "port": offer.port,
            "certificate_sha256": offer.certificate_sha256,
        }

        def from_relay(done: int, _total: int | None) -> None:
            progress(sent + done * (size - sent) // size, size)

        try:
            self._inner.call(
                Method.BLOB_FETCH,
                params,
                secrets={"token": self._relay.token},
                deadline_s=deadline_s + size / _HASH_BYTES_PER_S,
                progress=from_relay,
            )
        except (InterruptedBySignal, UnreachableError):
            raise
        except SbctlError as error:
            if error.code.startswith("disk.") or error.code == "host.outcome_unknown":
                raise
            raise _Unusable(error.message) from error
