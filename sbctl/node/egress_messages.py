"""How a host reaches the outside, as it tells itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.source_answer import SourceAnswer
from sbctl.node.params import Params

__all__ = ["EgressCheck", "EgressTold"]


class EgressCheck(Params):
    """Ask each source of these artifacts for a first byte, from this host and with its settings. → `EgressTold`"""

    wanted: tuple[ArtifactFacts, ...] = Field(max_length=256)


class EgressTold(BaseModel):
    """What came of it."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    sources: Annotated[tuple[SourceAnswer, ...], Field(max_length=4096)] = ()
