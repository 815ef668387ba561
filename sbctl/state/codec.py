"""Recorded truths as JSON and back. Bodies are compact JSON with sorted keys; their digests stand beside them, so decoding trusts them.

Plain JSON only: a `Secret`, or anything else that is not JSON, is refused before it can reach the disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sbctl.base.connection import Connection, Jump
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, StateError
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.state.model import JournalEntry, OpenIntent, RunInfo, RunSummary

__all__ = [
    "address_text",
    "connection_from_json",
    "connection_to_json",
    "decode",
    "desired_from_json",
    "desired_of_recorded",
    "desired_to_json",
    "encode",
    "encode_exportable",
    "intent_from_json",
    "intent_to_json",
    "journal_from_json",
    "recorded_from_json",
    "recorded_to_json",
    "run_from_json",
    "run_to_json",
]

Json = dict[str, Any]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _not_recordable(error: Exception, what: str) -> StateError:
    return StateError("state.not_recordable", f"this cannot be kept in the state: {type(error).__name__}", place=what)


def encode(value: object, *, what: str) -> bytes:
    """Compact JSON. Raises StateError `state.not_recordable` naming `what`, never showing the value."""
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
        ).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_recordable(error, what) from None


def _thaw(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _thaw(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_thaw(entry) for entry in value]
    return value


def encode_exportable(value: object, *, what: str) -> bytes:
    """Canonical JSON, for what a document will carry: string keys, numbers within a double. Raises as `encode`."""
    try:
        return canonical_json(_thaw(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise _not_recordable(error, what) from None


def decode(body: bytes) -> Any:
    """The value that `encode` wrote. The caller has verified the digest."""
    return json.loads(body)


def address_text(address: Address) -> str:
    """The key of a resource. Raises StateError `state.not_recordable` for an address that would not come back."""
    text = str(address)
    try:
        same = Address.parse(text) == address
    except InputError:
        same = False
    if not same:
        raise StateError("state.not_recordable", "this is not the address of a resource", place=text)
    return text


def _addresses(addresses: Iterable[Address]) -> list[str]:
    return sorted(address_text(address) for address in addresses)


def _optional_text(address: Address | None) -> str | None:
    return None if address is None else address_text(address)


def _optional_address(text: str | None) -> Address | None:
    return None if text is None else Address.parse(text)


def connection_to_json(connection: Connection) -> Json:
    """All of it, jumps and pins as lists."""
    raw = asdict(connection)
    raw["host_keys"] = list(connection.host_keys)
    raw["jumps"] = [{**asdict(jump), "host_keys": list(jump.host_keys)} for jump in connection.jumps]
    return raw


def connection_from_json(raw: Json) -> Connection:
    jumps = tuple(Jump(**{**jump, "host_keys": tuple(jump["host_keys"])}) for jump in raw["jumps"])
    return Connection(**{**raw, "host_keys": tuple(raw["host_keys"]), "jumps": jumps})


def recorded_to_json(recorded: Recorded) -> Json:
    """The form of one resource in rows, snapshots and documents."""
    return {
        "address": address_text(recorded.address),
        "record": recorded.record,
        "record_version": recorded.record_version,
        "fingerprint": recorded.fingerprint,
        "spec": recorded.spec,
        "host": recorded.host,
        "connection": connection_to_json(recorded.connection),
        "after": _addresses(recorded.after),
        "member_of": _optional_text(recorded.member_of),
        "keep": recorded.keep,
        "prevent_destroy": recorded.prevent_destroy,
        "pending_delete": recorded.pending_delete,
    }


def recorded_from_json(raw: Json) -> Recorded:
    return Recorded(
        address=Address.parse(raw["address"]),
        record=raw["record"],
        record_version=raw["record_version"],
        fingerprint=raw["fingerprint"],
        spec=raw["spec"],
        host=raw["host"],
        connection=connection_from_json(raw["connection"]),
        after=frozenset(Address.parse(text) for text in raw["after"]),
        member_of=_optional_address(raw["member_of"]),
        keep=raw["keep"],
        prevent_destroy=raw["prevent_destroy"],
        pending_delete=raw["pending_delete"],
    )


def desired_to_json(desired: Desired) -> Json:
    return {
        "address": address_text(desired.address),
        "spec": desired.spec,
        "fingerprint": desired.fingerprint,
        "host": desired.host,
        "connection": connection_to_json(desired.connection),
        "after": _addresses(desired.after),
        "member_of": _optional_text(desired.member_of),
        "prevent_destroy": desired.prevent_destroy,
        "keep": desired.keep,
    }


def desired_from_json(raw: Json) -> Desired:
    return Desired(
        address=Address.parse(raw["address"]),
        spec=raw["spec"],
        fingerprint=raw["fingerprint"],
        host=raw["host"],
        connection=connection_from_json(raw["connection"]),
        after=frozenset(Address.parse(text) for text in raw["after"]),
        member_of=_optional_address(raw["member_of"]),
        prevent_destroy=raw["prevent_destroy"],
        keep=raw["keep"],
    )


def desired_of_recorded(raw: Json) -> Json:
    """What must have been asked for when `raw` was recorded: for serials that no run of a configuration made."""
    return {
        key: raw[key]
        for key in (
            "address", "spec", "fingerprint", "host", "connection", "after", "member_of", "prevent_destroy", "keep",
        )
    }  # fmt: skip


def run_to_json(run: RunSummary) -> Json:
    return {
        "serial": run.serial,
        "info": asdict(run.info),
        "status": run.status,
        "started_at": run.started_at.isoformat(),
        "finished_at": None if run.finished_at is None else run.finished_at.isoformat(),
        "resources": run.resources,
        "counts": run.counts,
    }


def run_from_json(raw: Json) -> RunSummary:
    finished = raw["finished_at"]
    return RunSummary(
        serial=raw["serial"],
        info=RunInfo(**raw["info"]),
        status=raw["status"],
        started_at=datetime.fromisoformat(raw["started_at"]),
        finished_at=None if finished is None else datetime.fromisoformat(finished),
        resources=raw["resources"],
        counts=raw["counts"],
    )


def intent_to_json(intent: OpenIntent) -> Json:
    return {
        "step_key": intent.step_key,
        "address": address_text(intent.address),
        "action": intent.action,
        "host": intent.host,
        "method": intent.method,
        "title": intent.title,
        "serial": intent.serial,
        "at": intent.at.isoformat(),
    }


def intent_from_json(raw: Json) -> OpenIntent:
    fields = dict(raw, address=Address.parse(raw["address"]), at=datetime.fromisoformat(raw["at"]))
    return OpenIntent(**fields)


def journal_from_json(sequence: int, raw: Json) -> JournalEntry:
    return JournalEntry(
        sequence=sequence,
        serial=raw["serial"],
        event=raw["event"],
        at=datetime.fromisoformat(raw["at"]),
        subject=raw["subject"],
        detail=raw["detail"],
    )
