"""Pins of host keys: what a host must show before anything is sent to it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import InputError

__all__ = ["ANY_KEY", "KEY_FAMILIES", "HostKeyPin", "key_families"]

KEY_FAMILIES: Final = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)
ANY_KEY: Final = tuple(name for family in KEY_FAMILIES for name in family)


class HostKeyPin:
    """`SHA256:…` or an OpenSSH public key, compared with what a host shows."""

    def __init__(self, text: str) -> None:
        """Raises InputError `ssh.host_key_invalid`."""
        words = text.split()
        try:
            if len(words) == 1 and text.startswith("SHA256:"):
                digest = base64.b64decode(text[7:] + "=" * (-len(text[7:]) % 4), validate=True)
                if len(digest) != hashlib.sha256().digest_size:
                    raise ValueError(text)
                self.key_type: str | None = None
            elif len(words) >= 2:
                blob = base64.b64decode(words[1], validate=True)
                if not blob.startswith(len(words[0]).to_bytes(4, "big") + words[0].encode("ascii")):
                    raise ValueError(text)
                digest = hashlib.sha256(blob).digest()
                self.key_type = words[0]
            else:
                raise ValueError(text)
        except (ValueError, binascii.Error, UnicodeEncodeError) as error:
            raise InputError(
                "ssh.host_key_invalid",
                f'"{display_safe(text, max_chars=80)}" is neither a fingerprint SHA256:… nor an OpenSSH public key',
                next_step="on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            ) from error
        self.fingerprint = _fingerprint(digest)


def key_families(pins: Sequence[HostKeyPin]) -> tuple[tuple[str, ...], ...]:
    """Groups of key algorithms to ask the host for, in order: pinned types alone; for a fingerprint any type at first, then each."""
    if not pins:
        return (ANY_KEY,)
    types = [pin.key_type for pin in pins]
    if None in types:
        return (ANY_KEY, *KEY_FAMILIES)
    wanted = {"rsa-sha2-512" if name == "ssh-rsa" else name for name in types}
    return tuple(family for family in KEY_FAMILIES if wanted & set(family))


def _fingerprint(digest: bytes) -> str:
    return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")
