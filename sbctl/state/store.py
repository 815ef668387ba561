"""The recorded truth of one fleet: the one door to `.sbctl/`.

    reading    exists, read, history, journal, snapshot, export, holder, verify       no lock, one consistent moment
    writing    lock ─► create | begin_run ─► Run | remove, adopt, rename, set_trust, import_document
    sharing    side, share                    lock ─► mirror, touch        (who sends and fetches: `sbctl.state_backends`)

A reader sees the last committed moment while a run writes. Everything read is verified; what cannot be believed is refused by name
(`sbctl.state.refusals`), never taken for an empty state. One process writes, under a kernel lock; its threads may share a `Run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbctl import __version__
from sbctl.base import fs
from sbctl.base.clock import Clock
from sbctl.base.errors import LockedError, SbctlError, StateError
from sbctl.base.flock import FileLock
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.state import importing, reading, refusals
from sbctl.state.amending import amend
from sbctl.state.codec import decode, desired_of_recorded, recorded_to_json
from sbctl.state.creating import create_state
from sbctl.state.database import open_reader
from sbctl.state.document import StateDocument, document_of, dump_document, parse_document
from sbctl.state.fence import check_fence, read_fence
from sbctl.state.holding import acquire, read_holder
from sbctl.state.journal import drop_resource, open_run, put_resource, put_signers
from sbctl.state.location import StatePaths, is_there, prepare_directory, refuse_network_filesystem
from sbctl.state.model import JournalEntry, LockInfo, RunInfo, RunSummary, StateSnapshot, StateView, Tombstone
from sbctl.state.renaming import rename, renamed_desired, renaming
from sbctl.state.rows import Rows
from sbctl.state.run import Run
from sbctl.state.shared_document import SharedState, dump_shared, mirror, shared_of
from sbctl.state.sharing import Side
from sbctl.state.tombstones import bury, readmit
from sbctl.state.writer import Writer

__all__ = ["StateStore"]

Json = dict[str, Any]

_TEMPORARIES_OLDER_THAN_S = 3600.0


class StateStore:
    """The state in `directory` (`.sbctl` beside sb.yml). Making one touches nothing.

    Every method may raise StateError by name (`sbctl.state.refusals`), SbctlError `disk.*`, and RefusedError `state.network_filesystem`
    unless `allow_network_fs`. Writing methods need `lock` and raise LockedError `state.not_locked` without it.
    """

    def __init__(self, directory: Path, clock: Clock, *, allow_network_fs: bool = False) -> None:
        self.paths = StatePaths(directory)
        self._clock = clock
        self._allow_network_fs = allow_network_fs
        self._held: LockInfo | None = None
        self._writer: Writer | None = None
        self._run: Run | None = None
        self.on_begin: Callable[[], None] | None = None
        """Called when a run is recorded and before anything acts on it: whoever shares the state writes it, or stops the run by raising."""

    # Reading

    def exists(self) -> bool:
        """False only when nothing of ours is there: a lock file alone, or a creation that was never acknowledged."""
        paths = self.paths
        if any(is_there(path) for path in (paths.database, paths.write_ahead_log, paths.backup)):
            return True
        try:
            fence = read_fence(paths)
        except StateError:
            return True
        return fence is not None and fence.changes > 0

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Rows]:
        self._refuse_place()
        if not self.exists():
            raise refusals.absent(self.paths)
        # The fence is read before the database, so that a commit in between only makes the database newer.
        fence = read_fence(self.paths)
        with open_reader(self.paths) as connection:
            rows = Rows(connection, self.paths)
            head = rows.head
            check_fence(self.paths, fence, lineage=head.lineage, serial=head.serial, changes=head.changes)
            yield rows

    def read(self) -> StateView:
        """The recorded truth at this moment. Raises StateError `state.absent` when nothing was ever recorded."""
        with self._reading() as rows:
            return reading.view(rows)

    def history(self) -> list[RunSummary]:
        """Every run, oldest first."""
        with self._reading() as rows:
            return reading.history(rows)

    def journal(self, serial: int) -> list[JournalEntry]:
        """What one run made durable, in order; empty for a serial that was pruned or never was."""
        with self._reading() as rows:
            return reading.journal(rows, serial)

    def recorded_serials(self) -> dict[str, int]:
        """Host → the last serial that changed what is recorded of it; without hosts that no kept serial touched."""
        with self._reading() as rows:
            return reading.recorded_serials(rows)

    def snapshot(self, serial: int) -> StateSnapshot:
        """What a run left behind. Raises InputError `state.no_snapshot`."""
        with self._reading() as rows:
            return reading.snapshot(rows, self.paths, serial)

    def export(self) -> bytes:
        """The `state.v1` document of what is recorded now; without the key of secret fingerprints."""
        with self._reading() as rows:
            return dump_document(document_of(rows))

    def verify(self) -> None:
        """Read and check everything, history too."""
        with self._reading() as rows:
            reading.verify_all(rows)

    def holder(self) -> LockInfo | None:
        """Who holds the lock right now, as far as it said; None when it is free."""
        if not self.paths.lock.exists():
            return None
        lock = FileLock(self.paths.lock)
        try:
            free = lock.try_acquire(shared=True)
        except SbctlError as error:
            if error.code == "disk.read_only":  # where nobody can write, nobody holds
                return None
            raise
        lock.release()
        if free:
            return None
        return read_holder(self.paths) or LockInfo("unknown", 0, "sbctl", self._clock.now())

    # Writing

    def _refuse_place(self) -> None:
        if not self._allow_network_fs:
            refuse_network_filesystem(self.paths.directory)

    @contextlib.contextmanager
    def lock(self, info: LockInfo, timeout_s: float) -> Iterator[None]:
        """Be the only writer for the length of the block. Raises LockedError `state.locked` after `timeout_s` seconds, naming the holder.

        A damaged state can be locked too, to be repaired.
        """
        self._refuse_place()
        prepare_directory(self.paths.directory)
        lock = acquire(self.paths, timeout_s, self._clock)
        try:
            self._held = info
            now_s = self._clock.now().timestamp()
            fs.sweep_temporaries(self.paths.directory, older_than_s=_TEMPORARIES_OLDER_THAN_S, now_s=now_s)
            if is_there(self.paths.database):
                with contextlib.suppress(SbctlError):
                    self._open_writer()
            yield
        finally:
            self._close_writer()
            self._held = None
            lock.release()

    def _open_writer(self) -> Writer:
        held = self._require_lock()
        if self._writer is None:
            if not self.exists():
                raise refusals.absent(self.paths)
            self._writer = Writer(self.paths)
            self._writer.say_who(held)
        return self._writer

    def _close_writer(self) -> None:
        self._run = None
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.say_who(None)
            writer.close()

    def create(self, fleet_name: str) -> None:
        """A new lineage with serial 0. Raises StateError `state.exists`."""
        self._require_lock()
        if self.exists():
            raise StateError(
                "state.exists",
                "a state is here already",
                place=str(self.paths.directory),
                next_step="use it: sbctl plan; another fleet needs a directory of its own",
            )
        create_state(self.paths, fleet_name)
        self._open_writer()
        self._keep_backup()

    def _require_lock(self) -> LockInfo:
        if self._held is None:
            raise LockedError(
                "state.not_locked", "the state is changed under its lock only", place=str(self.paths.lock)
            )
        return self._held

    def begin_run(self, info: RunInfo, desired: Iterable[Desired]) -> Run:
        """A new serial. A run that died is closed first: its open intents become unknown and its snapshot is written."""
        writer = self._open_writer()
        if self._run is not None:
            raise StateError("state.run_open", f"run {self._run.serial} is still open in this process")
        listed = list(desired)
        with writer.transaction() as rows:
            serial = open_run(rows, info, listed, self._clock.now())
        self._run = run = Run(writer, serial, self._clock, self._run_finished)
        if self.on_begin is not None:
            try:
                self.on_begin()
            except BaseException:
                run.finish("failed")
                raise
        return run

    def _run_finished(self) -> None:
        self._run = None
        self._keep_backup()

    def _keep_backup(self) -> None:
        """The document to repair from, beside the database; then the log is folded in, so that a copy of state.db alone is whole."""
        with self._reading() as rows:
            document = document_of(rows, with_key=True)
        fs.write_atomic(self.paths.backup, dump_document(document))
        self._open_writer().checkpoint()

    def _info(self, info: RunInfo | None) -> RunInfo:
        held = self._require_lock()
        return info or RunInfo(held.command, held.who, tool_version=__version__)

    def _amend(
        self, info: RunInfo | None, change: Callable[[Rows], None], ask: Callable[[list[Json]], list[Json]]
    ) -> None:
        """One change as a serial of its own, or inside the run that is open in this process."""
        writer = self._open_writer()
        with writer.transaction() as rows:
            if self._run is None:
                amend(rows, self._info(info), self._clock.now(), change, ask)
            else:
                change(rows)
        if self._run is None:
            self._keep_backup()

    def remove(self, address: Address, info: RunInfo | None = None) -> None:
        """Forget a resource without touching its host. Raises StateError `state.no_resource`."""

        def change(rows: Rows) -> None:
            if not drop_resource(rows, address, self._clock.now()):
                raise StateError(
                    "state.no_resource",
                    "the state has no such resource",
                    place=str(address),
                    next_step="`sbctl state list` names them",
                )

        self._amend(info, change, lambda desired: [entry for entry in desired if entry["address"] != str(address)])

    def bury(self, tombstone: Tombstone, info: RunInfo | None = None) -> None:
        """Forget a host that nobody can reach, with all that is recorded on it. Raises StateError `state.no_host`."""
        at = self._clock.now()
        self._amend(
            info,
            lambda rows: bury(rows, tombstone, at),
            lambda desired: [entry for entry in desired if entry["host"] != tombstone.host],
        )

    def readmit(self, host: str, info: RunInfo | None = None) -> None:
        """Let a host that was given up come back. Raises StateError `state.no_tombstone`."""
        at = self._clock.now()
        self._amend(info, lambda rows: readmit(rows, host, at), lambda desired: desired)

    def adopt(self, recorded: Recorded, info: RunInfo | None = None) -> None:
        """Record a resource that a host already has. Raises StateError `state.already_recorded`."""
        key = str(recorded.address)

        def change(rows: Rows) -> None:
            if rows.get("resources", key) is not None:
                raise StateError(
                    "state.already_recorded",
                    "the state has this resource already",
                    place=key,
                    next_step=f"`sbctl state rm {key}` first, to record it anew",
                )
            put_resource(rows, recorded, self._clock.now())

        asked = desired_of_recorded(recorded_to_json(recorded))
        self._amend(info, change, lambda desired: [*(e for e in desired if e["address"] != key), asked])

    def rename(self, old: Address, new: Address, info: RunInfo | None = None) -> None:
        """Another name for a deployment. Raises as `sbctl.state.renaming.rename`."""
        move = renaming(old, new)
        at = self._clock.now()
        self._amend(info, lambda rows: rename(rows, old, new, at), lambda asked: renamed_desired(asked, move))

    # Sharing

    def side(self) -> Side | None:
        """This checkout, for `sharing.decide`; None where nothing was ever recorded."""
        if not self.exists():
            return None
        with self._reading() as rows:
            head = rows.head
            lines = {int(serial): decode(body) for serial, body in rows.scan("runs")}
            return Side(head.lineage, head.serial, head.changes, lines)

    def position(self) -> tuple[str, int, int] | None:
        """Lineage, serial and the number of the last write; None where nothing was ever recorded."""
        if not self.exists():
            return None
        with self._reading() as rows:
            return rows.head.lineage, rows.head.serial, rows.head.changes

    def share(self) -> tuple[int, bytes]:
        """The number of the last write, and the shared document of it."""
        with self._reading() as rows:
            return rows.head.changes, dump_shared(shared_of(rows))

    def mirror(self, shared: SharedState) -> None:
        """Be what the shared document says. The caller knows by `sharing.decide` that nothing is lost by it."""
        self._require_lock()
        at = self._clock.now()
        if self.exists():
            with self._open_writer().transaction() as rows:
                mirror(rows, shared, at)
        else:
            importing.found_shared(self.paths, shared, at)
        self._keep_backup()

    def touch(self, *, above: int) -> None:
        """Count one write, so that the number passes `above`, without changing anything else: the document is written anew."""
        with self._open_writer().transaction() as rows:
            rows.head = replace(rows.head, changes=max(rows.head.changes, above))

    def set_trust(self, signers: Mapping[str, str], key_epoch: int, info: RunInfo | None = None) -> None:
        """The signer set that nodes of this lineage trust: name → public key text. The same set again changes nothing."""
        self._require_lock()
        with self._reading() as rows:
            known = {str(name): decode(body) for name, body in rows.scan("signers")}
            unchanged = known == dict(signers) and rows.head.key_epoch == key_epoch
        if unchanged:
            return
        self._amend(
            info, lambda rows: put_signers(rows, signers, key_epoch, self._clock.now()), lambda desired: desired
        )

    def import_document(
        self, data: bytes, *, place: str = "state document", force: bool = False, info: RunInfo | None = None
    ) -> int:
        """Take a `state.v1` document in, by the table of `sbctl.state.importing`; returns the serial that is current then.

        Raises InputError `state.document_invalid`, StateError `state.document_corrupt`, and what the table refuses.
        """
        run_info = self._info(info)
        document = parse_document(data, place=place)
        if self._run is not None:
            raise StateError("state.run_open", f"run {self._run.serial} is still open in this process")
        if not self.exists():
            serial = importing.found(self.paths, document, run_info, self._clock.now())
        else:
            serial = self._push(document, run_info, force=force)
        self._keep_backup()
        return serial

    def _push(self, document: StateDocument, info: RunInfo, *, force: bool) -> int:
        current = self._current(force=force)
        at = self._clock.now()
        if current is None or (force and document.lineage != current.lineage):
            self._close_writer()
            return importing.rebuild(self.paths, document, info, at)
        if document.serial == current.serial and document.content() == current.content():
            return current.serial
        if not force:
            importing.refuse_push(document, current, self.paths.database)
        with self._open_writer().transaction() as rows:
            return importing.merge(rows, document, info, at)

    def _current(self, *, force: bool) -> StateDocument | None:
        """The state as a document; None when it is damaged and that may be repaired. Raises StateError by name."""
        try:
            with self._reading() as rows:
                reading.verify_all(rows)
                return parse_document(dump_document(document_of(rows)))
        except StateError as error:
            if force and error.code in importing.DAMAGE:
                return None
            raise
