"""Secret values in memory: they print as a mask, compare in constant time, and leave only by an explicit `reveal`."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

__all__ = ["Secret", "keyed_fingerprint", "redact"]

MASK: Final = "(secret)"

_TOKEN_RE: Final = re.compile(
    r"(?i)(bearer\s+|--(?:api-key|token|hf-token|password)[ =]|authorization:\s*\w+\s+|password[\"']?\s*[:=]\s*[\"']?)([^\s\"',]+)"
)
_KEY_RE: Final = re.compile(r"(\bsk-|\bhf_|\$scrypt\$)[A-Za-z0-9_$=,+/-]{8,}")


class Secret:
    """A secret byte string. `str`, `repr`, formatting and pickling never show it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The value. Every caller is a place to review."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(type(self))

    def __reduce__(self) -> str:
        raise TypeError("a Secret is never serialised")


def keyed_fingerprint(key: bytes, secret: Secret) -> str:
    """What plans and states keep of a secret: HMAC-SHA256 under the lineage's key, 16 hex characters."""
    return hmac.new(key, secret.reveal(), hashlib.sha256).hexdigest()[:16]


def redact(text: str) -> str:
    """Mask values that look like credentials in foreign text (engine logs, error bodies)."""
    return _KEY_RE.sub(MASK, _TOKEN_RE.sub(lambda match: match[1] + MASK, text))
