"""The authority as the steps of a run use it: opened once a run, asked from the threads of many hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sbctl.base.clock import Clock
from sbctl.base.errors import RefusedError
from sbctl.cli.workspace import Workspace
from sbctl.trust.authority import Authority
from sbctl.trust.identity import Grant

__all__ = ["IdentitySigner", "authority_directory", "settle_rollover"]


def authority_directory(workspace: Workspace) -> Path:
    """Where `fleet.identity` says the authority is. Raises RefusedError `identity.none` when sb.yml names none."""
    identity = workspace.loaded.identity
    if identity is None:
        raise RefusedError(
            "identity.none",
            "sb.yml names no authority that could issue an identity",
            place=str(workspace.file),
            next_step="make one with sbctl cluster init, and name it: fleet: {identity: {directory: ./cluster}}",
        )
    return Path(identity.directory)


class IdentitySigner:
    """`issue_identity` and `identity_trust` of `sbctl.provider.Services`."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock

    @cached_property
    def _authority(self) -> Authority:
        return Authority.open(authority_directory(self._workspace))

    def issue_identity(
        self, request: str, grant: Mapping[str, Any], *, issuer: str, validity_days: int, least_epoch: int
    ) -> Mapping[str, str]:
        issued = self._authority.issue(
            request,
            Grant.model_validate_json(json.dumps(dict(grant))),
            now=self._clock.now(),
            issuer=issuer,
            validity_days=validity_days,
            least_epoch=least_epoch,
        )
        return {"certificate": issued.certificate, "identity": issued.identity}

    def identity_trust(self, ca: Sequence[str]) -> Mapping[str, str]:
        return {
            "ca": self._authority.bundle(ca),
            "authority_key": self._authority.verifying_key,
            "revocations": self._authority.revocations()[0],
        }


def settle_rollover(workspace: Workspace) -> bool:
    """After an apply: where every host trusts the next CA alone, it becomes the current one. Whether it did."""
    if workspace.loaded.identity is None:
        return False
    authority = Authority.open(authority_directory(workspace))
    return authority.finish_rollover(workspace.held_identities(), now=workspace.clock.now())
