"""Host keys that are well formed and belong to nobody."""

from __future__ import annotations

import base64
import hashlib

from sbctl.base.host_keys import HostKey, parse_host_key

__all__ = ["ecdsa_key", "ed25519_key", "rsa_key"]


def _blob(*fields: bytes) -> str:
    return base64.b64encode(b"".join(len(field).to_bytes(4, "big") + field for field in fields)).decode()


def ed25519_key(seed: object) -> HostKey:
    return parse_host_key("ssh-ed25519", _blob(b"ssh-ed25519", hashlib.sha256(repr(seed).encode()).digest()))


def ecdsa_key(seed: object) -> HostKey:
    name = "ecdsa-sha2-nistp256"
    point = b"\4" + hashlib.sha512(repr(seed).encode()).digest()
    return parse_host_key(name, _blob(name.encode(), b"nistp256", point))


def rsa_key(seed: object) -> HostKey:
    modulus = b"\0" + hashlib.sha512(repr(seed).encode()).digest() * 4
    return parse_host_key("ssh-rsa", _blob(b"ssh-rsa", b"\1\0\1", modulus))
