"""What plans read of an authority: its public side, and how far a rollover came.

A rollover takes CA and signing key over together, in three steps, each a plan of its own, decided from what every host is recorded to hold:

    add       every host trusts both; the old ones issue and sign
    reissue   every host trusts both: the new ones issue and sign
    remove    every identity is of the new ones: the old ones are trusted no more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sbctl.trust.authority_directory import EnrollmentRecord, NodeRecord

__all__ = ["AuthorityFacts", "RolloverStep", "rollover"]

RolloverStep = Literal["add", "reissue", "remove"]


@dataclass(frozen=True, slots=True)
class AuthorityFacts:
    """The public side, as plans read it. `ca` are fingerprints, the one that issues first unless a rollover is in its first step."""

    cluster_id: str
    server_name: str
    authority_key: str
    """The key that signs for the CA that issues."""
    authority_keys: tuple[str, ...]
    """Those that hosts believe: one of each CA that they trust."""
    ca: tuple[str, ...]
    issuer: str
    revocations: int
    rollover: RolloverStep | None
    nodes: Mapping[str, NodeRecord]
    keys_here: bool
    ca_not_after: datetime
    """Of the CA that issues."""
    enrollment: EnrollmentRecord | None = None
    """What an enrollment server was given to issue with, and on which host; None when there was none."""

    @classmethod
    def unread(cls, server_name: str | None) -> AuthorityFacts:
        """Stands for an authority that nobody asked: what two files say of identities can be compared without it."""
        return cls(
            "",
            server_name or "",
            "",
            (),
            (),
            "",
            0,
            None,
            {},
            keys_here=False,
            ca_not_after=datetime.max.replace(tzinfo=UTC),
        )


def rollover(
    current: str, following: str | None, held: Iterable[Mapping[str, Any]]
) -> tuple[tuple[str, ...], str, RolloverStep | None]:
    """CAs to trust, CA to issue, and the step of the rollover. `held`: of each host the recorded `ca` and `issuer`."""
    if following is None:
        return (current,), current, None
    known = [(tuple(each["ca"]), each["issuer"]) for each in held]
    if any(following not in trusted for trusted, _ in known):
        return (current, following), current, "add"
    if any(issuer != following for _, issuer in known):
        return (current, following), following, "reissue"
    return (following,), following, "remove"
