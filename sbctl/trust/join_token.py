"""Join tokens: `sbj1.<pin>.<id>.<secret>`, one text that lets one host in, once.

    pin      base64url of the SHA-256 of the authority's CA public key: whom the host may show the token to
    id       16 hex characters, public: what lists, logs and audit rows name
    secret   base64url of 32 random bytes; the authority keeps its SHA-256 only

The pin is part of the token, so there is no way to use a token without checking the server first, and it survives a new certificate
over the same key. Parsing is strict: every token has exactly one text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import InputError
from sbctl.base.limits import JOIN_TOKEN_MAX_CHARS
from sbctl.base.secret import Secret

__all__ = ["JoinToken", "is_token_id"]

_PREFIX: Final = "sbj1"
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_ID_RE: Final = re.compile(r"[0-9a-f]{16}")


def is_token_id(text: str) -> bool:
    return _ID_RE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class JoinToken:
    """`pin` is hex, as certificates tell `key_sha256`; `repr` shows no secret."""

    pin: str
    id: str
    secret: Secret

    @classmethod
    def mint(cls, pin: str) -> JoinToken:
        """A new one for the authority whose CA has this public key."""
        return cls(pin, secrets.token_hex(_ID_BYTES), Secret(secrets.token_bytes(_SECRET_BYTES)))

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        """Raises InputError `enroll.token_malformed`, which repeats nothing of the text."""
        parts = text.split(".") if len(text) <= JOIN_TOKEN_MAX_CHARS else []
        if len(parts) == 4 and parts[0] == _PREFIX and is_token_id(parts[2]):
            pin, secret = _decoded(parts[1]), _decoded(parts[3])
            if pin is not None and secret is not None:
                return cls(pin.hex(), parts[2], Secret(secret))
        raise InputError(
            "enroll.token_malformed",
            "this is not a join token, or a part of it is missing",
            next_step="copy all of what sbctl cluster token create printed: one line that begins with sbj1.",
        )

    @property
    def secret_sha256(self) -> str:
        """What the authority keeps."""
        return hashlib.sha256(self.secret.reveal()).hexdigest()

    def text(self) -> Secret:
        """The whole token, as the host needs it."""
        pin, secret = _encoded(bytes.fromhex(self.pin)), _encoded(self.secret.reveal())
        return Secret(f"{_PREFIX}.{pin}.{self.id}.{secret}".encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes | None:
    """32 bytes in their one form; None for anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == _SECRET_BYTES and _encoded(data) == text else None
