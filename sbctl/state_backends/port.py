"""What a place for the shared document must be able to do, and the lock ticket in the words of Terraform's protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sbctl import __version__
from sbctl.base.clock import Clock, rfc3339
from sbctl.base.display import display_safe
from sbctl.base.errors import LockedError, UnreachableError
from sbctl.state.model import LockInfo

__all__ = ["Backend", "Ticket", "lock_lost", "locked", "unreachable", "untrusted"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who holds the shared lock; `id` proves it."""

    id: str
    operation: str
    who: str
    version: str
    created: str
    path: str = ""

    @classmethod
    def issue(cls, info: LockInfo, place: str, clock: Clock) -> Ticket:
        return cls(str(uuid.uuid4()), info.command, info.who, __version__, rfc3339(clock.now()), place)

    def to_json(self) -> dict[str, str]:
        """LockInfo as Terraform writes it."""
        return {
            "ID": self.id,
            "Operation": self.operation,
            "Info": "",
            "Who": self.who,
            "Version": self.version,
            "Created": self.created,
            "Path": self.path,
        }

    @classmethod
    def from_json(cls, raw: object) -> Ticket | None:
        """A holder as a server tells it, made safe to print; None when it tells none."""
        if not isinstance(raw, Mapping) or not raw.get("ID"):
            return None
        names = ("ID", "Operation", "Who", "Version", "Created", "Path")
        return cls(*(display_safe(str(raw.get(name) or ""), max_chars=200) for name in names))

    @classmethod
    def parse(cls, data: bytes) -> Ticket | None:
        try:
            return cls.from_json(json.loads(data))
        except (ValueError, RecursionError):
            return None


class Backend(Protocol):
    """One place that keeps one document and one lock. Methods raise UnreachableError `state.unreachable`, RefusedError `state.denied`."""

    @property
    def place(self) -> str:
        """For people; without credentials."""

    def fetch(self) -> bytes | None:
        """The document; None when there is none. Raises StateError `state.document_corrupt` for one that was cut on its way."""

    def store(self, data: bytes, *, head: Mapping[str, Any], expected_sha256: str) -> None:
        """Replace the document under the lock. `head` has `lineage` and `serial`; `expected_sha256` names the document that it replaces, empty for none.

        Raises LockedError `state.lock_lost`, StateError `state.conflict`.
        """

    def lock(self, ticket: Ticket) -> None:
        """Raises LockedError `state.locked` with the holder's ticket in `detail` when somebody else holds it."""

    def unlock(self, ticket_id: str) -> None:
        """Give the lock back, or take it from the holder of that id. Raises LockedError `state.lock_mismatch` naming who holds it instead."""

    def close(self) -> None:
        """Let connections go."""


def unreachable(place: str, why: str) -> UnreachableError:
    return UnreachableError(
        "state.unreachable",
        f"the shared state cannot be reached: {why}",
        place=place,
        next_step="check the address, the network and the server, then run the command again",
        retryable=True,
    )


def untrusted(place: str, why: str) -> UnreachableError:
    """The server shows no certificate, or none that counts; trying again does not help."""
    return UnreachableError(
        "state.server_untrusted",
        f"the server of the shared state is not proven to be the one that was named: {why}",
        place=place,
        next_step="check the name in the address and the server's certificate; fleet.state.ca_file names who issued it",
    )


def locked(place: str, holder: Ticket | None) -> LockedError:
    if holder is None:
        sentence, step = "the shared state is locked by somebody that the server does not name", "wait until it is free"
    else:
        sentence = f"the shared state is locked by {holder.who} ({holder.operation}) since {holder.created}"
        step = (
            f"wait, or let this command wait: --lock-timeout 600; if that run is dead: sbctl state unlock {holder.id}"
        )
    return LockedError(
        "state.locked",
        sentence,
        place=place,
        next_step=step,
        retryable=True,
        detail=holder.to_json() if holder is not None else {},
    )


def lock_lost(place: str, holder: Ticket | None = None) -> LockedError:
    by = f"; {holder.who} ({holder.operation}) holds it since {holder.created}" if holder is not None else ""
    return LockedError(
        "state.lock_lost",
        f"the lock on the shared state is no longer ours{by}",
        place=place,
        next_step="run the command again once nobody else holds it: it reads the hosts before it acts",
    )
