"""Documents sealed for several recipients: AES-256-GCM under a random key, which is wrapped once for each recipient.

    data key (random, one a document) ── wrapped by scrypt(passphrase)           recipient type `scrypt`
                                      └─ wrapped by X25519 + HKDF-SHA256         recipient type `x25519`, once a public key

Associated data of the content is the canonical JSON of everything else in the envelope, so format, kind, lineage, serial and the list of
recipients are bound to it; a wrapped key is bound to format, kind, lineage, serial and its own parameters. `lineage` and `serial` stay
readable for servers. Public keys are written `sbx1…`, private ones `SBX-SECRET-1…`; both carry a checksum, since they are typed and pasted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError, RefusedError, StateError
from sbctl.base.secret import Secret

__all__ = ["PASSPHRASE_MIN_CHARS", "Identity", "Opener", "Sealer", "is_sealed", "parse_recipient"]

FORMAT: Final = "sbctl.sealed"
VERSION: Final = 1
PASSPHRASE_MIN_CHARS: Final = 16
MAX_RECIPIENTS: Final = 64
_PUBLIC_PREFIX: Final = "sbx1"
_PRIVATE_PREFIX: Final = "SBX-SECRET-1"
_HKDF_INFO: Final = b"sbctl.sealed v1 x25519"
_CHECK_BYTES: Final = 4
_NONCE_BYTES: Final = 12
_LOG_N: Final = 17
"""scrypt's cost: 2^17 blocks of 1 KiB, 128 MiB; once a command, not once a write."""
_LOG_N_MAX: Final = 20
_FIELDS: Final = frozenset({"format", "version", "kind", "lineage", "serial", "recipients", "nonce", "ciphertext"})
_SHAPES: Final[Mapping[str, frozenset[str]]] = {
    "scrypt": frozenset({"type", "salt", "log_n", "nonce", "wrapped"}),
    "x25519": frozenset({"type", "recipient", "ephemeral", "nonce", "wrapped"}),
}

Json = dict[str, Any]


def _check(prefix: str, raw: bytes) -> bytes:
    return hashlib.sha256(prefix.encode() + raw).digest()[:_CHECK_BYTES]


def _text(prefix: str, raw: bytes) -> str:
    return prefix + base64.b32encode(raw + _check(prefix, raw)).decode().rstrip("=")


def _raw(prefix: str, text: str) -> bytes | None:
    """The 32 bytes of a key text, which is in upper case after the prefix; None when it is not one."""
    body = text.removeprefix(prefix)
    if body == text:
        return None
    try:
        data = base64.b32decode(body + "=" * (-len(body) % 8))
    except (binascii.Error, ValueError):
        return None
    raw, check = data[:32], data[32:]
    return raw if len(raw) == 32 and check == _check(prefix, raw) and _text(prefix, raw) == text else None


def parse_recipient(text: str) -> bytes:
    """The public key behind an `sbx1…` text. Raises InputError `recipient.invalid`."""
    raw = _raw(_PUBLIC_PREFIX, _PUBLIC_PREFIX + text.removeprefix(_PUBLIC_PREFIX).upper()) if text.islower() else None
    if raw is None or not text.startswith(_PUBLIC_PREFIX):
        raise InputError(
            "recipient.invalid",
            "this is not a recipient of encrypted states (or a character of it was changed)",
            next_step="write sbx1… as `sbctl state recipient` prints it",
        )
    return raw


