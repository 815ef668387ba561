"""Taking a document in: what a push may replace, and how a damaged state is rebuilt.

    here                     document                         without force             with force
    nothing                  any                              created from it           the same
    damaged, emptied, gone   any                              refused by its own name   set aside, rebuilt
    another lineage          any                              state.foreign             set aside, rebuilt
    same lineage             lower serial                     state.regressed           a new serial with its content
                             same serial, same content        nothing to do             nothing to do
                             same serial, other content       state.conflict            a new serial with its content
                             higher serial, no resources      state.would_empty         its serial
                             higher serial                    its serial                its serial

A forced push never goes back: the serial it makes is above every serial known here, and bundle revisions keep their highest value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.errors import StateError
from sbctl.state.codec import decode, desired_of_recorded, encode, recorded_from_json
from sbctl.state.creating import install_database, new_fingerprint_key
from sbctl.state.database import SQLITE_ERRORS, connect
from sbctl.state.document import StateDocument
from sbctl.state.fence import Fence, read_fence, write_fence
from sbctl.state.journal import close_open_run, open_run, put_resource, put_signers, unpack
from sbctl.state.location import StatePaths
from sbctl.state.model import RunInfo
from sbctl.state.rows import Head, Rows, Table, read_head, read_verified
from sbctl.state.shared_document import SharedState, mirror

__all__ = ["DAMAGE", "found", "found_shared", "merge", "rebuild", "refuse_push"]

DAMAGE: Final = frozenset({"state.missing", "state.empty", "state.corrupt", "state.regressed", "state.foreign"})
"""What a forced push repairs. A state of a newer format is not damaged."""


def refuse_push(document: StateDocument, current: StateDocument, place: Path) -> None:
    """The pure rule for a push onto a healthy state, without force. Raises StateError by name."""
    force = "to replace it all the same: --force; what is here now keeps its snapshot"
    if document.lineage != current.lineage:
        raise StateError(
            "state.foreign",
            f"the document is of lineage {document.lineage}, the state here of {current.lineage}",
            place=str(place),
            next_step="push it where it belongs; with --force the state here is set aside",
        )
    if document.serial < current.serial:
        raise StateError(
            "state.regressed",
            f"the document has serial {document.serial}, the state here is at {current.serial}",
            place=str(place),
            next_step=force,
        )
    if document.serial == current.serial:
        raise StateError(
            "state.conflict",
            f"the document and the state here both have serial {document.serial} and differ",
            place=str(place),
            next_step=force,
        )
    if current.resources and not document.resources:
        raise StateError(
            "state.would_empty",
            f"the document has no resources, the state here has {len(current.resources)}",
            place=str(place),
            next_step="to make sbctl forget them all: --force",
        )


def _load(rows: Rows, document: StateDocument, serial: int, info: RunInfo, at: datetime) -> None:
    """Make `serial` the document's content, as one closed run."""
    close_open_run(rows, "interrupted", None)
    rows.head = replace(rows.head, serial=serial - 1, fleet_name=document.fleet_name)
    entries = [entry.model_dump() for entry in document.resources]
    open_run(rows, info, [desired_of_recorded(entry) for entry in entries], at)
    for address, _ in list(rows.scan("resources")):
        rows.drop("resources", address)
    for entry in entries:
        put_resource(rows, recorded_from_json(entry), at)
    put_signers(rows, document.signers, document.key_epoch, at)
    known: dict[str, int] = {str(scope): decode(body) for scope, body in rows.scan("revisions")}
    for scope, revision in document.revisions.items():
        rows.put("revisions", scope, encode(max(revision, known.get(scope, 0)), what=scope))
    rows.head = replace(rows.head, tombstones={host: one.model_dump() for host, one in document.tombstones.items()})
    if document.fingerprint_key is not None:
        rows.head = replace(rows.head, fingerprint_key=bytes.fromhex(document.fingerprint_key))
    close_open_run(rows, "applied", at)


def merge(rows: Rows, document: StateDocument, info: RunInfo, at: datetime) -> int:
    """Take the document into a healthy state of the same lineage; history stays. Returns the serial."""
    serial = max(document.serial, rows.head.serial + 1)
    _load(rows, document, serial, info, at)
    return serial


def found(paths: StatePaths, document: StateDocument, info: RunInfo, at: datetime) -> int:
    """Create the state from the document where nothing is. Returns the serial."""
    serial = max(document.serial, 1)
    write_fence(paths, Fence(document.lineage, 0, 0))
    head = Head(document.lineage, document.fleet_name, new_fingerprint_key())
    head = install_database(paths, head, lambda rows: _load(rows, document, serial, info, at))
    write_fence(paths, Fence(head.lineage, head.serial, head.changes))
    return serial


