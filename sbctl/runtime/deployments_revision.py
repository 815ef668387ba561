"""The deployments that the admin API owns, as one numbered document: replaced whole, by compare-and-set (SBproxy, "Admin store")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import RefusedError
from sbctl.trust.bundle import DeploymentMember

__all__ = ["DEPLOYMENTS_COPY", "DeploymentsRevision", "check_expected", "members_of", "revision_from"]

DEPLOYMENTS_COPY: Final = "deployments.json"
"""Beside the copy of the bundle: the document, for who must know what this host needs while no runtime answers."""


@dataclass(frozen=True, slots=True)
class DeploymentsRevision:
    """`revision` counts writes from 1; `content_digest` is 64 hex characters over what should run."""

    revision: int
    content_digest: str
    deployments: Mapping[str, DeploymentMember]

    @classmethod
    def of(cls, revision: int, deployments: Mapping[str, DeploymentMember]) -> DeploymentsRevision:
        return cls(revision, sha256_bytes(_document(deployments)), dict(deployments))

    @property
    def row(self) -> tuple[int, str, str]:
        """As the store keeps it."""
        return self.revision, self.content_digest, _document(self.deployments).decode()


def revision_from(row: Sequence[object]) -> DeploymentsRevision | None:
    """None for a row whose document does not have its digest or is none of ours."""
    revision, digest, text = int(str(row[0])), str(row[1]), str(row[2])
    members = members_of(text) if sha256_bytes(text.encode()) == digest else None
    return None if members is None else DeploymentsRevision(revision, digest, members)


def members_of(text: str) -> dict[str, DeploymentMember] | None:
    """A document's deployments; None for what is none of ours."""
    try:
        return {
            name: DeploymentMember.model_validate_json(json.dumps(member)) for name, member in json.loads(text).items()
        }
    except (ValueError, ValidationError, AttributeError):
        return None


def check_expected(expected: int | None, actual: int | None) -> None:
    """Raises RefusedError `revision_conflict` with both."""
    if expected != actual:
        raise RefusedError(
            "revision_conflict",
            f"the deployments are at revision {_named(actual)}, not {_named(expected)}: somebody wrote in between",
            next_step="read them again (GET), then send the change with the revision found there",
            detail={"expected_revision": expected, "actual_revision": actual},
        )


def _named(revision: int | None) -> str:
    return "none" if revision is None else str(revision)


def _document(deployments: Mapping[str, DeploymentMember]) -> bytes:
    return canonical_json({name: member.model_dump(mode="json") for name, member in deployments.items()})
