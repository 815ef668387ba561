"""Secrets that a plan's steps will send: read before anything is begun, so that one that is missing leaves no host half changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sbctl.cli.planning import Planned
from sbctl.cli.workspace import Workspace
from sbctl.config.secrets import SecretResolver

__all__ = ["refuse_missing_secrets"]

_READ_HERE: Final = ("env:", "file:")
"""A command (`exec:`) runs once, when its value is sent."""


def refuse_missing_secrets(workspace: Workspace, found: Planned) -> None:
    """Raises InputError `secret.*` of the first that cannot be read."""
    if found.config is None:
        return
    resolver = SecretResolver(found.config, workspace.environ)
    wanted = {
        reference: None
        for change in found.plan.actionable
        if not change.blocked
        for step in change.steps
        for reference in _references(step.params)
    }
    for reference in wanted:
        known = found.config.secrets.get(reference.removeprefix("secret:"))
        read = known.reference if known is not None and reference.startswith("secret:") else reference
        if read.startswith(_READ_HERE):
            resolver.resolve(reference)


def _references(params: Any) -> Iterator[str]:
    """Of step parameters, which hold a secret as its reference and fingerprint."""
    if isinstance(params, Mapping):
        if isinstance(params.get("reference"), str) and "fingerprint" in params:
            yield params["reference"]
        for inner in params.values():
            yield from _references(inner)
    elif isinstance(params, (list, tuple)):
        for inner in params:
            yield from _references(inner)
