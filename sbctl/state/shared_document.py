"""The document that several checkouts share: what another one needs to go on exactly where this one stands.

    state       `state.v1` with the key of secret fingerprints, so that two operators see the same secrets as unchanged
    open_run    of a run that has not finished, with its open intents
    history     the newest lines of it
    kept        desired lists and snapshots of the current serial and of the finished ones before it, for rollback

`serial` counts writes over a lineage's life and only grows: servers that know Terraform's documents (GitLab) compare it. The number of the
run is `state.serial`. Secrets are not in it, but the fingerprint key is: who reads it can test guesses of weak secrets, so encrypt it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import InputError, StateError
from sbctl.base.limits import SHARED_HISTORY_LINES, SHARED_SNAPSHOTS, STATE_DOCUMENT_MAX_BYTES
from sbctl.state.codec import decode, encode, encode_exportable, recorded_from_json, recorded_to_json
from sbctl.state.document import (
    AddressText,
    ConnectionEntry,
    Digest,
    Entry,
    Numbering,
    ResourceEntry,
    StateDocument,
    document_from,
    document_of,
    first_problem,
    flaw_of,
)
from sbctl.state.journal import note, pack, unpack
from sbctl.state.rows import Rows

__all__ = ["FORMAT", "SharedState", "dump_shared", "mirror", "parse_shared", "shared_of", "with_move"]

FORMAT: Final = "sbctl.shared"
VERSION: Final = 1
_ROOMY_BYTES: Final = STATE_DOCUMENT_MAX_BYTES // 4

Json = dict[str, Any]


def _time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without an offset")
    return text


Time = Annotated[str, AfterValidator(_time)]


class RunInfoEntry(Entry):
    """Who started a run and from where."""

    command: str
    operator: str
    commit: str
    ci_url: str
    tool_version: str


class RunEntry(Entry):
    """One line of history."""

    serial: Numbering
    info: RunInfoEntry
    status: Literal["running", "applied", "partial", "failed", "interrupted"]
    started_at: Time
    finished_at: Time | None
    resources: Numbering
    counts: dict[str, Numbering]


class OpenRunEntry(Entry):
    """The run that has not finished."""

    serial: Numbering
    counts: dict[str, Numbering]
    last_at: Time | None


class IntentEntry(Entry):
    """A step that was begun and has no outcome."""

    step_key: str
    address: AddressText
    action: str
    host: str
    method: str
    title: str
    serial: Numbering
    at: Time


class DesiredEntry(Entry):
    """What a run was asked to make of one resource."""

    address: AddressText
    spec: dict[str, Any]
    fingerprint: str
    host: str
    connection: ConnectionEntry
    after: list[AddressText]
    member_of: AddressText | None
    prevent_destroy: bool
    keep: bool


class SnapshotEntry(Entry):
    """What a run left behind, without the digest that binds it to its desired list in one database."""

    schema_version: Literal[1]
    lineage: str
    serial: Numbering
    run: RunEntry
    resources: list[ResourceEntry]
    signers: dict[str, str]
    key_epoch: Numbering


class KeptEntry(Entry):
    """A serial that can be rolled back to; without a snapshot: the run that is open."""

    serial: Numbering
    desired: list[DesiredEntry]
    snapshot: SnapshotEntry | None


class _SharedDocument(Entry):
    format: Literal["sbctl.shared"]
    version: Literal[1]
    kind: Literal["state"]
    lineage: str
    serial: Numbering
    moved_to: str | None
    state: dict[str, Any]
    open_run: OpenRunEntry | None
    intents: list[IntentEntry]
    history: list[RunEntry]
    kept: list[KeptEntry]
    digest: Digest


@dataclass(frozen=True, slots=True)
class SharedState:
    """A shared document that was checked."""

    state: StateDocument
    raw: Json

    @property
    def lineage(self) -> str:
        return self.state.lineage

    @property
    def serial(self) -> int:
        """Of the run."""
        return self.state.serial

    @property
    def changes(self) -> int:
        """Of the write: what grows with every one."""
        return int(self.raw["serial"])

    @property
    def moved_to(self) -> str | None:
        moved: str | None = self.raw["moved_to"]
        return moved

    @property
    def lines(self) -> Mapping[int, Json]:
        """History by serial."""
        return {line["serial"]: line for line in self.raw["history"]}


def shared_of(rows: Rows) -> Json:
    """The document of what stands in the database now."""
    head = rows.head
    raw: Json = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "state",
        "lineage": head.lineage,
        "serial": head.changes,
        "moved_to": None,
        "state": document_of(rows, with_key=True),
        "open_run": None
        if head.open_serial is None
        else {"serial": head.open_serial, "counts": dict(head.counts), "last_at": head.last_at},
        "intents": [decode(body) for _, body in rows.scan("intents")],
        "history": [decode(body) for _, body in rows.scan("runs")][-SHARED_HISTORY_LINES:],
        "kept": _kept(rows),
    }
    return {**raw, "digest": fingerprint(raw)}


def _kept(rows: Rows) -> list[Json]:
    """The current serial, and finished ones before it as long as the document stays handy."""
    serials = [serial for serial, _ in rows.scan("desired")][-SHARED_SNAPSHOTS:]
    listed: list[Json] = []
    size = 0
    for serial in reversed(serials):
        desired, snapshot = rows.require("desired", serial), rows.get("snapshots", serial)
        entry: Json = {"serial": serial, "desired": unpack(desired), "snapshot": None}
        if snapshot is not None:
            entry["snapshot"] = {key: value for key, value in unpack(snapshot).items() if key != "desired_digest"}
        size += len(encode(entry, what="snapshot"))
        if listed and size > _ROOMY_BYTES:
            break
        listed.append(entry)
    return listed[::-1]


def dump_shared(raw: Json) -> bytes:
    """Canonical JSON. Raises StateError `state.too_large` for what no checkout would read."""
    data = canonical_json(raw)
    if len(data) > STATE_DOCUMENT_MAX_BYTES // 2:
        raise StateError(
            "state.too_large",
            f"the shared document would have {len(data) >> 20} MiB; at most {STATE_DOCUMENT_MAX_BYTES >> 21} are shared",
            next_step="split the fleet into several sb.yml files, each with a state of its own",
        )
    return data


def with_move(raw: Json, to: str) -> Json:
    """The same document, one write later, marked as moved."""
    moved = {**raw, "serial": raw["serial"] + 1, "moved_to": to}
    moved.pop("digest")
    return {**moved, "digest": fingerprint(moved)}


def _invalid(what: str, place: str) -> InputError:
    return InputError(
        "state.document_invalid",
        f"the shared state is not one: {what}",
        place=place,
        next_step="check fleet.state: its address must be this fleet's own; an older copy goes back by sbctl state push --force FILE",
    )


def parse_shared(data: bytes, *, place: str) -> SharedState:
    """Raises InputError `json.*`, `state.document_invalid`; StateError `state.document_corrupt`, `state.too_new`."""
    raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
    fields: Json = raw if isinstance(raw, dict) else {}
    flaw = flaw_of(fields, FORMAT, version_field="version", known=VERSION)
    if flaw == "foreign":
        raise _invalid("another program's document stands there", place)
    if flaw == "newer":
        raise StateError(
            "state.too_new",
            f"the shared state has format {fields['version']}; this sbctl knows formats up to {VERSION}",
            place=place,
            next_step="use the sbctl that wrote it, or a newer one",
        )
    if flaw == "cut":
        raise StateError(
            "state.document_corrupt",
            "the digest of the shared state does not match its content: it was cut or edited",
            place=place,
            next_step="take an older copy from the server's own history, then: sbctl state push --force FILE",
        )
    try:
        document = _SharedDocument.model_validate(fields)
    except ValidationError as error:
        raise _invalid(first_problem(error), place) from None
    state = document_from(document.state, place=place)
    _check_whole(document, state, place)
    return SharedState(state, fields)


def _check_whole(document: _SharedDocument, state: StateDocument, place: str) -> None:
    """The parts belong together."""
    history = [line.serial for line in document.history]
    kept = [entry.serial for entry in document.kept]
    open_serial = None if document.open_run is None else document.open_run.serial
    current = [state.serial] if state.serial else []
    unfinished = [entry.serial for entry in document.kept if entry.snapshot is None]
    for wrong, what in (
        (state.lineage != document.lineage, "its two lineages differ"),
        (state.fingerprint_key is None, "it has no fingerprint key"),
        (history != sorted(set(history)) or history[-1:] != current, "its history does not end with its serial"),
        (kept != sorted(set(kept)) or kept[-1:] != current, "it does not keep its own serial"),
        (open_serial not in (None, state.serial), "its open run is not its last one"),
        (not set(kept) <= set(history), "a kept serial is not in its history"),
        (unfinished != ([] if open_serial is None else [open_serial]), "a kept serial has no snapshot"),
        (any(intent.serial != open_serial for intent in document.intents), "an intent is of no open run"),
        (any(entry.snapshot and entry.snapshot.serial != entry.serial for entry in document.kept), "a snapshot is of another serial"),
    ):  # fmt: skip
        if wrong:
            raise _invalid(what, place)


def mirror(rows: Rows, shared: SharedState, at: datetime) -> None:
    """Make the database what the document says, to the number of the write. Older lines of history and snapshots stay."""
    raw, state = shared.raw, shared.state
    for table in ("resources", "signers", "revisions", "intents"):
        for key, _ in list(rows.scan(table)):
            rows.drop(table, key)
    for entry in state.resources:
        body = encode_exportable(recorded_to_json(recorded_from_json(entry.model_dump())), what=entry.address)
        rows.put("resources", entry.address, body)
    for name, text in state.signers.items():
        rows.put("signers", name, encode(text, what=name))
    for scope, revision in state.revisions.items():
        rows.put("revisions", scope, encode(revision, what=scope))
    for intent in raw["intents"]:
        rows.put("intents", intent["step_key"], encode(intent, what="intent"))
    for line in raw["history"]:
        rows.put("runs", line["serial"], encode(line, what="run"))
    for kept in raw["kept"]:
        _keep(rows, kept)
    opened = raw["open_run"]
    rows.head = replace(
        rows.head,
        fleet_name=state.fleet_name,
        fingerprint_key=bytes.fromhex(str(state.fingerprint_key)),
        serial=state.serial,
        key_epoch=state.key_epoch,
        tombstones={host: one.model_dump() for host, one in state.tombstones.items()},
        open_serial=None if opened is None else opened["serial"],
        counts={} if opened is None else opened["counts"],
    )
    note(rows, "pull", str(shared.changes), at)
    # `write_head` counts this transaction; then both sides have the same number.
    rows.head = replace(rows.head, changes=shared.changes - 1, last_at=None if opened is None else opened["last_at"])


def _keep(rows: Rows, kept: Json) -> None:
    serial = kept["serial"]
    desired = pack(kept["desired"], what="desired")
    rows.put("desired", serial, desired)
    rows.drop("snapshots", serial)
    if kept["snapshot"] is not None:
        bound = {**kept["snapshot"], "desired_digest": rows.row_digest("desired", serial, desired)}
        rows.put("snapshots", serial, pack(bound, what="snapshot"))
