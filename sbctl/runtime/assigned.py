"""Which artifacts this node's deployments need, as the accepted bundle, its admin API and its cluster say: what no collection may take.

Read from the copy that the runtime writes, without its signature: it was verified when it was accepted, and all that follows from it here is
that something stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from sbctl.base import fs
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.runtime.deployments_revision import DEPLOYMENTS_COPY, members_of
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import parse_bundle

__all__ = ["ASSIGNED_COPY", "assigned_artifacts", "write_assigned"]

ASSIGNED_COPY: Final = "assigned.json"
"""Beside the copy of the bundle: artifacts of what a cluster makes this host run, by deployment."""


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    needs: dict[str, list[str]]


def assigned_artifacts(bundle_copy: Path) -> Mapping[str, tuple[str, ...]] | None:
    """Artifact → ids of the deployments that serve it; empty where nothing was accepted, None where it cannot be told."""
    try:
        members = [*_bundled(bundle_copy).items(), *_owned(bundle_copy.with_name(DEPLOYMENTS_COPY)).items()]
        given = _given(bundle_copy.with_name(ASSIGNED_COPY))
    except (SbctlError, ValueError):
        return None
    needs = [*((name, member.artifacts) for name, member in members), *given.items()]
    found: dict[str, tuple[str, ...]] = {}
    for name, artifacts in sorted(needs, key=lambda each: each[0]):
        for artifact in dict.fromkeys(artifacts):
            found[artifact] = tuple(dict.fromkeys((*found.get(artifact, ()), name)))
    return found


def write_assigned(state: Path, members: Mapping[str, DeploymentMember]) -> None:
    """What the cluster makes this host run, for who must know it while no runtime answers. Raises SbctlError of the disk."""
    needs = {name: list(member.artifacts) for name, member in sorted(members.items())}
    fs.write_atomic(state / ASSIGNED_COPY, _Given(needs=needs).model_dump_json().encode())


def _bundled(copy: Path) -> Mapping[str, DeploymentMember]:
    text = _text(copy)
    if text is None:
        return {}
    _type, raw, _keyids = unverified_payload(text, max_bytes=BUNDLE_MAX_BYTES)
    return parse_bundle(raw).content.deployments


def _owned(copy: Path) -> Mapping[str, DeploymentMember]:
    """What the admin API added or exchanged, where it owns the deployments."""
    text = _text(copy)
    members = {} if text is None else members_of(text)
    if members is None:
        raise ValueError("the copy is damaged")
    return members


def _given(copy: Path) -> Mapping[str, tuple[str, ...]]:
    text = _text(copy)
    return {} if text is None else {name: tuple(each) for name, each in _Given.model_validate_json(text).needs.items()}


def _text(copy: Path) -> str | None:
    try:
        return fs.read_bounded(copy, max_bytes=4 * BUNDLE_MAX_BYTES).decode()
    except InputError as error:
        if error.code == "file.missing":
            return None
        raise
