"""Which values differ between two specs, for the reader and for the blast radius.

Whether something changed is decided by fingerprints before anybody calls this. Equal branches are cut away by a typed comparison
of our own, then deepdiff compares what is left: plain dicts, lists of things keyed by their id. Bounds: LEAF_MAX_DEPTH levels,
LEAF_MAX_COUNT leaves, LEAF_MAX_CHARS and LEAF_MAX_ITEMS a value; what is beyond is named by a digest or by a count, never walked by recursion.
Values that look like credentials are masked here, so no view can show them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, Self

from sbctl.base.secret import redact
from sbctl.plan.model import Leaf, Unknown
from sbctl.plan.paths import join_path, path_matches

__all__ = ["LEAF_MAX_CHARS", "LEAF_MAX_COUNT", "LEAF_MAX_DEPTH", "LEAF_MAX_ITEMS", "leaf_changes"]

LEAF_MAX_DEPTH: Final = 16
LEAF_MAX_COUNT: Final = 500
LEAF_MAX_CHARS: Final = 4096
LEAF_MAX_ITEMS: Final = 200

_ID_KEYS: Final = ("id", "name", "username", "path", "filename")
_ENOUGH: Final = LEAF_MAX_COUNT + 1
_NO_REASONS: Final[Mapping[str, str]] = {}

_Path = tuple[str | int, ...]


def leaf_changes(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, *, reasons: Mapping[str, str] = _NO_REASONS
) -> tuple[Leaf, ...]:
    """Every differing value, sorted by path. None is a thing that does not exist: all values of the other side are listed.

    `reasons` gives a sentence by path glob, the first match wins. A list of single values is one leaf; a list of objects that all
    carry the same kind of id is compared by it. `after` may hold Unknown anywhere.
    """
    found = _differences(before, after)
    pairs = sorted(((join_path(path), was, now) for path, was, now in found), key=lambda pair: pair[0])
    leaves = [Leaf(path, _shown(was), _shown(now), _reason(path, reasons)) for path, was, now in pairs[:LEAF_MAX_COUNT]]
    if len(pairs) > LEAF_MAX_COUNT:
        leaves.append(Leaf("", None, None, f"more values differ than the {LEAF_MAX_COUNT} listed"))
    return tuple(leaves)


def _reason(path: str, reasons: Mapping[str, str]) -> str:
    return next((text for glob, text in reasons.items() if path_matches(glob, path)), "")


def _differences(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[tuple[_Path, Any, Any]]:
    if before is None or after is None:
        one_side = _flat((), _bounded(before if after is None else after))
        return [
            (path, value, None) if after is None else (path, None, value) for path, value in islice(one_side, _ENOUGH)
        ]
    was, now = _Pruning().pruned(_bounded(before), _bounded(after))
    return list(_compared(was, now)) if was or now else []


def _compared(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[_Path, Any, Any]]:
    """deepdiff's findings as (path, before, after), whole added and removed branches spread into their values."""
    from deepdiff import DeepDiff

    found = DeepDiff(was, now, view="tree", ignore_private_variables=False, verbose_level=0, threshold_to_diff_deeper=0)
    for kind, levels in found.items():
        for level in levels:
            path = tuple(level.path(output_format="list"))
            if kind.endswith("_added"):
                yield from ((inner, None, value) for inner, value in _said(path, level.t2))
            elif kind.endswith("_removed"):
                yield from ((inner, value, None) for inner, value in _said(path, level.t1))
            else:
                yield path, level.t1, level.t2


