"""Hosts that were given up while nobody could reach them: what is left of them in the state.

A tombstone keeps a machine that comes back from being taken for the host that it was: its marker is refused until somebody takes it in
again, and then it is installed anew. Where the host had an identity of the cluster, the tombstone keeps its record for whoever revokes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sbctl.base.errors import StateError
from sbctl.base.ids import Address
from sbctl.state.codec import decode
from sbctl.state.journal import drop_resource, note
from sbctl.state.model import Tombstone
from sbctl.state.rows import Rows

__all__ = ["bury", "readmit", "tombstone_from_json", "tombstone_to_json"]

Json = dict[str, Any]


def tombstone_to_json(tombstone: Tombstone) -> Json:
    return {
        **asdict(tombstone),
        "at": tombstone.at.isoformat(),
        "resources": list(tombstone.resources),
        "certificate": dict(tombstone.certificate),
    }


def tombstone_from_json(raw: Mapping[str, Any]) -> Tombstone:
    return Tombstone(**{**raw, "at": datetime.fromisoformat(raw["at"]), "resources": tuple(raw["resources"])})


def bury(rows: Rows, tombstone: Tombstone, at: datetime) -> None:
    """Drop everything recorded on the host and leave the tombstone. Raises StateError `state.no_host`."""
    entries = [decode(body) for _, body in rows.scan("resources")]
    gone = [entry for entry in entries if entry["host"] == tombstone.host]
    if not gone:
        raise _unknown(tombstone.host)
    for entry in gone:
        drop_resource(rows, Address.parse(entry["address"]), at)
    _put(rows, replace(tombstone, serial=rows.head.serial))
    note(rows, "bury", tombstone.host, at, {"resources": len(gone), "why": tombstone.why})


def readmit(rows: Rows, host: str, at: datetime) -> None:
    """Let the host come back. Raises StateError `state.no_tombstone`."""
    found = rows.head.tombstones.get(host)
    if found is None:
        raise StateError(
            "state.no_tombstone",
            f"{host} was not given up as lost",
            place=f"host.{host}",
            next_step=f"hosts that were: {_names(rows.head.tombstones)}",
        )
    _put(rows, replace(tombstone_from_json(found), readmitted=True))
    note(rows, "readmit", host, at)


def _put(rows: Rows, tombstone: Tombstone) -> None:
    tombstones = {**rows.head.tombstones, tombstone.host: tombstone_to_json(tombstone)}
    rows.head = replace(rows.head, tombstones=tombstones)


def _unknown(host: str) -> StateError:
    return StateError(
        "state.no_host",
        f"nothing is recorded on a host {host}",
        place=f"host.{host}",
        next_step="sbctl host list names the hosts, sbctl state list what is recorded on them",
    )


def _names(hosts: Iterable[str]) -> str:
    return ", ".join(sorted(hosts)) or "none"
