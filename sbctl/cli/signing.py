"""Which key signs, and when one may be made.

The private key is, in this order: `SBCTL_SIGNING_KEY` (PEM text), `SBCTL_SIGNING_KEY_FILE`, `<config dir>/sbctl/keys/operator.key`; under a
passphrase from `SBCTL_SIGNING_KEY_PASSPHRASE`. One is made only for a new fleet, never under CI, never without a terminal or `--yes`, never
when sb.yml declares its signers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_config_dir

from sbctl.base.errors import RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey, load_key_file, save_key_file

__all__ = [
    "KEY_NOT_MADE_YET",
    "Signer",
    "default_key_path",
    "find_key",
    "key_path",
    "make_key",
    "passphrase_of",
    "require_member",
]

KEY_NOT_MADE_YET: Final = "(made by apply)"
"""Stands for the public key in a plan of a new fleet."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A key and the name under which the signer set lists it."""

    name: str
    key: SigningKey

    def sign(self, payload_type: str, payload: bytes) -> str:
        return sign_envelope(payload_type, payload, self.key, self.name)


def default_key_path() -> Path:
    return Path(user_config_dir("sbctl")) / "keys" / "operator.key"


def key_path(environ: Mapping[str, str]) -> Path:
    """Where this machine's key is, or would be made."""
    named = environ.get("SBCTL_SIGNING_KEY_FILE")
    return Path(named) if named else default_key_path()


def passphrase_of(environ: Mapping[str, str]) -> Secret | None:
    """What the private key is, or would be, encrypted with."""
    passphrase = environ.get("SBCTL_SIGNING_KEY_PASSPHRASE")
    return Secret(passphrase.encode()) if passphrase else None


def find_key(environ: Mapping[str, str]) -> SigningKey | None:
    """The operator's key; None when there is none. Raises what reading a damaged or open one raises."""
    phrase = passphrase_of(environ)
    if pem := environ.get("SBCTL_SIGNING_KEY"):
        return SigningKey.from_pem(Secret(pem.encode()), phrase, place="SBCTL_SIGNING_KEY")
    if named := environ.get("SBCTL_SIGNING_KEY_FILE"):
        return load_key_file(Path(named), phrase)
    path = default_key_path()
    return load_key_file(path, phrase) if path.exists() else None


def make_key(environ: Mapping[str, str], *, declared: Sequence[str], interactive: bool, assume_yes: bool) -> SigningKey:
    """Generate and save the first key of a new fleet, which has nobody in `declared` who may sign.

    Raises RefusedError `key.none` where that is not allowed.
    """
    reason = None
    if declared:
        reason = f"this fleet accepts only what {' or '.join(declared)} signed, and this machine has no signing key"
    elif environ.get("CI"):
        reason = "there is no signing key, and none is made under CI"
    elif not interactive and not assume_yes:
        reason = "there is no signing key, and none is made without a terminal or --yes"
    if reason is not None:
        raise RefusedError(
            "key.none",
            reason,
            place=str(default_key_path()),
            next_step="bring the key back from its copy (or set SBCTL_SIGNING_KEY_FILE); or make one, and a listed signer adds it: sbctl key add NAME --generate",
        )
    key = SigningKey.generate()
    save_key_file(default_key_path(), key)
    return key


def require_member(key: SigningKey, signers: Mapping[str, str]) -> Signer:
    """The signer's listed name. Raises RefusedError `key.not_listed` naming who is."""
    for name in sorted(signers):
        if signers[name] == key.public_text:
            return Signer(name, key)
    raise RefusedError(
        "key.not_listed",
        f"your key {key.public_text} is not in this fleet's signer set",
        next_step=f"listed: {', '.join(sorted(signers)) or 'nobody'}; one of them runs: sbctl key add YOUR-NAME {key.public_text}",
    )