class Identity:
    """A private X25519 key: opens what was sealed for its `recipient`. It never prints."""

    __slots__ = ("_raw", "recipient")

    def __init__(self, raw: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._raw = raw
        public = X25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw()
        prefix, body = _PUBLIC_PREFIX, _text(_PUBLIC_PREFIX, public).removeprefix(_PUBLIC_PREFIX)
        self.recipient: str = prefix + body.lower()

    @classmethod
    def generate(cls) -> Identity:
        return cls(secrets.token_bytes(32))

    @classmethod
    def parse(cls, text: Secret) -> Identity:
        """Raises InputError `identity.invalid`; the text is not repeated."""
        raw = _raw(_PRIVATE_PREFIX, text.reveal().decode("ascii", "replace").strip())
        if raw is None:
            raise InputError(
                "identity.invalid",
                "this is not a private key for encrypted states (or a character of it was changed)",
                next_step="`sbctl state recipient --generate` makes one",
            )
        return cls(raw)

    def to_text(self) -> Secret:
        return Secret(_text(_PRIVATE_PREFIX, self._raw).encode())

    def agree(self, ephemeral: bytes) -> bytes:
        """The key that wraps for this recipient. Raises ValueError for a public key of small order."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        shared = X25519PrivateKey.from_private_bytes(self._raw).exchange(X25519PublicKey.from_public_bytes(ephemeral))
        return _wrapping_key(shared, ephemeral, parse_recipient(self.recipient))


def _wrapping_key(shared: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=ephemeral + recipient, info=_HKDF_INFO).derive(shared)


def _scrypt(passphrase: Secret, salt: bytes, log_n: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=32, n=1 << log_n, r=8, p=1).derive(passphrase.reveal())


class _Passphrase:
    """A passphrase and the keys that were derived from it: one derivation for each salt."""

    def __init__(self, passphrase: Secret, log_n: int) -> None:
        if len(passphrase.reveal()) < PASSPHRASE_MIN_CHARS:
            raise RefusedError(
                "passphrase.short",
                f"the passphrase of the state has fewer than {PASSPHRASE_MIN_CHARS} characters",
                next_step="choose a longer one, or recipients with keys: sbctl state recipient",
            )
        self._passphrase = passphrase
        self._log_n = log_n
        self._salt = secrets.token_bytes(16)
        self._derived: dict[tuple[bytes, int], bytes] = {}

    def key(self, salt: bytes, log_n: int) -> bytes:
        if (salt, log_n) not in self._derived:
            self._derived[salt, log_n] = _scrypt(self._passphrase, salt, log_n)
        return self._derived[salt, log_n]

    def current(self) -> tuple[bytes, int, bytes]:
        """Salt, cost and key for a new document; those of a document that was opened are used again, its cost permitting."""
        for (salt, log_n), key in self._derived.items():
            if log_n >= self._log_n:
                return salt, log_n, key
        return self._salt, self._log_n, self.key(self._salt, self._log_n)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bound(kind: str, lineage: str, serial: int, entry: Mapping[str, Any]) -> bytes:
    head = {"format": FORMAT, "version": VERSION, "kind": kind, "lineage": lineage, "serial": serial}
    return canonical_json({**head, "entry": {key: value for key, value in entry.items() if key != "wrapped"}})


class Sealer:
    """Seals for a fixed set of recipients. Raises RefusedError `passphrase.short`, `seal.nobody`; InputError `recipient.invalid`."""

    def __init__(self, recipients: Sequence[str], passphrase: _Passphrase | None) -> None:
        self._recipients = {text: parse_recipient(text) for text in recipients}
        self._passphrase = passphrase
        if not self._recipients and passphrase is None:
            raise RefusedError(
                "seal.nobody",
                "nobody could open the document: it has no recipients and no passphrase",
                next_step="name recipients or a passphrase in fleet.state.encryption",
            )

    def seal(self, content: bytes, *, kind: str, lineage: str, serial: int) -> Json:
        """The envelope as JSON data."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key = AESGCM.generate_key(256)
        entries = [self._for_recipient(text, raw) for text, raw in self._recipients.items()]
        if self._passphrase is not None:
            salt, log_n, key = self._passphrase.current()
            entries.append((key, {"type": "scrypt", "salt": _encode(salt), "log_n": log_n}))
        listed: list[Json] = []
        for key, entry in entries:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            entry["nonce"] = _encode(nonce)
            wrapped = AESGCM(key).encrypt(nonce, data_key, _bound(kind, lineage, serial, entry))
            listed.append({**entry, "wrapped": _encode(wrapped)})
        nonce = secrets.token_bytes(_NONCE_BYTES)
        head: Json = {
            "format": FORMAT,
            "version": VERSION,
            "kind": kind,
            "lineage": lineage,
            "serial": serial,
            "recipients": listed,
            "nonce": _encode(nonce),
        }
        return {**head, "ciphertext": _encode(AESGCM(data_key).encrypt(nonce, content, canonical_json(head)))}

    @staticmethod
    def _for_recipient(text: str, raw: bytes) -> tuple[bytes, Json]:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        try:
            shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(raw))
        except ValueError:
            raise InputError(
                "recipient.invalid",
                "this recipient has a key of small order",
                place=text,
                next_step="have its owner make another: sbctl state recipient",
            ) from None
        return _wrapping_key(shared, public, raw), {"type": "x25519", "recipient": text, "ephemeral": _encode(public)}


