"""Damaged copies of good inputs, from a seeded source: bytes cut, doubled, swapped and set, and documents of JSON bent at a node.

for data in mutants(seeds, random.Random(1)):      # without end
    …
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

__all__ = ["mutants"]

_MAX_BYTES: Final = 64 * 1024
_NUMBERS: Final = (0, 1, -1, 2**31, 2**32, 2**53, 2**63 - 1, 2**64, -(2**63), 10**40, 1e308, 0.5)
_TEXTS: Final = (
    "", " ", "\0", "\ud800", "\u202e", "a" * 300, "../..", "/etc/passwd", "${HOME}", "-1", "null", "\n", "é" * 9, "1e999", "[", "%s%n", "🙂",
)  # fmt: skip
_BYTES: Final = (
    b"\0", b"\xff", b"\r\n", b"\n", b"\r", b"\xff\xff\xff\xff", b"\x80", b"{", b"}", b"[", b"]", b'[{"a":', b'"', b"\\", b":", b",", b"-", b"9" * 20, b"1e999",
    b"NaN", b"\xed\xa0\x80", b"data: ", b"[DONE]", b"0\r\n\r\n", b"ffffffff\r\n", b"../", b"\x00\x00\x00\x80", b"&a *a", b"!!python", b"\xef\xbb\xbf",
)  # fmt: skip


def mutants(seeds: Sequence[bytes], source: random.Random) -> Iterator[bytes]:
    """Each is one seed, changed one to four times."""
    documents = [one for one in map(_document, seeds) if one is not None]
    while True:
        if documents and source.random() < 0.6:
            text = _bent(source.choice(documents), source)
            yield _changed(text, seeds, source) if source.random() < 0.2 else text
        else:
            yield _changed(source.choice(seeds), seeds, source)


def _document(seed: bytes) -> str | None:
    try:
        loaded = json.loads(seed)
    except (ValueError, RecursionError):
        return None
    return json.dumps(loaded) if isinstance(loaded, dict | list) else None


def _changed(data: bytes, seeds: Sequence[bytes], source: random.Random) -> bytes:
    for _ in range(source.randint(1, 4)):
        data = source.choice(_CHANGES)(data, seeds, source)[:_MAX_BYTES]
    return data


def _at(data: bytes, source: random.Random) -> int:
    """Anywhere, and often near the start, where headers are."""
    return source.randint(0, min(len(data), 64)) if source.random() < 0.4 else source.randint(0, len(data))


def _flip(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    if not data:
        return b"\0"
    at = min(_at(data, source), len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << source.randrange(8))]) + data[at + 1 :]


def _set(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    at, what = _at(data, source), source.choice(_BYTES)
    return data[:at] + what + data[at + len(what) :]


def _insert(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    at = _at(data, source)
    return data[:at] + source.choice(_BYTES) * source.choice((1, 1, 1, 1, 2, 50, 3000)) + data[at:]


def _cut(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    start = _at(data, source)
    return data[:start] + data[start + source.choice((1, 2, 4, 8, 100)) :]


def _truncate(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    return data[: _at(data, source)]


def _double(data: bytes, _seeds: Sequence[bytes], source: random.Random) -> bytes:
    start = _at(data, source)
    piece = data[start : start + source.choice((1, 8, 64, 512))]
    return data[:start] + piece * source.choice((2, 2, 30)) + data[start:]


def _splice(data: bytes, seeds: Sequence[bytes], source: random.Random) -> bytes:
    other = source.choice(seeds)
    return data[: _at(data, source)] + other[_at(other, source) :]


_CHANGES: Final[tuple[Callable[[bytes, Sequence[bytes], random.Random], bytes], ...]] = (
    _flip, _set, _insert, _cut, _truncate, _double, _splice,
)  # fmt: skip


def _bent(text: str, source: random.Random) -> bytes:
    document = json.loads(text)
    for _ in range(source.randint(1, 3)):
        document = _bend(document, source)
    raw = json.dumps(document)
    if source.random() < 0.1:
        # A key twice in one object.
        raw = raw.replace("{", '{"schema_version": 1, "schema_version": 1, ', 1)
    return raw.encode()[:_MAX_BYTES]


def _bend(node: Any, source: random.Random) -> Any:
    """Walk down to some node and put something else there."""
    if isinstance(node, dict) and node and source.random() < 0.85:
        key = source.choice(list(node))
        act = source.random()
        if act < 0.1:
            return {name: value for name, value in node.items() if name != key}
        if act < 0.2:
            return {**node, source.choice((*_TEXTS, key.upper(), key + "s")): node[key]}
        return {**node, key: _bend(node[key], source)}
    if isinstance(node, list) and node and source.random() < 0.85:
        at = source.randrange(len(node))
        act = source.random()
        if act < 0.1:
            return [*node[:at], *node[at + 1 :]]
        if act < 0.2:
            return [*node, *[node[at]] * source.choice((1, 40))]
        return [*node[:at], _bend(node[at], source), *node[at + 1 :]]
    return _something(node, source)


def _something(node: Any, source: random.Random) -> Any:
    kind = source.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return source.choice((True, False))
    if kind == 2:
        return source.choice(_NUMBERS)
    if kind == 3:
        return source.choice(_TEXTS)
    if kind == 4:
        return [node] if source.random() < 0.7 else []
    if kind == 5:
        return {"x": node} if source.random() < 0.7 else {}
    if kind == 6:
        for _ in range(source.choice((5, 40, 200))):
            node = [node]
        return node
    return str(node) + source.choice(_TEXTS)
