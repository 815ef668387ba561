"""`authority-verifying.key`: whose signatures a node believes, one public key a line; two while a rollover of the authority lasts.

Order means nothing. What a node holds of it comes from an apply, or from the authority itself when it enrolled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from sbctl.base import strict_json
from sbctl.base.errors import InputError
from sbctl.base.schema_faults import first_fault
from sbctl.trust.envelope import open_envelope
from sbctl.trust.keys import parse_public_key

__all__ = ["AuthorityKeys"]

_MOST: Final = 2

Document = TypeVar("Document", bound=BaseModel)


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

    def open_document(
        self,
        envelope_text: str,
        payload_type: str,
        model: type[Document],
        *,
        invalid: Callable[[str], InputError],
        max_bytes: int,
        max_depth: int,
    ) -> Document:
        """What the authority signed, as `model`.

        Raises what `invalid` makes of where the content is wrong and why; InputError `envelope.*`, `json.invalid`; RefusedError `envelope.bad_signature`, `envelope.wrong_type`.
        """
        opened = open_envelope(envelope_text, payload_type, self.signers(), max_bytes=max_bytes)
        document = strict_json.loads(opened.payload, max_bytes=max_bytes, max_depth=max_depth)
        try:
            return model.model_validate_json(json.dumps(document))
        except ValidationError as error:
            raise invalid(": ".join(first_fault(error))) from None