class Opener:
    """What this machine can open with: private keys and a passphrase."""

    def __init__(
        self, identities: Sequence[Identity] = (), passphrase: Secret | None = None, *, log_n: int = _LOG_N
    ) -> None:
        self._identities = {identity.recipient: identity for identity in identities}
        self._passphrase = None if passphrase is None else _Passphrase(passphrase, log_n)

    def sealer(self, recipients: Sequence[str], *, with_passphrase: bool) -> Sealer:
        """A sealer whose documents this opener can open. Raises RefusedError `seal.not_for_us` when it could not."""
        if not with_passphrase and self._identities.keys().isdisjoint(recipients):
            raise RefusedError(
                "seal.not_for_us",
                "this machine could not read what it is to write: it has no key of a recipient and no passphrase",
                next_step="`sbctl state recipient` shows this machine's recipient; somebody listed adds it and runs `sbctl state rekey`",
            )
        return Sealer(recipients, self._passphrase if with_passphrase else None)

    def open(self, raw: Mapping[str, Any], *, kind: str, place: str) -> bytes:
        """The content of an envelope.

        Raises StateError `sealed.invalid` (not our shape), `sealed.damaged` (a bit is not what was written); RefusedError
        `sealed.no_key` when nothing here opens it.
        """
        entries = _checked_shape(raw, kind, place)
        lineage, serial = raw["lineage"], raw["serial"]
        known = [entry for entry in entries if self._may_open(entry)]
        if not known:
            raise RefusedError(
                "sealed.no_key",
                "the state is encrypted, and nothing on this machine opens it",
                place=place,
                next_step="give the passphrase or the identity that fleet.state.encryption names; `sbctl state recipient` shows this machine's recipient",
                detail={"recipients": [str(entry.get("recipient", "passphrase")) for entry in entries]},
            )
        data_key = self._unwrap(known, kind, lineage, serial, place)
        head = {key: value for key, value in raw.items() if key != "ciphertext"}
        return _decrypt(
            data_key, _b64(raw["nonce"], place), _b64(raw["ciphertext"], place), canonical_json(head), place
        )

    def _may_open(self, entry: Mapping[str, Any]) -> bool:
        if entry["type"] == "scrypt":
            return self._passphrase is not None
        return entry["recipient"] in self._identities

    def _unwrap(self, entries: Sequence[Mapping[str, Any]], kind: str, lineage: str, serial: int, place: str) -> bytes:
        """The data key, from the first entry that gives it; an entry under another passphrase looks like a damaged one."""
        failed = StateError(
            "sealed.damaged",
            "a key in the encrypted state is damaged",
            place=place,
            next_step="take an older copy from the server's own history, then: sbctl state push --force FILE",
        )
        for entry in entries:
            try:
                if entry["type"] == "scrypt":
                    assert self._passphrase is not None
                    key = self._passphrase.key(_b64(entry["salt"], place), entry["log_n"])
                else:
                    key = self._identities[entry["recipient"]].agree(_b64(entry["ephemeral"], place))
                nonce, wrapped = _b64(entry["nonce"], place), _b64(entry["wrapped"], place)
                return _decrypt(key, nonce, wrapped, _bound(kind, lineage, serial, entry), place)
            except (StateError, ValueError):
                if entry["type"] == "scrypt":
                    failed = StateError(
                        "sealed.damaged",
                        "the passphrase does not open the state: it is another one, or the document is damaged",
                        place=place,
                        next_step="check the passphrase; after a change of it: sbctl state rekey --old-passphrase REFERENCE",
                    )
        raise failed


def is_sealed(raw: object) -> bool:
    return isinstance(raw, dict) and raw.get("format") == FORMAT


def _invalid(what: str, place: str) -> StateError:
    return StateError(
        "sealed.invalid",
        f"this is not an encrypted document of sbctl: {what}",
        place=place,
        next_step="check fleet.state.address; an older copy goes back by sbctl state push --force FILE",
    )


def _b64(text: object, place: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        data = None
    if data is None or _encode(data) != text:
        raise _invalid("a field is not base64", place)
    return data


def _checked_shape(raw: Mapping[str, Any], kind: str, place: str) -> list[Mapping[str, Any]]:
    if raw.keys() != _FIELDS or raw["format"] != FORMAT:
        raise _invalid("it has other fields than it should", place)
    if isinstance(raw["version"], int) and raw["version"] > VERSION:
        raise StateError(
            "state.too_new",
            f"the document is sealed in format {raw['version']}; this sbctl knows formats up to {VERSION}",
            place=place,
            next_step="use the sbctl that wrote it, or a newer one",
        )
    entries = raw["recipients"]
    if (
        raw["version"] != VERSION
        or raw["kind"] != kind
        or not isinstance(raw["lineage"], str)
        or type(raw["serial"]) is not int
        or not isinstance(entries, list)
        or not 0 < len(entries) <= MAX_RECIPIENTS
    ):
        raise _invalid("its head is not one", place)
    for entry in entries:
        if not isinstance(entry, dict) or entry.keys() != _SHAPES.get(str(entry.get("type"))):
            raise _invalid("a recipient is not one", place)
        if any(not isinstance(value, str) for name, value in entry.items() if name != "log_n"):
            raise _invalid("a recipient is not one", place)
        if entry["type"] == "scrypt" and (type(entry["log_n"]) is not int or not 1 <= entry["log_n"] <= _LOG_N_MAX):
            raise _invalid("the cost of the passphrase is out of bounds", place)
    return entries


def _decrypt(key: bytes, nonce: bytes, data: bytes, bound: bytes, place: str) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(nonce, data, bound)
    except (InvalidTag, ValueError):
        raise StateError(
            "sealed.damaged",
            "the encrypted state is not what was written: a part of it was changed",
            place=place,
            next_step="take an older copy from the server's own history, then: sbctl state push --force FILE",
        ) from None
