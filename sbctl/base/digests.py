"""SHA-256 over bytes, files and canonical JSON (RFC 8785). Canonical JSON only produces bytes; it never verifies foreign ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import rfc8785

__all__ = ["canonical_json", "fingerprint", "sha256_bytes", "sha256_file"]

_READ_BYTES = 1024 * 1024


def canonical_json(value: Any) -> bytes:
    """RFC 8785 bytes of plain JSON data. Raises ValueError for NaN, integers beyond 2^53-1 and non-string keys."""
    return rfc8785.dumps(value)


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
