"""SHA-256 over bytes, files and canonical JSON (RFC 8785). Canonical JSON only produces bytes; it never verifies foreign ones.

Of strings, integers, booleans and nothing, under names in ASCII, the standard library's encoder makes the same bytes in a fraction of the time. Numbers
with a fraction, and names whose order in UTF-16 may be another, are left to the library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import rfc8785

__all__ = ["canonical_json", "fingerprint", "sha256_bytes", "sha256_file"]

_SIMPLE: Final = frozenset({str, bool, type(None)})
_INT_MAX: Final = 2**53 - 1
_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode
_READ_BYTES: Final = 1024 * 1024


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of plain JSON data. Raises ValueError for NaN, integers beyond 2^53-1 and non-string keys."""
    return _encode(value).encode() if _is_plain(value) else rfc8785.dumps(value)


def _is_plain(value: Any) -> bool:
    left = [value]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in _SIMPLE:
            continue
        if kind is dict:
            if not _are_ascii(one):
                return False
            left += one.values()
        elif kind is list or kind is tuple:
            left += one
        elif kind is not int or not -_INT_MAX <= one <= _INT_MAX:
            return False
    return True


def _are_ascii(names: Iterable[Any]) -> bool:
    try:
        return "".join(names).isascii()
    except TypeError:
        return False


def fingerprint(value: Any) -> str:
    """64 hex characters that are equal exactly when two JSON values are."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Streams the file; memory is one buffer. Raises OSError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
