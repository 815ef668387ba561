"""Changes of the signer set: which are allowed, and what they do to the key on this machine.

A rotation has three steps, so that at no moment a host is asked to believe a key that it does not know:

    key rotate           a new key is made beside the old one; both are listed, the old one as NAME.retiring
    apply                hosts learn the set; everything is still signed by the old key
    key remove           NAME.retiring leaves the set, the new key takes the old one's place on this machine

A set is signed by a member of the set that the hosts hold, so a key may leave only when every host knows one that stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.fs import remove_file, write_atomic
from sbctl.base.secret import Secret
from sbctl.base.truths import Recorded
from sbctl.cli.signing import find_key, key_path, passphrase_of, require_member
from sbctl.state.model import StateView
from sbctl.trust.keys import SigningKey, load_key_file, save_key_file

__all__ = ["RETIRING", "KeyPlace", "key_place", "refuse_unknown_to_hosts", "with_listed", "with_rotated", "without"]

RETIRING: Final = ".retiring"


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where this machine's key is, and where its successor waits."""

    path: Path
    passphrase: Secret | None

    @property
    def next_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.next")

    def successor(self) -> SigningKey | None:
        """The key that a rotation made; None when none is under way."""
        return load_key_file(self.next_path, self.passphrase) if self.next_path.exists() else None

    def make_successor(self) -> SigningKey:
        """The same again when a rotation was begun before."""
        known = self.successor()
        if known is not None:
            return known
        made = SigningKey.generate()
        save_key_file(self.next_path, made, self.passphrase)
        return made

    def promote(self, successor: SigningKey) -> None:
        """The successor becomes this machine's key; the old one is gone. Done again it changes nothing."""
        write_atomic(self.path, successor.to_pem(self.passphrase).reveal(), mode=0o600)
        remove_file(self.next_path)


def key_place(environ: Mapping[str, str]) -> KeyPlace:
    """Raises RefusedError `key.not_a_file` where the key comes as text, so that nothing here could replace it."""
    if environ.get("SBCTL_SIGNING_KEY"):
        raise RefusedError(
            "key.not_a_file",
            "the signing key comes from SBCTL_SIGNING_KEY, so it cannot be replaced here",
            next_step="list a second key (sbctl key add NAME ed25519:…), apply, store it where the old one is, then remove the old one",
        )
    place = KeyPlace(key_path(environ), passphrase_of(environ))
    if find_key(environ) is None:
        raise RefusedError(
            "key.none",
            "this machine has no signing key",
            place=str(place.path),
            next_step="run it where a listed signer's key is",
        )
    return place


def with_listed(signers: Mapping[str, str], name: str, text: str, own: SigningKey | None) -> dict[str, str]:
    """The set with one more; the same when it was listed before. Raises RefusedError `key.none`, `key.not_listed`, `key.name_taken`."""
    if own is None:
        raise RefusedError(
            "key.none", "this machine has no signing key", next_step="run it where a listed signer's key is"
        )
    require_member(own, signers)
    if signers.get(name, text) != text:
        raise RefusedError("key.name_taken", f'another key is listed as "{name}"', next_step="choose another name")
    return {**signers, name: text}


def with_rotated(signers: Mapping[str, str], own: SigningKey, successor: SigningKey) -> tuple[str, dict[str, str]]:
    """The name that is rotated and the set with both keys. The same again when it was done before.

    Raises RefusedError `key.not_listed`.
    """
    listed = require_member(own, signers).name
    name = listed.removesuffix(RETIRING)
    return name, {**signers, f"{name}{RETIRING}": own.public_text, name: successor.public_text}


def without(
    signers: Mapping[str, str], name: str, own: SigningKey, successor: SigningKey | None
) -> tuple[SigningKey, dict[str, str]]:
    """The key that signs from then on, and the set without `name`.

    Raises InputError `key.unknown`; RefusedError `key.not_listed`, `key.last`, `key.own` (this machine's own key, and no successor is listed).
    """
    require_member(own, signers)
    if name not in signers:
        raise InputError(
            "key.unknown", f'no signer is called "{name}"', next_step=f"listed: {', '.join(sorted(signers))}"
        )
    left = {other: text for other, text in signers.items() if other != name}
    if not left:
        raise RefusedError(
            "key.last",
            f'"{name}" is the only signer: without it nobody could change anything',
            next_step="sbctl key rotate replaces it",
        )
    if signers[name] != own.public_text:
        return own, left
    if successor is None or successor.public_text not in left.values():
        raise RefusedError(
            "key.own",
            f'"{name}" is the key of this machine, which could sign nothing afterwards',
            next_step="another signer removes it; sbctl key rotate replaces it",
        )
    return successor, left


def refuse_unknown_to_hosts(state: StateView, signer: SigningKey) -> None:
    """Raises RefusedError `key.not_everywhere` naming the hosts whose set does not list `signer` yet."""
    unaware = sorted(
        recorded.host
        for recorded in state.resources.values()
        if recorded.address.kind == "runtime" and signer.public_text not in _known_signers(recorded)
    )
    if unaware:
        raise RefusedError(
            "key.not_everywhere",
            f"{', '.join(unaware)} would not believe the key that is left: the set with it did not get there",
            next_step="sbctl apply, then remove the old key",
        )


def _known_signers(recorded: Recorded) -> frozenset[str]:
    trust = recorded.spec.get("trust")
    signers = trust.get("signers") if isinstance(trust, Mapping) else None
    return frozenset(str(text) for text in signers.values()) if isinstance(signers, Mapping) else frozenset()
