"""What all parameters of the node interface share."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

from sbctl.base.ids import DIGEST_RE

__all__ = ["DIGEST_PATTERN", "Params"]

DIGEST_PATTERN: Final = f"^{DIGEST_RE.pattern}$"
"""SHA-256 as 64 lowercase hex characters."""


class Params(BaseModel):
    """Closed, strict and frozen; its validator is built when it is first used."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
