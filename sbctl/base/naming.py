"""Errors about what stands in a file or comes from elsewhere say where that is, though the code that found them was given bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sbctl.base.errors import SbctlError

__all__ = ["naming"]


@contextlib.contextmanager
def naming(place: str, next_step: str | None = None) -> Iterator[None]:
    """An error of the block that names no place names this one, and where it says nothing to do, this next step."""
    try:
        yield
    except SbctlError as error:
        error.place = error.place or place
        error.next_step = error.next_step or next_step
        raise
