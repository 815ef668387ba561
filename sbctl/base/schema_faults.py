"""What is wrong with a document, in a sentence's part that is short and safe to show, whoever wrote the document."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from sbctl.base.display import display_safe

__all__ = ["first_fault"]

_WHERE_MAX_CHARS: Final = 120
_WHAT_MAX_CHARS: Final = 300


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Where, as names and numbers with dots between them, and what. The name of an unknown field is its writer's own words, of any length."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the top"
    return display_safe(where, max_chars=_WHERE_MAX_CHARS), display_safe(first["msg"], max_chars=_WHAT_MAX_CHARS)
