"""Hashes of passwords by scrypt, in the one form that sb.yml takes: $scrypt$ln=15,r=8,p=1$SALT$HASH."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import Final

__all__ = ["SCRYPT_PATTERN", "scrypt_hash", "scrypt_matches"]

SCRYPT_PATTERN: Final = (
    r"^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{16,128})\$([A-Za-z0-9+/]{40,128})$"
)
_RE: Final = re.compile(SCRYPT_PATTERN)
_MEMORY_MAX_BYTES: Final = 256 * 1024 * 1024
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32


def scrypt_hash(password: bytes, *, log_n: int = 15) -> str:
    """Takes some 100 ms and 32 MiB by default."""
    salt = secrets.token_bytes(_SALT_BYTES)
    made = hashlib.scrypt(password, salt=salt, n=1 << log_n, r=8, p=1, maxmem=_MEMORY_MAX_BYTES, dklen=_HASH_BYTES)
    return f"$scrypt$ln={log_n},r=8,p=1${_b64(salt)}${_b64(made)}"


def scrypt_matches(stored: str, password: bytes) -> bool:
    """As slow as the hash says. False for what is no such hash, or would take more than 256 MiB."""
    found = _RE.fullmatch(stored)
    if found is None:
        return False
    log_n, r, p = (int(found[index]) for index in (1, 2, 3))
    if not (10 <= log_n <= 20 and 1 <= r <= 32 and 1 <= p <= 16) or 128 * r * (p + (1 << log_n)) > _MEMORY_MAX_BYTES:
        return False
    try:
        salt, expected = (base64.b64decode(found[index] + "=" * (-len(found[index]) % 4)) for index in (4, 5))
    except ValueError:
        return False
    made = hashlib.scrypt(
        password, salt=salt, n=1 << log_n, r=r, p=p, maxmem=2 * _MEMORY_MAX_BYTES, dklen=len(expected)
    )
    return hmac.compare_digest(made, expected)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).rstrip(b"=").decode()
