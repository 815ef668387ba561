"""One way to name many: patterns over names (`gpu-*`, `gpu-[1-4]`) and over addresses of resources (`host.gpu-*`, `*.gpu-a`, `deployment.*/chat`).

`*` stands for any characters, `?` for one, `[1-4]` and `[1,3,08-12]` for whole numbers, written as ranges of hosts are. Nothing else is
special. An address pattern is matched part by part: kind, scope, name; a pattern without `/name` takes every name, so `*.gpu-a` is all that
is on gpu-a, and `*` is everything. No pattern takes more than a few passes over a text, whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import InputError
from sbctl.base.ids import KINDS, Address
from sbctl.base.suggest import did_you_mean

__all__ = ["AddressPattern", "NamePattern", "any_of", "matches_wildcard", "number_ranges"]

_TOKEN_RE: Final = re.compile(r"\*+|\?|\[[^\[\]]*\]|[^*?\[\]]+")
_WILDCARD_RE: Final = re.compile(r"\*+|\?|[^*?]+")
_MAX_CHARS: Final = 400
_MAX_TOKENS: Final = 64

_Ends = Callable[[str, int], Iterator[int]]
"""Where a piece that begins at a place of the text may end."""


def number_ranges(text: str) -> list[tuple[int, int, int]]:
    """`1,3,08-12` as (first, last, width); width 0: without leading zeros. Raises ValueError with a sentence."""
    found = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if (
            not first
            or len(piece) > 13
            or (dash and not last)
            or not ((first + last).isascii() and (first + last).isdigit())
        ):
            raise ValueError("a range is written [1-4] or [1,3,5]")
        if int(last or first) < int(first):
            raise ValueError("a range counts upwards")
        found.append((int(first), int(last or first), len(first) if first.startswith("0") else 0))
    return found


def _literal(piece: str) -> _Ends:
    def ends(text: str, start: int) -> Iterator[int]:
        if text.startswith(piece, start):
            yield start + len(piece)

    return ends


def _one(text: str, start: int) -> Iterator[int]:
    if start < len(text):
        yield start + 1


def _any(text: str, start: int) -> Iterator[int]:
    yield from range(start, len(text) + 1)


def _number(ranges: list[tuple[int, int, int]]) -> _Ends:
    def ends(text: str, start: int) -> Iterator[int]:
        for end in range(start + 1, min(start + 13, len(text)) + 1):
            digits = text[start:end]
            if not (digits.isascii() and digits.isdigit()):
                return
            number = int(digits)
            if any(first <= number <= last and digits == str(number).zfill(width) for first, last, width in ranges):
                yield end

    return ends


class NamePattern:
    """A pattern over one name."""

    def __init__(self, text: str) -> None:
        """Raises InputError `pattern.invalid`."""
        self.text = text
        pieces = _TOKEN_RE.findall(text)
        if "".join(pieces) != text or not text or len(text) > _MAX_CHARS or len(pieces) > _MAX_TOKENS:
            raise _invalid(
                text, "the brackets do not match" if text and len(text) <= _MAX_CHARS else "it is empty or long"
            )
        self._steps: list[_Ends] = []
        for piece in pieces:
            try:
                self._steps.append(_step(piece))
            except ValueError as error:
                raise _invalid(text, str(error)) from None
        self.plain = len(pieces) == 1 and not set(text) & set("*?[]")
        """Whether it can only be one name."""

    def matches(self, name: str) -> bool:
        """Whether the whole name is as the pattern says."""
        return _walk(self._steps, name)


def _walk(steps: Iterable[_Ends], name: str) -> bool:
    places = {0}
    for step in steps:
        if step is _any:
            places = set(range(min(places), len(name) + 1))
        else:
            places = {end for place in places for end in step(name, place)}
        if not places:
            return False
    return len(name) in places


def matches_wildcard(pattern: str, text: str) -> bool:
    """Whether the whole text is as a pattern says in which only `*` and `?` are special."""
    if not set(pattern) & set("*?"):
        return pattern == text
    return _walk(
        (_step(piece) if piece[0] in "*?" else _literal(piece) for piece in _WILDCARD_RE.findall(pattern)), text
    )


def _step(piece: str) -> _Ends:
    if piece[0] == "*":
        return _any
    if piece[0] == "?":
        return _one
    return _number(number_ranges(piece[1:-1])) if piece[0] == "[" else _literal(piece)


_SIGNS: Final = "* is any text, ? one character, [1-4] a range of numbers"


def _invalid(text: str, why: str, next_step: str = _SIGNS) -> InputError:
    return InputError(
        "pattern.invalid",
        f'"{display_safe(text, max_chars=120)}" is not a pattern: {why}',
        next_step=next_step,
    )


class AddressPattern:
    """A pattern over addresses of resources."""

    def __init__(self, text: str) -> None:
        """Raises InputError `pattern.invalid`, also for a kind that does not exist."""
        self.text = text
        kind, dot, rest = text.partition(".")
        if text != "*" and not (dot and rest and kind):
            raise _invalid(text, "it has no kind", f"write kind.scope or kind.scope/name; {_SIGNS}")
        scope, slash, name = rest.partition("/")
        self._kind = NamePattern(kind)
        self._scope = NamePattern(scope if dot else "*")
        self._name = NamePattern(name) if slash else None
        if not any(self._kind.matches(each) for each in KINDS):
            close = did_you_mean(kind, KINDS)
            raise _invalid(text, f'there is no kind "{kind[:32]}"' + (f', did you mean "{close}"' if close else ""))
        self._scopes = lru_cache(maxsize=4096)(self._scope.matches)

    def matches(self, address: Address) -> bool:
        """Whether the resource is one of those that the pattern names."""
        if self._name is not None and (address.name is None or not self._name.matches(address.name)):
            return False
        return self._kind.matches(address.kind) and self._scopes(address.scope)


@lru_cache(maxsize=64)
def any_of(patterns: tuple[str, ...]) -> Callable[[Address], bool]:
    """Whether an address is named by one of `patterns`. Raises InputError `pattern.invalid`."""
    compiled = tuple(AddressPattern(text) for text in patterns)
    return lambda address: any(pattern.matches(address) for pattern in compiled)
