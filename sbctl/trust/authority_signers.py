"""All that signs for an authority: its CA and the signing key beside it, and while a rollover lasts those that take over.

Each CA has a signing key of its own, for identity documents and revocations, and both are replaced together. While two CAs are trusted the
revocation list has both signatures. The steps of a rollover are in `authority_facts`. Whoever writes here holds the directory's lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from sbctl.base.errors import InputError
from sbctl.trust.authority_directory import KEY_ID, AuthorityFiles
from sbctl.trust.certificate_making import create_ca
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.keys import SigningKey
from sbctl.trust.revocation import RevocationList, open_revocations, sign_revocations

__all__ = ["AuthoritySigners", "CaName"]

CaName = Literal["ca", "ca-next"]
_NEXT_KEY_ID: Final = "authority-next"
_NEXT: Final = ("ca-next.pem", "ca-next-key.pem", "authority-next-signing.key", "authority-next-verifying.key")


class AuthoritySigners:
    """Those of one directory. A CA is named by its fingerprint."""

    def __init__(self, files: AuthorityFiles) -> None:
        self._files = files

    @property
    def following(self) -> str | None:
        """The CA that takes over; None while no rollover lasts."""
        return (
            certificate_facts(self._files.text("ca-next.pem")).fingerprint if self._files.has("ca-next.pem") else None
        )

    def certificates(self) -> Mapping[str, str]:
        """PEM by CA, the current one first."""
        return {certificate_facts(text).fingerprint: text for text in self._texts()}

    def verifying_keys(self) -> Mapping[str, str]:
        """By the CA that each signs beside. A rollover that was cut while it finished has its CA twice: the key that takes over counts."""
        stems = ("authority", "authority-next")
        found = (certificate_facts(text).fingerprint for text in self._texts())
        return {ca: self._files.verifying_key(stem) for ca, stem in zip(found, stems, strict=False)}

    def bundle(self, fingerprints: Sequence[str]) -> str:
        """The certificates of these CAs, PEM. Raises InputError `authority.unknown_ca`."""
        known = self.certificates()
        missing = [fingerprint for fingerprint in fingerprints if fingerprint not in known]
        if missing:
            raise InputError(
                "authority.unknown_ca",
                f"the authority has no CA with fingerprint {missing[0][:16]}",
                place=str(self._files.directory),
                next_step="plan again: the authority changed since",
            )
        return "".join(known[fingerprint] for fingerprint in fingerprints)

    def name(self, issuer: str | None) -> CaName:
        """Of the files of this CA; None: the current one. Raises InputError `authority.unknown_ca`."""
        if issuer is None or certificate_facts(self._files.text("ca.pem")).fingerprint == issuer:
            return "ca"
        self.bundle([issuer])
        return "ca-next"

    def signing_key(self, name: CaName) -> SigningKey:
        """Of the files that `name` says. Raises RefusedError `authority.no_key`."""
        return self._files.signing_key("authority" if name == "ca" else "authority-next")

    def revocations(self) -> tuple[str, RevocationList]:
        """The signed text and what it says."""
        text = self._files.text("revocations.json")
        return text, open_revocations(text, self._files.trusted_keys())

    def sign_revocations(self, listed: RevocationList) -> str:
        """By every signing key that is there, so that a host believes it in each step of a rollover."""
        keys = {KEY_ID: self._files.signing_key()}
        if self._files.has("authority-next-signing.key"):
            keys[_NEXT_KEY_ID] = self._files.signing_key("authority-next")
        return sign_revocations(listed, keys)

    def begin(self, cluster_id: str, *, now: datetime) -> str:
        """Make those that take over; the CA's fingerprint. Those that wait already are kept. Raises RefusedError `authority.no_key`."""
        self._files.secret("ca-key.pem")
        following = self.following
        if following is None:
            ca, signer = create_ca(cluster_id, now=now), SigningKey.generate()
            self._files.write("authority-next-signing.key", signer.to_pem())
            self._files.write("authority-next-verifying.key", signer.public_text + "\n")
            self._files.write("revocations.json", self.sign_revocations(self.revocations()[1]))
            self._files.write("ca-next-key.pem", ca.key)
            # The certificate last: with it the rollover has begun, and all else is there.
            self._files.write("ca-next.pem", ca.certificate)
            following = certificate_facts(ca.certificate).fingerprint
        return following

    def finish(self, held: Sequence[Mapping[str, Any]]) -> bool:
        """Once every host trusts the next CA alone it becomes the current one, and the old keys are destroyed; whether it did.

        `held`: of each host the recorded `ca` and `issuer`. Cut anywhere, it is finished by the next call.
        """
        following = self.following
        if following is None or not self._files.has("ca-next-key.pem"):
            if following is None:
                self._forget_next()
            return False
        if not held or any(tuple(each["ca"]) != (following,) or each["issuer"] != following for each in held):
            return False
        pair = self._files.key_pair("ca-next")
        signing, verifying = self.signing_key("ca-next"), self._files.text("authority-next-verifying.key")
        self._files.write("ca-key.pem", pair.key)
        self._files.write("ca.pem", pair.certificate)
        self._files.write("authority-signing.key", signing.to_pem())
        self._files.write("authority-verifying.key", verifying)
        self._files.write("revocations.json", sign_revocations(self.revocations()[1], {KEY_ID: signing}))
        self._forget_next()
        return True

    def _texts(self) -> list[str]:
        return [self._files.text(name) for name in ("ca.pem", "ca-next.pem") if self._files.has(name)]

    def _forget_next(self) -> None:
        for name in _NEXT:
            if self._files.has(name):
                self._files.remove(name)
