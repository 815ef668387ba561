"""`authority-verifying.key`: whose signatures a node believes, one public key a line; two while a rollover of the authority lasts.

Order means nothing. What a node holds of it comes from an apply, or from the authority itself when it enrolled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import InputError
from sbctl.trust.keys import parse_public_key

__all__ = ["AuthorityKeys"]

_MOST: Final = 2


@dataclass(frozen=True, slots=True)
class AuthorityKeys:
    """Public keys as texts, `ed25519:…`."""

    keys: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> AuthorityKeys:
        """Raises InputError `identity.keys_invalid`, `key.*`."""
        keys = tuple(parse_public_key(line.strip()).text for line in text.splitlines())
        if not 1 <= len(keys) <= _MOST or len(set(keys)) != len(keys):
            raise InputError(
                "identity.keys_invalid",
                f"authority-verifying.key holds {len(keys)} keys; it must be 1 or {_MOST} different ones",
                next_step="have the identity installed anew: sbctl apply",
            )
        return cls(keys)

    def text(self) -> str:
        """The file."""
        return "".join(f"{key}\n" for key in self.keys)

    def signers(self) -> Mapping[str, str]:
        """As `open_envelope` takes them."""
        return {f"authority-{number}": key for number, key in enumerate(self.keys, 1)}
