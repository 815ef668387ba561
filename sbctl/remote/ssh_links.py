"""The SSH connections of one run: one to each host, one to each jump for all hosts behind it, never too many starting at once.

An sshd refuses connections beyond its MaxStartups, so handshakes are bounded over the whole fleet, apart from how many hosts are worked
on. A jump that could not be reached a moment ago fails at once for the next host behind it, instead of once more after a whole deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import paramiko

from sbctl.base.clock import Clock
from sbctl.base.connection import Jump
from sbctl.base.errors import SbctlError
from sbctl.base.host_keys import HostKey
from sbctl.base.limits import SSH_HANDSHAKES_MAX, SSH_KEEPALIVE_S, SSH_UNANSWERED_S
from sbctl.remote.secrets import SecretSource, no_secrets
from sbctl.remote.ssh_channel import LOST, close_quietly
from sbctl.remote.ssh_connect import connect_hop, hop_place, shown_host_key
from sbctl.remote.ssh_login import Keyring
from sbctl.remote.transport import PASSING, lost, timed_out

__all__ = ["SshLinks"]

_FAILURE_KEPT_S: Final = 5.0


class SshLinks:
    """Threads: any. After `close` it can be used again."""

    def __init__(self, clock: Clock, secrets: SecretSource = no_secrets) -> None:
        self.keyring = Keyring(secrets)
        self._clock = clock
        self._starts = threading.BoundedSemaphore(SSH_HANDSHAKES_MAX)
        self._lock = threading.Lock()
        self._jumps: dict[tuple[Jump, ...], Future[paramiko.Transport]] = {}
        self._failed_at_s: dict[tuple[Jump, ...], float] = {}

    def connect(self, path: Sequence[Jump], *, deadline_s: float) -> paramiko.Transport:
        """A new connection to the last of `path`, through shared ones to those before it; the caller closes it.

        Raises UnreachableError, whose place names the hop that failed; InputError for a pin, key or reference that is none.
        """
        return self._connect(tuple(path), self._clock.monotonic_s() + deadline_s)

    def host_key(self, path: Sequence[Jump], *, deadline_s: float) -> HostKey:
        """The key that the last of `path` shows, pinned or not; those before it are logged in to, so they must be pinned.

        Raises UnreachableError, whose place names the hop that failed.
        """
        whole, deadline = tuple(path), self._clock.monotonic_s() + deadline_s
        place = hop_place(whole)
        through = self._jump(whole[:-1], deadline) if len(whole) > 1 else None
        if not self._starts.acquire(timeout=max(0.0, deadline - self._clock.monotonic_s())):
            raise timed_out(place, deadline_s)
        try:
            left = max(0.0, deadline - self._clock.monotonic_s())
            return shown_host_key(whole[-1], place=place, through=through, seconds=left, clock=self._clock)
        except LOST as error:
            raise lost(hop_place(whole[:-1] or whole)) from error
        finally:
            self._starts.release()

    def close(self) -> None:
        """Close the connections to jumps. Never raises."""
        with self._lock:
            made, self._jumps = list(self._jumps.values()), {}
            self._failed_at_s.clear()
        for each in made:
            if each.done() and each.exception() is None:
                close_quietly(each.result())

    def _connect(self, path: tuple[Jump, ...], deadline: float) -> paramiko.Transport:
        hop, place = path[-1], hop_place(path)
        with self.keyring.login(hop, place) as login:
            for attempt in range(2):
                through = self._jump(path[:-1], deadline) if len(path) > 1 else None
                begun = self._clock.monotonic_s()
                if not self._starts.acquire(timeout=max(0.0, deadline - begun)):
                    raise timed_out(place, max(0.0, deadline - begun))
                try:
                    left = max(0.0, deadline - self._clock.monotonic_s())
                    transport = connect_hop(hop, login, place=place, through=through, seconds=left, clock=self._clock)
                except LOST as error:
                    # The shared connection to the jump was found dead.
                    self._forget(path[:-1], through)
                    if attempt:
                        raise lost(hop_place(path[:-1] or path)) from error
                    continue
                finally:
                    self._starts.release()
                if through is not None:
                    _watch(transport)
                return transport
        raise AssertionError("two attempts end in a connection or an error")

    def _jump(self, path: tuple[Jump, ...], deadline: float) -> paramiko.Transport:
        """The shared connection to a jump; one thread makes it, the others wait for that one."""
        with self._lock:
            known = self._jumps.get(path)
            if known is not None and known.done() and not self._is_usable(path, known):
                known = None
            mine: Future[paramiko.Transport] | None = None
            if known is None:
                known = mine = self._jumps[path] = Future()
        if mine is not None:
            self._make(path, mine, deadline)
        try:
            return known.result(max(0.0, deadline - self._clock.monotonic_s()))
        except TimeoutError as error:
            raise timed_out(_jump_place(path), max(0.0, deadline - self._clock.monotonic_s())) from error

    def _make(self, path: tuple[Jump, ...], mine: Future[paramiko.Transport], deadline: float) -> None:
        try:
            transport = self._connect(path, deadline)
        except SbctlError as error:
            error.place = _jump_place(path) if error.place == hop_place(path) else error.place
            if error.code not in PASSING:
                with self._lock:
                    self._failed_at_s[path] = self._clock.monotonic_s()
            mine.set_exception(error)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(transport)

    def _is_usable(self, path: tuple[Jump, ...], known: Future[paramiko.Transport]) -> bool:
        if known.exception() is not None:
            return self._clock.monotonic_s() - self._failed_at_s.get(path, float("-inf")) < _FAILURE_KEPT_S
        return known.result().is_active()

    def _forget(self, path: tuple[Jump, ...], dead: paramiko.Transport | None) -> None:
        with self._lock:
            known = self._jumps.get(path)
            if known is not None and known.done() and known.exception() is None and known.result() is dead:
                del self._jumps[path]
        if dead is not None:
            close_quietly(dead)


def _jump_place(path: Sequence[Jump]) -> str:
    return f"jump {hop_place(path)}"


def _watch(transport: paramiko.Transport) -> None:
    """The kernel notices a cut cable only on the way to the first hop; beyond it, an unanswered question does."""
    threading.Thread(target=_ask_until_it_ends, args=(transport,), name="ssh-pulse", daemon=True).start()


def _ask_until_it_ends(transport: paramiko.Transport) -> None:
    ended = threading.Event()
    while transport.is_active():
        late = threading.Timer(SSH_UNANSWERED_S, close_quietly, [transport])
        late.daemon = True
        late.start()
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except LOST:
            return
        finally:
            late.cancel()
        ended.wait(SSH_KEEPALIVE_S)
