"""What a door is: one place where bytes of somebody else come in, how to knock, and what it may answer with.

A door either takes the bytes or raises one of `refusals`. Anything else is a finding, and what a knock asserts on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.errors import SbctlError

__all__ = ["CORPUS", "Door", "Knock", "Opener"]

CORPUS: Final = Path(__file__).resolve().parent / "corpus"

Knock = Callable[[bytes], object]
Opener = Callable[[Path], AbstractContextManager[Knock]]
"""Given an empty directory of its own: sets up what the door needs, gives the knock, and takes all down again."""


@dataclass(frozen=True)
class Door:
    """`kept`: globs under tests/fuzz of inputs that are tried each time and that others are made of. `seeds`: good inputs, made by today's code."""

    name: str
    open: Opener
    kept: tuple[str, ...]
    seeds: Callable[[], list[bytes]]
    rounds: int = 400
    """Mutants in a short run."""
    refusals: tuple[type[BaseException], ...] = (SbctlError,)

    def corpus(self) -> Iterator[Path]:
        for pattern in self.kept:
            yield from sorted(path for path in CORPUS.parent.glob(pattern) if path.is_file())

    def knock(self, call: Knock, data: bytes) -> None:
        """Raises what no door may answer with."""
        try:
            call(data)
        except self.refusals:
            return