class _Pruning:
    """Both sides without what they share; when enough differs, the rest is left out. Depth is bounded by `_bounded`."""

    def __init__(self) -> None:
        self._room = _ENOUGH

    def pruned(self, was: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        left: dict[str, Any] = {}
        right: dict[str, Any] = {}
        for key in sorted(was.keys() | now.keys()):
            if self._room <= 0:
                break
            if key not in now:
                left[key] = was[key]
                self._take(was[key])
            elif key not in was:
                right[key] = now[key]
                self._take(now[key])
            elif not _same(was[key], now[key]):
                left[key], right[key] = self._pair(was[key], now[key])
        return left, right

    def _pair(self, was: Any, now: Any) -> tuple[Any, Any]:
        """Two different values; what is one value for the reader is wrapped, so that deepdiff does not look inside."""
        if isinstance(was, list) and isinstance(now, list):
            key = next((key for key in _ID_KEYS if _keyed_by(was, key) and _keyed_by(now, key)), None)
            if key is not None:
                return self.pruned({item[key]: item for item in was}, {item[key]: item for item in now})
            if _nested(was) and _nested(now) and max(len(was), len(now)) <= LEAF_MAX_ITEMS:
                self._take(was)
                return was, now
        if isinstance(was, dict) and isinstance(now, dict):
            return self.pruned(was, now)
        self._room -= 1
        return _Whole(was), _Whole(now)

    def _take(self, branch: Any) -> None:
        self._room -= sum(1 for _ in islice(_flat((), branch), _ENOUGH))


class _Whole(str):
    """A value that is compared and shown as one: text for deepdiff, the value itself for the leaf."""

    __slots__ = ("value",)
    value: Any

    def __new__(cls, value: Any) -> Self:
        whole = super().__new__(cls, f"{type(value).__name__} {value!r}")
        whole.value = value
        return whole


def _keyed_by(items: list[Any], key: str) -> bool:
    """Every item is an object and `key` tells them apart."""
    names = [item.get(key) for item in items if isinstance(item, dict)]
    return len(names) == len(items) == len({name for name in names if isinstance(name, str)})


def _nested(items: list[Any]) -> bool:
    return any(isinstance(item, (dict, list)) for item in items)


def _same(was: Any, now: Any) -> bool:
    """Equal as JSON: true is not 1, but 1 is 1.0."""
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(_same(value, now[key]) for key, value in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(_same(left, right) for left, right in zip(was, now, strict=True))
    if isinstance(was, bool) or isinstance(now, bool):
        return was is now
    return bool(was == now)


def _flat(path: _Path, value: Any) -> Iterator[tuple[_Path, Any]]:
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _flat((*path, key), value[key])
    elif isinstance(value, list) and _nested(value):
        for index, item in enumerate(value):
            yield from _flat((*path, index), item)
    else:
        yield path, value


def _said(path: _Path, branch: Any) -> list[tuple[_Path, Any]]:
    """The values of a branch that comes or goes, without those that say nothing; all of them when none says anything."""
    values = list(islice(_flat(path, branch), _ENOUGH))
    return [(inner, value) for inner, value in values if value is not None] or values


def _bounded(value: Any, depth: int = 0) -> Any:
    """Plain data, at most LEAF_MAX_DEPTH deep; a deeper branch becomes its digest, long text keeps its beginning and its digest."""
    if isinstance(value, Mapping):
        if depth == LEAF_MAX_DEPTH:
            return _digest(value)
        return {str(key): _bounded(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        if depth == LEAF_MAX_DEPTH:
            return _digest(value)
        return [_bounded(inner, depth + 1) for inner in value]
    if value is None or isinstance(value, (bool, int, float, Unknown)):
        return value
    text = value if isinstance(value, str) else str(value)
    if len(text) <= LEAF_MAX_CHARS:
        return text
    return f"{text[:LEAF_MAX_CHARS]}… ({len(text)} characters, sha256 {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]})"


def _digest(value: Any) -> str:
    """Names a branch without recursion; equal exactly when the branch is."""
    hasher = hashlib.sha256()
    waiting: list[Any] = [value]
    count = 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            keys = sorted(item, key=str)
            hasher.update(f"{{{keys!r}".encode())
            waiting.extend(item[key] for key in keys)
        elif isinstance(item, (list, tuple)):
            hasher.update(f"[{len(item)}".encode())
            waiting.extend(item)
        else:
            hasher.update(f"={item!r}".encode())
            count += 1
    return f"({count} values, sha256 {hasher.hexdigest()[:12]})"


def _shown(value: Any) -> Any:
    """A leaf's value as it may be shown: credentials masked, long lists cut."""
    if isinstance(value, _Whole):
        value = value.value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        more = len(value) - LEAF_MAX_ITEMS
        items = [_shown(item) for item in value[:LEAF_MAX_ITEMS]]
        return [*items, f"… ({more} more)"] if more > 0 else items
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    return value
