"""The shared document as bytes: sealed where `fleet.state.encryption` says so, plain otherwise, and nothing in between.

A plain document is refused where encryption is asked for, and a sealed one where it is not: who can write the server could otherwise take the
encryption away. `state rekey` is the only way from one to the other. Serial and lineage that a server may read are compared with the inner ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import RefusedError, StateError
from sbctl.base.limits import STATE_DOCUMENT_MAX_BYTES
from sbctl.base.naming import naming
from sbctl.base.secret import Secret
from sbctl.state.settings import EncryptionSettings
from sbctl.state.shared_document import SharedState, parse_shared
from sbctl.trust.sealing import Identity, Opener, Sealer, is_sealed

__all__ = ["Vault", "head_of"]

KIND: Final = "state"

Json = dict[str, Any]


class Vault:
    """Seals and opens by one `fleet.state.encryption`. Secrets are resolved when first needed, and keys derived once a command."""

    def __init__(
        self,
        encryption: EncryptionSettings | None,
        resolve: Callable[[str], Secret],
        *,
        identity: Identity | None = None,
        former: EncryptionSettings | None = None,
        lenient: bool = False,
    ) -> None:
        """`identity`: this machine's own key. `former` and `lenient` are for `state rekey`: what opened it before, and whether either form is taken."""
        self._encryption = encryption
        self._resolve = resolve
        self._own = identity
        self._lenient = lenient
        self._former = former
        self._openers: dict[EncryptionSettings, Opener] = {}
        self._sealer: Sealer | None = None

    @property
    def encrypts(self) -> bool:
        return self._encryption is not None

    def _open_with(self, wanted: EncryptionSettings) -> Opener:
        if wanted not in self._openers:
            identities = [] if self._own is None else [self._own]
            if wanted.identity is not None:
                identities.append(Identity.parse(self._resolve(wanted.identity)))
            passphrase = None if wanted.passphrase is None else self._resolve(wanted.passphrase)
            self._openers[wanted] = Opener(identities, passphrase)
        return self._openers[wanted]

    def _unsealed(self, raw: Json, place: str) -> bytes:
        """By what sb.yml names, else by what it named before."""
        wanted = self._encryption or EncryptionSettings()
        try:
            return self._open_with(wanted).open(raw, kind=KIND, place=place)
        except (StateError, RefusedError):
            if self._former is None:
                raise
        return self._open_with(self._former).open(raw, kind=KIND, place=place)

    def dump(self, data: bytes) -> bytes:
        """A shared or exported document for others to keep. Raises RefusedError `seal.*`, `passphrase.short`, InputError `secret.*`."""
        if self._encryption is None:
            return data
        raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
        if self._sealer is None:
            wanted = self._encryption
            self._sealer = self._open_with(wanted).sealer(
                wanted.recipients, with_passphrase=wanted.passphrase is not None
            )
        return canonical_json(self._sealer.seal(data, kind=KIND, lineage=raw["lineage"], serial=raw["serial"]))

    def open_any(self, data: bytes, *, place: str) -> bytes:
        """The plain bytes of a document that may be sealed. Raises InputError `json.*`, StateError and RefusedError `sealed.*`."""
        raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
        if not is_sealed(raw):
            return data
        content = self._unsealed(raw, place)
        inner = strict_json.loads(content, max_bytes=STATE_DOCUMENT_MAX_BYTES)
        if not isinstance(inner, dict) or (inner.get("lineage"), inner.get("serial")) != (
            raw["lineage"],
            raw["serial"],
        ):
            raise StateError(
                "sealed.mismatch",
                "lineage or serial outside the encryption are not those inside",
                place=place,
                next_step="somebody edited the document: take an older copy from the server's own history",
            )
        return content

    def load(self, data: bytes, *, place: str) -> SharedState:
        """The shared document. Raises also RefusedError `state.not_encrypted`, `state.encrypted`."""
        with naming(place, next_step="check fleet.state: its address must be this fleet's own"):
            raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
        sealed = is_sealed(raw)
        if not self._lenient and self.encrypts and not sealed:
            raise RefusedError(
                "state.not_encrypted",
                "sb.yml asks for an encrypted state, and the shared one is not",
                place=place,
                next_step="if that is new in sb.yml: sbctl state rekey; if it was encrypted before, somebody replaced it",
            )
        if not self._lenient and not self.encrypts and sealed:
            raise RefusedError(
                "state.encrypted",
                "the shared state is encrypted, and sb.yml says nothing of that",
                place=place,
                next_step="take the sb.yml that has fleet.state.encryption; to end the encryption: sbctl state rekey --plain",
            )
        return parse_shared(self.open_any(data, place=place), place=place)


def head_of(data: bytes) -> Mapping[str, Any]:
    """What a server may read of a document, sealed or not: lineage and serial."""
    raw: Json = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
    return {"lineage": raw["lineage"], "serial": raw["serial"]}
