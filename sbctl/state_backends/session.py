"""A checkout in step with the shared state.

    reading    fetch ─► decide ─► take what is newer                                      no lock on the server
    writing    lock ─► fetch ─► decide ─► take or send ─► … run … ─► send ─► unlock
                                             at its start (before anything acts), every 20 s, at its end

A run whose start cannot be written does nothing. A run that loses the lock, or finds that somebody else wrote, starts no further step. What
could not be written at the end is kept beside the state (`errored.json`), with the command that writes it later.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from sbctl.base import fs
from sbctl.base.clock import Clock
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import LockedError, RefusedError, SbctlError, StateError
from sbctl.base.limits import SHARED_WRITE_EVERY_S
from sbctl.state.model import LockInfo
from sbctl.state.settings import StateSettings
from sbctl.state.shared_document import SharedState, dump_shared, with_move
from sbctl.state.sharing import Answer, Seen, Side, decide, goes_on_from, read_seen, write_seen
from sbctl.state.store import StateStore
from sbctl.state_backends.port import Backend, Ticket
from sbctl.state_backends.vault import Vault, head_of

__all__ = ["SharedSession"]

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_STALE_READS: Final = 4
_READER_LOCK_S: Final = 5.0


class SharedSession:
    """One command's dealings with the shared state. `note` tells the user what is waited for or tried again."""

    def __init__(
        self,
        store: StateStore,
        settings: StateSettings,
        *,
        backend: Backend,
        vault: Vault,
        clock: Clock,
        note: Callable[[str], None],
        write_every_s: float = SHARED_WRITE_EVERY_S,
    ) -> None:
        self._store = store
        self._settings = settings
        self._backend = backend
        self._vault = vault
        self._clock = clock
        self._note = note
        self._write_every_s = write_every_s
        self._turn = threading.Lock()
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lost: SbctlError | None = None
        self._writing = False
        self.on_lost: Callable[[], object] | None = None
        """Called once when the run that is under way may write no more."""

    @property
    def place(self) -> str:
        return self._backend.place

    @property
    def vault(self) -> Vault:
        return self._vault

    def wake(self) -> None:
        """Write soon. Safe inside a signal handler."""
        self._wakes.put(True)

    # Fetching

    def _fetch(self) -> tuple[SharedState | None, Side | None]:
        data = self._backend.fetch()
        if data is None:
            return None, None
        shared = self._vault.load(data, place=self.place)
        return shared, self._side(shared, data)

    @staticmethod
    def _side(shared: SharedState, data: bytes) -> Side:
        return Side(shared.lineage, shared.serial, shared.changes, shared.lines, shared.moved_to, sha256_bytes(data))

    def _decided(self) -> tuple[Answer, SharedState | None, Side | None]:
        """A server may for a moment answer with what stood there before: what looks like a step back is asked again."""
        for attempt in range(1, _STALE_READS + 1):
            shared, side = self._fetch()
            try:
                return decide(self._store.side(), side, read_seen(self._store.paths), self.place), shared, side
            except StateError as error:
                if error.code != "state.remote_regressed" or attempt == _STALE_READS:
                    raise
            self._clock.sleep_s(_FIRST_PAUSE_S * attempt)
        raise AssertionError("the last attempt returns or raises")

    def refresh(self) -> None:
        """Bring the working copy up to what is shared, for a reader. Raises as `decide`, and what fetching raises."""
        if self._writing:
            return
        answer, _, _ = self._decided()
        if answer == "send":
            self._note("this checkout has more than the shared state; the next command that writes sends it")
        if answer != "take":
            return
        info = LockInfo("a reader here", os.getpid(), "sbctl, taking the shared state in", self._clock.now())
        try:
            with self._store.lock(info, _READER_LOCK_S):
                answer, shared, side = self._decided()
                if answer == "take" and shared is not None and side is not None:
                    self._take(shared, side)
        except LockedError as error:
            if error.code != "state.locked" or not self._store.exists():
                raise
            # another command of this checkout is writing: its working copy is the newest there is

    def _take(self, shared: SharedState, side: Side) -> None:
        self._store.mirror(shared)
        self._remember(side)

    def _remember(self, side: Side) -> None:
        seen = Seen(side.lineage, side.serial, side.changes, side.digest, self._settings)
        write_seen(self._store.paths, seen)

    # Writing

    @contextlib.contextmanager
    def writing(self, info: LockInfo, timeout_s: float, *, overrule: bool = False) -> Iterator[None]:
        """Hold the shared lock; the caller holds the local one. `overrule`: for a forced push, whatever stands there is replaced.

        Raises LockedError `state.locked`, what `decide` raises; at the end SbctlError `state.not_shared` when the result could not be written.
        """
        ticket = Ticket.issue(info, self.place, self._clock)
        self._acquire(ticket, timeout_s)
        try:
            self._begin(overrule=overrule)
            try:
                with self._background():
                    yield
            except BaseException:
                self._last_write_quietly()
                raise
            self._last_write()
        finally:
            self._store.on_begin = None
            self._writing = False
            self._release(ticket)

    def _acquire(self, ticket: Ticket, timeout_s: float) -> None:
        deadline_s = self._clock.monotonic_s() + timeout_s
        pause_s = _FIRST_PAUSE_S
        said = False
        while True:
            try:
                self._backend.lock(ticket)
                return
            except LockedError as error:
                remaining_s = deadline_s - self._clock.monotonic_s()
                if remaining_s <= 0:
                    raise
                if not said:
                    self._note(f"{error.message}; waiting up to {timeout_s:g} s")
                    said = True
                self._clock.sleep_s(min(pause_s, remaining_s))
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _release(self, ticket: Ticket) -> None:
        try:
            self._backend.unlock(ticket.id)
        except SbctlError as error:
            if self._lost is None:
                self._note(
                    f"the lock on the shared state could not be given back: {error.message}; sbctl state unlock {ticket.id}"
                )

    def _begin(self, *, overrule: bool) -> None:
        self._lost = None
        if overrule:
            self._overrule()
        else:
            answer, shared, side = self._decided()
            if answer == "take" and shared is not None and side is not None:
                self._take(shared, side)
            elif side is None:
                write_seen(self._store.paths, Seen("", 0, 0, "", self._settings))
            elif answer == "same":
                self._remember(side)
            if answer == "send":
                self._write()
        self._writing = True
        self._store.on_begin = self._write

    def _overrule(self) -> None:
        """Remember what stands there, readable or not, as what the next write replaces and whose number it passes."""
        data = self._backend.fetch()
        seen = Seen("", 0, 0, "" if data is None else sha256_bytes(data), self._settings)
        if data is not None:
            with contextlib.suppress(SbctlError):
                side = self._side(self._vault.load(data, place=self.place), data)
                seen = Seen(side.lineage, side.serial, side.changes, side.digest, self._settings)
        write_seen(self._store.paths, seen)

    def _write(self) -> None:
        """Make the shared document what the working copy is now. Raises what `Backend.store` raises, and StateError `state.conflict`."""
        with self._turn:
            if self._lost is not None:
                raise self._lost
            seen, position = read_seen(self._store.paths), self._store.position()
            if seen is None or position is None or (position[0], position[2]) == (seen.lineage, seen.changes):
                return
            if position[2] <= seen.changes:
                self._store.touch(above=seen.changes)
            changes, data = self._store.share()
            wire = self._vault.dump(data)
            digest = sha256_bytes(wire)
            current = self._backend.fetch()
            expected = "" if current is None else sha256_bytes(current)
            self._refuse_moved(current, expected, seen)
            write_seen(self._store.paths, replace(seen, sending_digest=digest))
            self._backend.store(wire, head=head_of(wire), expected_sha256=expected)
            write_seen(self._store.paths, Seen(position[0], position[1], changes, digest, self._settings))

    def _refuse_moved(self, current: bytes | None, digest: str, seen: Seen) -> None:
        """Whether what stands there is what we last saw or sent, or an older answer of a slow server. Raises StateError `state.conflict`."""
        if digest in (seen.digest, seen.sending_digest) or (current is None and seen.changes == 0):
            return
        if current is not None:
            with contextlib.suppress(SbctlError, KeyError, TypeError):
                head = head_of(current)
                if head["lineage"] == seen.lineage and head["serial"] < seen.changes:
                    return
        raise StateError(
            "state.conflict",
            "somebody else wrote the shared state while this run had its lock",
            place=self.place,
            next_step="see who works without the lock, then run the command again: it reads the hosts before it acts",
        )

    @contextlib.contextmanager
    def _background(self) -> Iterator[None]:
        """Write every 20 s, and when woken, while the block runs."""
        thread = threading.Thread(target=self._keep_writing, name="sbctl-shared-state", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._wakes.put(False)
            thread.join()

    def _keep_writing(self) -> None:
        said = False
        go_on = True
        while go_on:
            try:
                go_on = self._wakes.get(timeout=self._write_every_s)
            except queue.Empty:
                go_on = True
            if not go_on:
                return
            try:
                self._write()
                said = False
            except SbctlError as error:
                if error.retryable:
                    if not said:
                        self._note(f"{error.message}; the run goes on, and the shared state is tried again")
                    said = True
                    continue
                self._stop_run(error)
                return

    def _stop_run(self, error: SbctlError) -> None:
        self._lost = error
        self._note(f"{error.message}; no further step is started")
        if self.on_lost is not None:
            self.on_lost()

    # The end

    def _last_write(self) -> None:
        try:
            self._write()
        except SbctlError as error:
            raise self._not_shared(error) from error
        fs.remove_file(self._store.paths.errored)

    def _last_write_quietly(self) -> None:
        """After a failure that the user is told of anyway."""
        try:
            self._write()
        except SbctlError as error:
            self._note(str(self._not_shared(error).message))

    def _not_shared(self, cause: SbctlError) -> SbctlError:
        errored = self._store.paths.errored
        step = f"when the cause is gone: sbctl state push {shlex.quote(str(errored))}"
        try:
            fs.write_atomic(errored, self._vault.dump(self._store.share()[1]))
            serial = f"serial {self._store.read().serial}"
        except SbctlError as error:
            serial = "what was done"
            step = f"keep {self._store.paths.directory}: it has everything (and errored.json could not be written: {error.message})"
        return SbctlError(
            "state.not_shared",
            f"{serial} is recorded in this checkout and could not be written to the shared state: {cause.message}",
            place=self.place,
            next_step=f"{step}; an apply from another checkout before that would not know of it",
            detail={"cause": cause.to_wire(), "errored": str(errored)},
        )

    def accept(self, shared: SharedState) -> bool:
        """Take a document in that goes on from what stands here: an errored run of another checkout. False when it does not."""
        local = self._store.side()
        offered = Side(shared.lineage, shared.serial, shared.changes, shared.lines)
        if local is not None and not goes_on_from(offered, local):
            return False
        self._store.mirror(shared)
        return True

    def probe_lock(self, command: str) -> None:
        """Whether the lock is free. Raises LockedError `state.locked` naming its holder."""
        ticket = Ticket.issue(LockInfo("nobody", 0, command, self._clock.now()), self.place, self._clock)
        self._backend.lock(ticket)
        self._backend.unlock(ticket.id)

    def break_lock(self, ticket_id: str) -> None:
        """Take the lock from the holder of this id. Raises LockedError `state.lock_mismatch`."""
        self._backend.unlock(ticket_id)

    # Moving house

    def install(self, info: LockInfo, timeout_s: float) -> None:
        """Put the working copy into this place, read it back, and share it here from now on. The caller holds the local lock.

        Raises RefusedError `state.occupied` when another state stands there; StateError `state.not_verified` when it does not come back.
        """
        ticket = Ticket.issue(info, self.place, self._clock)
        self._acquire(ticket, timeout_s)
        try:
            local = self._store.side()
            data = self._backend.fetch()
            seen = Seen("", 0, 0, "" if data is None else sha256_bytes(data), self._settings)
            if data is not None:
                there = self._side(self._vault.load(data, place=self.place), data)
                if local is None or there.lineage != local.lineage or not goes_on_from(local, there):
                    raise RefusedError(
                        "state.occupied",
                        f"another state stands there: lineage {there.lineage}, serial {there.serial}",
                        place=self.place,
                        next_step="choose another address, or remove what stands there by the server's own means",
                    )
                self._store.touch(above=there.changes)
            changes, content = self._store.share()
            wire = self._vault.dump(content)
            self._backend.store(wire, head=head_of(wire), expected_sha256=seen.digest)
            back = self._backend.fetch()
            if back is None or self._vault.open_any(back, place=self.place) != content:
                raise StateError(
                    "state.not_verified",
                    "what was written there does not come back; the state stays where it was",
                    place=self.place,
                    next_step="look at the server, then run the command again",
                )
            _, serial, _ = self._store.position() or ("", 0, 0)
            lineage = head_of(wire)["lineage"]
            write_seen(self._store.paths, Seen(lineage, serial, changes, sha256_bytes(back), self._settings))
        finally:
            self._release(ticket)

    def mark_moved(self, to: str) -> None:
        """Inside `writing`: keep the document, and refuse every later use of it here, naming the new place."""
        data = self._backend.fetch()
        if data is None:
            return
        shared = self._vault.load(data, place=self.place)
        wire = self._vault.dump(dump_shared(with_move(shared.raw, to)))
        self._backend.store(wire, head=head_of(wire), expected_sha256=sha256_bytes(data))
