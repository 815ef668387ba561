"""The journal of an unfinished download, a JSON document a line:

    {version, sha256, total, owner}   first: what it is of, and whose
    {place, etag}                     a source, and its validator
    {r: [start, end]}                 this range was written
    {synced: n}                       the first n ranges are on the disk
    {released: true}                  its process left it to whoever comes next

Lines of this boot count: the kernel has their bytes. After another boot those count that were on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.claim import Owner, own_identity
from sbctl.artifacts.ranges import Pieces
from sbctl.base import fs
from sbctl.base.errors import InputError
from sbctl.base.limits import MIB

__all__ = ["UNKNOWN_LENGTH", "JournalRecord", "first_lines", "left_behind", "read_journal"]

UNKNOWN_LENGTH: Final = 1 << 62
"""Of a file of which nobody says how long it is."""
_JOURNAL_MAX_BYTES: Final = 16 * MIB


@dataclass(slots=True)
class JournalRecord:
    """A journal as it was read."""

    sha256: str
    total: int
    validators: dict[str, str]
    ranges: list[tuple[int, int]]
    places: set[str]
    owner: Owner | None
    synced: list[tuple[int, int]] = field(default_factory=list)
    """Those of `ranges` that are on the disk."""
    released: bool = False

    @property
    def is_of_this_boot(self) -> bool:
        return self.owner is not None and self.owner.boot != "" and self.owner.boot == own_identity().boot

    @property
    def done_bytes(self) -> int:
        return Pieces(self.total, self.ranges).done_bytes


def first_lines(
    sha256: str,
    total: int | None,
    etags: Mapping[str, str],
    done: Sequence[tuple[int, int]],
    on_disk: Sequence[tuple[int, int]],
) -> list[dict[str, Any]]:
    """Of a new journal, which is of this process. `etags`: of each place; `on_disk`: what is known to be there already."""
    return [
        {"version": 1, "sha256": sha256, "total": total, "owner": asdict(own_identity())},
        *({"place": place, "etag": etag} for place, etag in etags.items()),
        *({"r": [start, end]} for start, end in on_disk),
        *([{"synced": len(on_disk)}] if on_disk else []),
        *({"r": [start, end]} for start, end in done),
    ]


def left_behind(target: Path) -> list[tuple[str, JournalRecord | None]]:
    """Unfinished files of this target by their stem; those of a process that is at work on one are not among them."""
    name = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.(?:part|journal)")
    try:
        stems = {entry.rpartition(".")[0] for entry in os.listdir(target.parent) if name.fullmatch(entry)}
    except OSError as error:
        raise fs.disk_error(error, target.parent) from error
    return [(stem, read_journal(target.with_name(stem + ".journal"))) for stem in sorted(stems)]


def read_journal(path: Path) -> JournalRecord | None:
    """None for what is no journal of ours. What a crash tore off ends it."""
    try:
        if path.is_symlink():
            return None
        lines = fs.read_bounded(path, max_bytes=_JOURNAL_MAX_BYTES).split(b"\n")
        head = json.loads(lines[0])
        total: object = head["total"] or UNKNOWN_LENGTH
        if head["version"] != 1 or not isinstance(total, int) or not 0 < total <= UNKNOWN_LENGTH:
            return None
        record = JournalRecord(str(head["sha256"]), total, {}, [], set(), Owner.from_json(head["owner"]))
    except (InputError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    ranges: list[tuple[int, int]] = []
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        for raw in lines[1:-1]:
            _take_line(json.loads(raw), record, ranges)
    record.ranges[:] = ranges if record.is_of_this_boot else record.synced
    return record


def _take_line(line: Any, record: JournalRecord, ranges: list[tuple[int, int]]) -> None:
    if not isinstance(line, dict):
        raise ValueError("not a line of a journal")
    if "r" in line:
        start, end = line["r"]
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= record.total):
            raise ValueError("a range beyond the file")
        ranges.append((start, end))
    elif "place" in line:
        record.validators[str(line["place"])] = str(line["etag"])
        record.places.add(str(line["place"]))
    elif "synced" in line:
        record.synced[:] = ranges[: line["synced"]]
    elif "released" in line:
        record.released = True
    else:
        raise ValueError("not a line of a journal")
