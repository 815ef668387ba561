"""What a host that enrolled remembers of its renewals: `<state>/identity-renewal.json`. Nothing secret, and nothing that could not be lost."""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs, strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError
from sbctl.node.paths import NodePaths

__all__ = ["RenewalState", "read_state", "renewal_problem", "write_state"]

_FILE: Final = "identity-renewal.json"
_MAX_BYTES: Final = 16 * 1024


class RenewalState(BaseModel):
    """Of one certificate. `failing_since` and `problem` are None while nothing failed."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)

    fingerprint: str = Field(default="", max_length=64)
    failures: int = Field(default=0, ge=0)
    failing_since: str | None = Field(default=None, max_length=40)
    next_attempt: str | None = Field(default=None, max_length=40)
    problem: str | None = Field(default=None, max_length=512)


def read_state(paths: NodePaths) -> RenewalState:
    """What is remembered; nothing when it is missing or damaged."""
    try:
        data = fs.read_bounded(paths.state / _FILE, max_bytes=_MAX_BYTES)
        return RenewalState.model_validate_json(json.dumps(strict_json.loads(data, max_bytes=_MAX_BYTES)))
    except (InputError, ValidationError):
        return RenewalState()


def write_state(paths: NodePaths, state: RenewalState) -> None:
    """Raises SbctlError `disk.*`."""
    document: dict[str, Any] = state.model_dump(mode="json")
    fs.ensure_directory(paths.state)
    fs.write_atomic(paths.state / _FILE, canonical_json(document), mode=0o644)


def renewal_problem(paths: NodePaths, fingerprint: str | None) -> str | None:
    """Since when the certificate in use cannot be renewed, and why; None while nothing failed."""
    state = read_state(paths)
    if state.problem is None or state.fingerprint != fingerprint:
        return None
    return f"since {state.failing_since}: {state.problem}"
