"""Working copy and shared document: which of the two goes on, and when neither may.

    shared     this checkout                          answer
    nothing    nothing                                nothing        a new fleet
    nothing    made for it, never sent                send
    nothing    has seen it there                      state.remote_missing
    nothing    of another place                       state.not_migrated
    moved      any                                    state.moved
    there      nothing                                take
    there      another lineage                        state.foreign
    older      has seen a newer one                   state.remote_regressed
    newer      unchanged since it last saw it         take
    as seen    went on                                send
    newer      went on                                state.diverged
    the same   the same                               same

"Newer" is the number of the write, which grows for a lineage's whole life. Where a checkout never saw the document, history decides: the one
goes on from the other when it has the other's last run in its history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sbctl.base import fs, strict_json
from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, RefusedError, StateError
from sbctl.base.limits import KIB
from sbctl.state.location import StatePaths
from sbctl.state.settings import StateSettings

__all__ = ["Answer", "Seen", "Side", "decide", "forget_seen", "goes_on_from", "read_seen", "write_seen"]

Answer = Literal["nothing", "take", "send", "same"]

_MAX_BYTES: Final = 64 * KIB
_RUN_KEYS: Final = ("started_at", "info")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two, as far as the decision needs it. `lines` is history by serial, as JSON."""

    lineage: str
    serial: int
    changes: int
    lines: Mapping[int, Mapping[str, Any]]
    moved_to: str | None = None
    digest: str = ""
    """SHA-256 of the bytes, for the shared one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What this checkout last knew of the shared document, beside the lock. `changes` 0: that nothing was there.

    `sending_*`: a write whose answer may have been lost. `settings` are those of sb.yml at that time, with references only.
    """

    lineage: str
    serial: int
    changes: int
    digest: str
    settings: StateSettings
    sending_digest: str = ""

    @property
    def place(self) -> str:
        return self.settings.place


def read_seen(paths: StatePaths) -> Seen | None:
    """None when this checkout shares nothing. Raises StateError `state.corrupt`, SbctlError when it cannot be read."""
    try:
        raw = strict_json.loads(fs.read_bounded(paths.seen, max_bytes=_MAX_BYTES), max_bytes=_MAX_BYTES)
        digest = raw.pop("digest_of_this")
        if digest != fingerprint(raw):
            raise TypeError
        return Seen(**{**raw, "settings": StateSettings.from_json(raw["settings"])})
    except InputError as error:
        if error.code == "file.missing":
            return None
        if error.code == "file.unreadable":
            raise
    except (TypeError, KeyError, AttributeError):
        pass
    raise StateError(
        "state.corrupt",
        "remote.json, which remembers the shared state, is damaged",
        place=str(paths.seen),
        next_step=f"move {paths.directory} aside: the next command takes the shared state in anew",
    )


def write_seen(paths: StatePaths, seen: Seen) -> None:
    """Durable when it returns. Raises SbctlError."""
    raw = {**asdict(seen), "settings": seen.settings.to_json()}
    raw["settings"] = strict_json.loads(strict_json.dump_pretty(raw["settings"]).encode(), max_bytes=_MAX_BYTES)
    fs.write_atomic(paths.seen, strict_json.dump_pretty({**raw, "digest_of_this": fingerprint(raw)}).encode())


def forget_seen(paths: StatePaths) -> None:
    """This checkout shares nothing any more. Raises SbctlError."""
    fs.remove_file(paths.seen)


def goes_on_from(newer: Side, older: Side) -> bool:
    """Whether one is of the other's lineage, not behind it, and has its last run in its history."""
    if newer.lineage != older.lineage or newer.changes < older.changes or newer.serial < older.serial:
        return False
    if older.serial == 0:
        return True
    mine, theirs = newer.lines.get(older.serial), older.lines.get(older.serial)
    return mine is not None and theirs is not None and all(mine[key] == theirs[key] for key in _RUN_KEYS)


def _settled(remote: Side, seen: Seen) -> Seen:
    """`seen` after a write whose answer was lost and which did arrive."""
    if seen.sending_digest and remote.digest == seen.sending_digest:
        return Seen(remote.lineage, remote.serial, remote.changes, remote.digest, seen.settings)
    return seen


def decide(local: Side | None, remote: Side | None, seen: Seen | None, place: str) -> Answer:
    """The table of this module. Raises StateError, RefusedError by name."""
    if remote is None:
        return _without_remote(local, seen, place)
    if remote.moved_to is not None:
        raise RefusedError(
            "state.moved",
            f"the state was moved to {remote.moved_to}",
            place=place,
            next_step="take the sb.yml that names the new place",
        )
    if seen is not None and seen.lineage == remote.lineage:
        seen = _settled(remote, seen)
        if remote.changes < seen.changes:
            raise StateError(
                "state.remote_regressed",
                f"the shared state is older than what was seen there: write {remote.changes} (serial {remote.serial}), "
                f"and write {seen.changes} (serial {seen.serial}) was read or written from here",
                place=place,
                next_step="find out who put an old copy there; to write back what this checkout has: sbctl state pull --local > state.json, "
                "then sbctl state push --force state.json",
            )
    if local is None:
        return "take"
    if local.lineage != remote.lineage:
        raise StateError(
            "state.foreign",
            f"the shared state is of lineage {remote.lineage}, this checkout of {local.lineage}",
            place=place,
            next_step="check fleet.state.address; a checkout that belongs to another fleet needs its own .sbctl",
        )
    return _of_one_lineage(local, remote, seen, place)


def _without_remote(local: Side | None, seen: Seen | None, place: str) -> Answer:
    if seen is not None and seen.place == place and seen.changes > 0:
        raise StateError(
            "state.remote_missing",
            f"the shared state is gone: serial {seen.serial} was there",
            place=place,
            next_step="put it back from the server's own copies, or from this checkout: sbctl state pull --local > state.json, "
            "then sbctl state push --force state.json",
        )
    if local is None:
        return "nothing"
    if seen is not None and seen.place == place:
        return "send"
    raise RefusedError(
        "state.not_migrated",
        "sb.yml names a place for the shared state, and the state is still kept elsewhere",
        place=place,
        next_step="sbctl state migrate",
    )


def _of_one_lineage(local: Side, remote: Side, seen: Seen | None, place: str) -> Answer:
    if seen is not None and seen.lineage != local.lineage:
        seen = None
    local_moved = local.changes != seen.changes if seen is not None else None
    remote_moved = remote.changes != seen.changes or remote.digest != seen.digest if seen is not None else None
    if local.changes == remote.changes and goes_on_from(remote, local) and not (local_moved and remote_moved):
        return "same"
    if remote.changes > local.changes and (not local_moved if seen is not None else goes_on_from(remote, local)):
        return "take"
    if local.changes > remote.changes and (not remote_moved if seen is not None else goes_on_from(local, remote)):
        return "send"
    raise StateError(
        "state.diverged",
        f"this checkout and the shared state both went on: serial {local.serial} here, serial {remote.serial} there",
        place=place,
        next_step="to go on with the shared one, move .sbctl aside and plan: hosts are read before anything is changed; to overrule it "
        "with what is here: sbctl state pull --local > state.json, then sbctl state push --force state.json",
    )
