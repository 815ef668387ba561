"""Ed25519 keys: who may say what should run.

A public key is written `ed25519:<base64 of 32 bytes>`. Encodings of small order verify any message and are refused, as are
non-canonical ones (RFC 8032 section 5.1.3). A private key is a PKCS#8 PEM file, 0600, optionally under a passphrase.

The library is imported when the first key is used: most plans use none.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.fs import ensure_directory, read_bounded, write_atomic
from sbctl.base.limits import KEY_FILE_MAX_BYTES
from sbctl.base.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import KeySerializationEncryption

__all__ = [
    "SigningKey",
    "VerifyKey",
    "load_key_file",
    "parse_public_key",
    "read_private_file",
    "save_key_file",
    "save_private_file",
]

_PREFIX: Final = "ed25519:"
_BRING_BACK: Final = "check SBCTL_SIGNING_KEY_PASSPHRASE, or bring the key back from its copy; if there is none, another signer lists a new one"
_FIELD_PRIME: Final = 2**255 - 19
_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)


class VerifyKey:
    """A public key that passed the checks of this module."""

    __slots__ = ("_raw", "text")

    def __init__(self, raw: bytes) -> None:
        if raw in _SMALL_ORDER or int.from_bytes(raw, "little") & (2**255 - 1) >= _FIELD_PRIME:
            raise InputError(
                "key.weak",
                "this public key verifies forged messages (small order or non-canonical encoding)",
                next_step="make another: sbctl key add NAME --generate",
            )
        self._raw = raw
        self.text = _PREFIX + base64.b64encode(raw).decode()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self._raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


def parse_public_key(text: str) -> VerifyKey:
    """Raises InputError `key.invalid` or `key.weak`."""
    problem = InputError(
        "key.invalid",
        "this is not an Ed25519 public key",
        next_step="write ed25519:<base64 of 32 bytes>, as `sbctl key list` prints it",
    )
    if not text.startswith(_PREFIX):
        raise problem
    body = text[len(_PREFIX) :]
    try:
        raw = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise problem from None
    if len(raw) != 32 or base64.b64encode(raw).decode() != body:
        raise problem
    return VerifyKey(raw)


class SigningKey:
    """An operator's private key. It signs; it never prints."""

    __slots__ = ("_key",)

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: Secret, passphrase: Secret | None = None, *, place: str | None = None) -> SigningKey:
        """`place` is where it was found, for messages. Raises InputError `key.invalid` or `key.passphrase`."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            key = serialization.load_pem_private_key(pem.reveal(), passphrase.reveal() if passphrase else None)
        except TypeError:
            wanted = "needs a passphrase" if passphrase is None else "has no passphrase, but one was given"
            raise InputError(
                "key.passphrase",
                f"the signing key {wanted}",
                place=place,
                next_step="set or unset SBCTL_SIGNING_KEY_PASSPHRASE",
            ) from None
        except (ValueError, UnsupportedAlgorithm):
            raise InputError(
                "key.invalid",
                "the signing key cannot be read: not PKCS#8 PEM, or the passphrase is wrong",
                place=place,
                next_step=_BRING_BACK,
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError("key.invalid", "the signing key is not an Ed25519 key", place=place, next_step=_BRING_BACK)
        return cls(key)

    def to_pem(self, passphrase: Secret | None = None) -> Secret:
        from cryptography.hazmat.primitives import serialization

        encryption: KeySerializationEncryption = serialization.NoEncryption()
        if passphrase is not None:
            encryption = serialization.BestAvailableEncryption(passphrase.reveal())
        return Secret(
            self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )

    @property
    def public_text(self) -> str:
        """`ed25519:<base64>`"""
        from cryptography.hazmat.primitives import serialization

        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return _PREFIX + base64.b64encode(raw).decode()

    def sign(self, message: bytes) -> bytes:
        """64 bytes."""
        return self._key.sign(message)


def load_key_file(path: Path, passphrase: Secret | None = None) -> SigningKey:
    """Read a private key that only its owner can read.

    Raises InputError `file.missing`, `key.invalid`; RefusedError `key.permissions` when group or others may read it or it is a link.
    """
    return SigningKey.from_pem(read_private_file(path, "signing key"), passphrase, place=str(path))


def read_private_file(path: Path, noun: str) -> Secret:
    """The content of a key file that only its owner can read. Raises as `load_key_file`."""
    try:
        status = os.lstat(path)
    except OSError:
        raise InputError(
            "file.missing",
            f"there is no {noun} here",
            place=str(path),
            next_step="check the path, or bring the file back",
        ) from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
        raise RefusedError(
            "key.permissions",
            f"the {noun} must be a regular file of yours with mode 0600; it has mode {stat.S_IMODE(status.st_mode):04o}",
            place=str(path),
            next_step=f"chmod 600 {path}",
        )
    return Secret(read_bounded(path, max_bytes=KEY_FILE_MAX_BYTES))


def save_key_file(path: Path, key: SigningKey, passphrase: Secret | None = None) -> None:
    """Write a new private key durably, 0600 in a 0700 directory. Raises RefusedError `key.exists` rather than overwrite one."""
    save_private_file(path, key.to_pem(passphrase))


def save_private_file(path: Path, content: Secret) -> None:
    """As `save_key_file`, for any private key."""
    if os.path.lexists(path):
        raise RefusedError(
            "key.exists",
            "a key stands here already and is never overwritten",
            place=str(path),
            next_step="use that key, or name another place",
        )
    ensure_directory(path.parent, mode=0o700)
    write_atomic(path, content.reveal(), mode=0o600)
