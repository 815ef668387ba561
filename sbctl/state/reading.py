"""Reading a state: everything that leaves here was verified row by row and against its seal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.base.truths import Recorded
from sbctl.state import refusals
from sbctl.state.codec import (
    decode,
    desired_from_json,
    intent_from_json,
    journal_from_json,
    recorded_from_json,
    run_from_json,
)
from sbctl.state.journal import run_of, unpack
from sbctl.state.location import StatePaths
from sbctl.state.model import JournalEntry, RunSummary, StateSnapshot, StateView
from sbctl.state.rows import TABLES, Rows
from sbctl.state.tombstones import tombstone_from_json

__all__ = ["history", "journal", "latest_desired", "recorded_serials", "snapshot", "verify_all", "view"]

Json = dict[str, Any]


def _by_address(raw: list[Json]) -> Mapping[Address, Recorded]:
    recorded = (recorded_from_json(entry) for entry in raw)
    return MappingProxyType({entry.address: entry for entry in recorded})


def view(rows: Rows) -> StateView:
    head = rows.head
    return StateView(
        lineage=head.lineage,
        serial=head.serial,
        fleet_name=head.fleet_name,
        resources=_by_address([decode(body) for _, body in rows.scan("resources")]),
        signers=MappingProxyType({str(name): decode(body) for name, body in rows.scan("signers")}),
        key_epoch=head.key_epoch,
        fingerprint_key=head.fingerprint_key,
        revisions=MappingProxyType({str(scope): decode(body) for scope, body in rows.scan("revisions")}),
        open_intents=tuple(intent_from_json(decode(body)) for _, body in rows.scan("intents")),
        last_run=run_of(rows, head.serial) if head.serial else None,
        tombstones=MappingProxyType({host: tombstone_from_json(raw) for host, raw in head.tombstones.items()}),
    )


def history(rows: Rows) -> list[RunSummary]:
    """Oldest first."""
    return [run_from_json(decode(body)) for _, body in rows.scan("runs")]


def journal(rows: Rows, serial: int) -> list[JournalEntry]:
    entries = (journal_from_json(int(key), decode(body)) for key, body in rows.scan("journal"))
    return [entry for entry in entries if entry.serial == serial]


def recorded_serials(rows: Rows) -> dict[str, int]:
    """Scope → the last serial that recorded or forgot a resource of it, as far as the journal reaches."""
    entries = (journal_from_json(int(key), decode(body)) for key, body in rows.scan("journal"))
    changed = (entry for entry in entries if entry.event in ("record", "forget"))
    return {Address.parse(entry.subject).scope: entry.serial for entry in changed}


def snapshot(rows: Rows, paths: StatePaths, serial: int) -> StateSnapshot:
    """Raises InputError `state.no_snapshot` naming the serials that have one."""
    body = rows.get("snapshots", serial)
    if body is None:
        kept = [key for key, _ in rows.scan("snapshots")]  # proves that it was never there, or went by retention
        known = f"serials {kept[0]} to {kept[-1]} have one" if kept else "no run has finished yet"
        raise InputError(
            "state.no_snapshot",
            f"there is no snapshot of serial {serial}; {known}",
            place=str(paths.database),
            next_step="choose a serial of `sbctl state history`",
        )
    raw = unpack(body)
    desired = rows.require("desired", serial)
    if rows.row_digest("desired", serial, desired) != raw["desired_digest"]:
        raise refusals.corrupt(paths, f"snapshot {serial} and its desired list do not belong together")
    return StateSnapshot(
        lineage=raw["lineage"],
        serial=serial,
        run=run_from_json(raw["run"]),
        resources=_by_address(raw["resources"]),
        desired=tuple(desired_from_json(entry) for entry in unpack(desired)),
        signers=MappingProxyType(raw["signers"]),
        key_epoch=raw["key_epoch"],
        digest=rows.row_digest("snapshots", serial, body),
    )


def latest_desired(rows: Rows) -> list[Json] | None:
    """The desired list of the last run, as JSON; None before the first."""
    body = rows.get("desired", rows.head.serial)
    return None if body is None else list(unpack(body))


def verify_all(rows: Rows) -> None:
    """Every row of every table. Raises StateError `state.corrupt`."""
    for table in TABLES:
        for _ in rows.scan(table):
            pass
