"""Two of the four truths as values: what sb.yml asks of a resource, and what the state keeps of it.

They stand on the floor because both the plan (pure, knows no state) and the state (below the plan) speak of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sbctl.base.connection import Connection
from sbctl.base.ids import Address

__all__ = ["ATTEMPTED", "Desired", "Recorded"]

ATTEMPTED: Final = "0" * 64
"""The fingerprint of no spec: creating this resource was begun, and nobody knows yet that it is done."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What sb.yml asks of one resource. `spec` is plain JSON data without secrets; `fingerprint` is of `spec`."""

    address: Address
    spec: Mapping[str, Any]
    fingerprint: str
    host: str
    connection: Connection
    after: frozenset[Address] = frozenset()
    """Edges stay inside one host, except into `bundle.*`."""
    member_of: Address | None = None
    """deployment and origin belong to a bundle: planned row by row, applied only by it."""
    prevent_destroy: bool = False
    keep: bool = False
    """Survives the host's removal."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the state keeps of one resource after it was made so."""

    address: Address
    record: Mapping[str, Any]
    record_version: int
    fingerprint: str
    """Of the spec that was applied."""
    spec: Mapping[str, Any]
    host: str
    connection: Connection
    after: frozenset[Address] = frozenset()
    member_of: Address | None = None
    keep: bool = False
    prevent_destroy: bool = False
    pending_delete: bool = False

    @property
    def attempted(self) -> bool:
        """Whether this only keeps an unfinished creation from being lost: wanted, it is created as if there were no record; else removed."""
        return self.fingerprint == ATTEMPTED
