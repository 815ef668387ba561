"""What every write of a run consists of: rows, and a journal entry that says so, in one transaction."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sbctl.base.ids import Address
from sbctl.base.limits import STATE_SNAPSHOTS_KEPT
from sbctl.base.truths import Desired, Recorded
from sbctl.state.codec import (
    address_text,
    decode,
    desired_to_json,
    encode,
    encode_exportable,
    recorded_to_json,
    run_from_json,
    run_to_json,
)
from sbctl.state.model import RunInfo, RunStatus, RunSummary
from sbctl.state.rows import Rows

__all__ = [
    "COUNTS",
    "close_open_run",
    "drop_resource",
    "note",
    "open_run",
    "pack",
    "put_resource",
    "put_signers",
    "run_of",
    "unpack",
]

Json = dict[str, Any]

COUNTS: Final = ("done", "not_done", "unknown", "recorded", "forgotten")


def pack(value: object, *, what: str) -> bytes:
    """Compressed JSON, for the bodies that hold a whole fleet."""
    return zlib.compress(encode(value, what=what), 1)


def unpack(body: bytes) -> Any:
    return decode(zlib.decompress(body))


def note(
    rows: Rows,
    event: str,
    subject: str,
    at: datetime,
    detail: Mapping[str, object] | None = None,
    *,
    count: str | None = None,
) -> None:
    """Append one entry to the journal of the serial that is current; `count` names the counter of its run that grows."""
    head = rows.head
    counts = head.counts if count is None else {**head.counts, count: head.counts.get(count, 0) + 1}
    rows.head = replace(head, sequence=head.sequence + 1, counts=counts, last_at=at.isoformat())
    entry = {
        "serial": head.serial, "event": event, "at": at.isoformat(), "subject": subject, "detail": detail or {},
    }  # fmt: skip
    rows.put("journal", rows.head.sequence, encode(entry, what=subject))


def put_resource(rows: Rows, recorded: Recorded, at: datetime) -> None:
    key = address_text(recorded.address)
    body = encode_exportable(recorded_to_json(recorded), what=key)
    rows.put("resources", key, body)
    note(
        rows,
        "record",
        key,
        at,
        {"fingerprint": recorded.fingerprint, "row": rows.row_digest("resources", key, body)},
        count="recorded",
    )


def drop_resource(rows: Rows, address: Address, at: datetime) -> bool:
    """False when it was not recorded; then nothing is written."""
    if not rows.drop("resources", str(address)):
        return False
    note(rows, "forget", str(address), at, count="forgotten")
    return True


def put_signers(rows: Rows, signers: Mapping[str, str], key_epoch: int, at: datetime) -> None:
    """Replace the whole set."""
    for name, _ in list(rows.scan("signers")):
        rows.drop("signers", name)
    for name, public_text in signers.items():
        rows.put("signers", name, encode(public_text, what=name))
    rows.head = replace(rows.head, key_epoch=key_epoch)
    note(rows, "trust", str(key_epoch), at, {"signers": sorted(signers)})


def open_run(rows: Rows, info: RunInfo, desired: Iterable[Desired] | list[Json], at: datetime) -> int:
    """A new serial with its desired list; a run that was left open is closed first. Returns the serial."""
    close_open_run(rows, "interrupted", None)
    serial = rows.head.serial + 1
    rows.head = replace(rows.head, serial=serial, open_serial=serial, counts=dict.fromkeys(COUNTS, 0), last_at=None)
    listed = [desired_to_json(entry) if isinstance(entry, Desired) else entry for entry in desired]
    listed.sort(key=lambda entry: str(entry["address"]))
    rows.put("desired", serial, pack(listed, what="desired"))
    summary = RunSummary(serial, info, "running", at)
    rows.put("runs", serial, encode(run_to_json(summary), what="run"))
    return serial


def run_of(rows: Rows, serial: int) -> RunSummary:
    return run_from_json(decode(rows.require("runs", serial)))


def close_open_run(rows: Rows, status: RunStatus, at: datetime | None) -> None:
    """End the open run, if there is one: open intents become unknown, its snapshot is written, old ones are pruned.

    `at` None: the run died, and ended with its last entry in the journal.
    """
    serial = rows.head.open_serial
    if serial is None:
        return
    summary = run_of(rows, serial)
    last_at = summary.started_at if rows.head.last_at is None else datetime.fromisoformat(rows.head.last_at)
    finished_at = at or last_at
    for step_key, _ in list(rows.scan("intents")):
        rows.drop("intents", step_key)
        note(rows, "outcome", str(step_key), finished_at, {"result": "unknown", "closed": True}, count="unknown")
    resources = [decode(body) for _, body in rows.scan("resources")]
    summary = replace(
        summary, status=status, finished_at=finished_at, resources=len(resources), counts=dict(rows.head.counts)
    )
    note(rows, "close", status, finished_at)
    rows.put("runs", serial, encode(run_to_json(summary), what="run"))
    rows.put("snapshots", serial, pack(_snapshot(rows, serial, summary, resources), what="snapshot"))
    rows.head = replace(rows.head, open_serial=None, counts={}, last_at=None)
    _prune(rows)


def _snapshot(rows: Rows, serial: int, summary: RunSummary, resources: list[Json]) -> Json:
    return {
        "schema_version": 1,
        "lineage": rows.head.lineage,
        "serial": serial,
        "run": run_to_json(summary),
        "resources": resources,
        "desired_digest": rows.row_digest("desired", serial, rows.require("desired", serial)),
        "signers": {str(name): decode(body) for name, body in rows.scan("signers")},
        "key_epoch": rows.head.key_epoch,
    }


def _prune(rows: Rows) -> None:
    """Snapshots and journal of the last STATE_SNAPSHOTS_KEPT serials stay; the line of history of each serial stays for ever."""
    oldest = rows.head.serial - STATE_SNAPSHOTS_KEPT + 1
    for serial in rows.serials("snapshots"):
        if serial >= oldest:
            break
        rows.drop("snapshots", serial)
        rows.drop("desired", serial)
    for sequence in rows.serials("journal"):
        if decode(rows.require("journal", sequence))["serial"] >= oldest:
            break
        rows.drop("journal", sequence)