def found_shared(paths: StatePaths, shared: SharedState, at: datetime) -> None:
    """Create the state as the shared document has it, where nothing is."""
    write_fence(paths, Fence(shared.lineage, 0, 0))

    def fill(rows: Rows) -> None:
        mirror(rows, shared, at)
        rows.head = replace(rows.head, changes=shared.changes)

    head = Head(shared.lineage, shared.state.fleet_name, bytes.fromhex(str(shared.state.fingerprint_key)))
    head = install_database(paths, head, fill)
    write_fence(paths, Fence(head.lineage, head.serial, head.changes))


@dataclass(slots=True)
class _Salvage:
    """What is still proved by its own digests in a file that as a whole cannot be believed."""

    serial: int = 0
    changes: int = 0
    fingerprint_key: bytes | None = None
    revisions: dict[str, int] = field(default_factory=dict)
    rows: dict[Table, dict[int, bytes]] = field(default_factory=dict)


def rebuild(paths: StatePaths, document: StateDocument, info: RunInfo, at: datetime) -> int:
    """Set aside what is here and build the state anew from the document. Returns the serial.

    A crash in between leaves a state that is refused as missing, until the push is repeated.
    """
    fence: Fence | None = None
    with contextlib.suppress(StateError):
        fence = read_fence(paths)
    aside = _set_aside(paths)
    salvage = _salvage(aside, document.lineage)
    if fence is not None and fence.lineage == document.lineage:
        salvage.serial = max(salvage.serial, fence.serial)
        salvage.changes = max(salvage.changes, fence.changes)
    serial = document.serial if document.serial > salvage.serial else salvage.serial + 1
    key = salvage.fingerprint_key or new_fingerprint_key()
    head = Head(document.lineage, document.fleet_name, key, changes=salvage.changes + 1)

    def fill(rows: Rows) -> None:
        for table, kept in salvage.rows.items():
            for key_, body in kept.items():
                rows.put(table, key_, body)
        for scope, revision in salvage.revisions.items():
            rows.put("revisions", scope, encode(revision, what=scope))
        _load(rows, document, serial, info, at)

    write_fence(paths, Fence(head.lineage, serial, head.changes))
    install_database(paths, head, fill)
    return serial


def _set_aside(paths: StatePaths) -> Path:
    """Move database and log, as a pair, to a name that is free. The log goes first: a new database never meets an old log."""
    number = 1
    while (aside := paths.directory / f"state.db.aside-{number}").exists():
        number += 1
    log = paths.write_ahead_log
    if log.is_file():
        if log.stat().st_size:
            fs.install_file(log, Path(f"{aside}-wal"), mode=0o600)
        else:
            fs.remove_file(log)
    fs.remove_file(paths.shared_memory)
    if paths.database.is_file():
        fs.install_file(paths.database, aside, mode=0o600)
    return aside


def _salvage(path: Path, lineage: str) -> _Salvage:
    result = _Salvage()
    if not path.is_file() or not path.stat().st_size:
        return result
    paths = StatePaths(path.parent)
    with contextlib.suppress(*SQLITE_ERRORS), contextlib.closing(connect(path, "mode=rw")) as connection:
        with contextlib.suppress(*SQLITE_ERRORS, StateError):
            head = read_head(connection, paths)
            if head.lineage != lineage:
                return _Salvage()
            result.serial, result.changes, result.fingerprint_key = head.serial, head.changes, head.fingerprint_key
        for key, body in read_verified(connection, "revisions"):
            result.revisions[str(key)] = decode(body)
        _salvage_history(result, lineage, lambda table: dict(read_verified(connection, table)))
    return result


def _salvage_history(result: _Salvage, lineage: str, read: Callable[[Table], dict[str | int, bytes]]) -> None:
    """Snapshots of this lineage that are whole, with their desired lists and lines of history."""
    snapshots, desired, runs = read("snapshots"), read("desired"), read("runs")
    serials = [
        int(key)
        for key, body in snapshots.items()
        if key in desired and key in runs and unpack(body)["lineage"] == lineage
    ]
    tables: tuple[tuple[Table, dict[str | int, bytes]], ...] = (
        ("snapshots", snapshots),
        ("desired", desired),
        ("runs", runs),
    )
    for table, rows in tables:
        result.rows[table] = {serial: rows[serial] for serial in serials}
