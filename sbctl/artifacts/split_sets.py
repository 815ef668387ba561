"""Weights in several files, `NAME-00001-of-00003.gguf`: the engine opens the first and wants all of them.

A set that lacks a part downloads for hours and then does not load, so it is refused before the first byte.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

__all__ = ["parts_of", "set_name", "split_problem"]

_PART_RE: Final = re.compile(r"(?P<name>.+)-(?P<part>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<ending>\.[A-Za-z0-9]+)")


def set_name(path: str) -> str:
    """The same for every file of a set, and for no other; a file that is in no set is its own."""
    match = _PART_RE.fullmatch(path)
    return path if match is None else f"{match['name']}-of-{match['count']}{match['ending']}"


def parts_of(path: str) -> list[str]:
    """Every file of the set that `path` belongs to, in order; a file that is in no set, or counts beyond its own, is alone."""
    match = _PART_RE.fullmatch(path)
    if match is None or not 1 <= int(match["part"]) <= int(match["count"]):
        return [path]
    name, count, ending = match["name"], match["count"], match["ending"]
    return [f"{name}-{number:05d}-of-{count}{ending}" for number in range(1, int(count) + 1)]


def split_problem(paths: Iterable[str]) -> str | None:
    """What is wrong with the sets among these files, in one sentence; None when every set is whole."""
    sets: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for path in paths:
        if match := _PART_RE.fullmatch(path):
            sets[match["name"], int(match["count"]), match["ending"]].add(int(match["part"]))
    for (name, count, ending), parts in sorted(sets.items()):
        wanted = range(1, count + 1)
        if missing := next((part for part in wanted if part not in parts), None):
            return f"{name}-{missing:05d}-of-{count:05d}{ending} is missing: {len(parts)} of {count} parts are listed"
        if strange := sorted(parts - set(wanted)):
            return f"{name}-{strange[0]:05d}-of-{count:05d}{ending} counts beyond its own set"
    names = sorted({(name, ending) for name, _, ending in sets})
    if len(names) != len(sets):
        return "two sets of the same name count their parts differently"
    return None
