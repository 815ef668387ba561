"""SSH public keys of hosts, as text: parsed strictly, compared by fingerprint.

A key is its algorithm and the base64 of its blob (RFC 4253, 6.6). The blob must be whole, must name the same algorithm and must hold
exactly the fields of it, so that two texts of one key cannot differ.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Final

__all__ = ["HOST_KEY_ALGORITHMS", "HostKey", "fingerprint_of_pin", "parse_host_key"]

HOST_KEY_ALGORITHMS: Final = (
    "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa",
)  # fmt: skip
"""That a host may prove itself with, the best first. `ssh-rsa` names the key; its signatures are SHA-2."""

_FIELDS: Final = {"ssh-ed25519": 1, "ssh-rsa": 2}
_ED25519_BYTES: Final = 32
_KEY_MAX_CHARS: Final = 8192


@dataclass(frozen=True, slots=True, order=True)
class HostKey:
    """One public key. `blob` is canonical base64."""

    algorithm: str
    blob: str

    @property
    def text(self) -> str:
        """As OpenSSH writes it, without a comment."""
        return f"{self.algorithm} {self.blob}"

    @property
    def fingerprint(self) -> str:
        """`SHA256:…`, as `ssh-keygen -l` prints it."""
        return _fingerprint(base64.b64decode(self.blob))


def _fingerprint(blob: bytes) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def parse_host_key(algorithm: str, blob: str) -> HostKey:
    """Raises ValueError with a sentence that does not repeat the input."""
    if algorithm not in HOST_KEY_ALGORITHMS:
        raise ValueError(f"the key's algorithm is none of {', '.join(HOST_KEY_ALGORITHMS)}")
    if len(blob) > _KEY_MAX_CHARS:
        raise ValueError("the key is longer than any key")
    try:
        raw = base64.b64decode(blob.encode("ascii"), validate=True)
    except (ValueError, binascii.Error, UnicodeEncodeError):
        raise ValueError("the key is not base64, or was cut") from None
    if base64.b64encode(raw).decode("ascii") != blob:
        raise ValueError("the key's base64 is not in its one form")
    fields = _strings(raw)
    if fields and fields[0] != algorithm.encode("ascii"):
        raise ValueError("the key is of another algorithm than the line says")
    if len(fields) != 1 + _FIELDS.get(algorithm, 2) or not all(fields):
        raise ValueError("the key is damaged")
    if algorithm == "ssh-ed25519" and len(fields[1]) != _ED25519_BYTES:
        raise ValueError("the key is damaged")
    if algorithm.startswith("ecdsa-") and fields[1] != algorithm.rpartition("-")[2].encode("ascii"):
        raise ValueError("the key is of another curve than the line says")
    return HostKey(algorithm, blob)


def _strings(raw: bytes) -> list[bytes]:
    """The length-prefixed fields that `raw` consists of; empty when it does not."""
    found, place = [], 0
    while place < len(raw):
        size = int.from_bytes(raw[place : place + 4], "big")
        place += 4 + size
        if place > len(raw):
            return []
        found.append(raw[place - size : place])
    return found


def fingerprint_of_pin(pin: str) -> str | None:
    """`SHA256:…` of a pin as sb.yml has it (a fingerprint, or a public key line); None for what is neither."""
    if pin.startswith("SHA256:"):
        return pin
    words = pin.split()
    try:
        return parse_host_key(words[0], words[1]).fingerprint
    except (ValueError, IndexError):
        return None
