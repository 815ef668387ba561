"""What a source of weights said when it was asked; known without any library that asks."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["TEXT_MAX_CHARS", "SourceAnswer"]

TEXT_MAX_CHARS: Final = 512
_Text = Annotated[str, Field(max_length=TEXT_MAX_CHARS)]


class SourceAnswer(BaseModel):
    """`source` as the catalog has it, of `model`. `address` is what was asked; `said` why that is no answer, empty when it is one."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    source: _Text
    model: _Text
    address: _Text = ""
    answered: bool = False
    said: _Text = ""
    milliseconds: int = Field(default=0, ge=0)
