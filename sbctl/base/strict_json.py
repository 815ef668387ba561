"""The one JSON reader: no duplicate keys, no NaN, no integers beyond 2^53-1, no lone surrogates, bounded size and depth."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from sbctl.base.display import display_safe
from sbctl.base.errors import InputError
from sbctl.base.limits import JSON_INT_MAX, JSON_MAX_DEPTH

__all__ = ["Member", "dump_pretty", "loads", "members"]


def _refuse(what: str) -> NoReturn:
    raise InputError("json.invalid", what)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f'the key "{display_safe(key, max_chars=64)}" appears twice in one object')
            seen.add(key)
    return result


def _constant(name: str) -> NoReturn:
    _refuse(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > 17:
        _refuse("an integer is beyond 2^53-1")
    value = int(text)
    if abs(value) > JSON_INT_MAX:
        _refuse("an integer is beyond 2^53-1")
    return value


def _real(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        _refuse("a number is beyond the range of a double")
    return value


_STRINGS_AND_BRACKETS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    for found in _STRINGS_AND_BRACKETS.finditer(data):
        first = data[found.start()]
        if first in (0x5B, 0x7B):
            depth += 1
            if depth > max_depth:
                _refuse(f"the document is nested deeper than {max_depth}")
        elif first in (0x5D, 0x7D):
            depth -= 1


def _checked_text(data: bytes, max_bytes: int, max_depth: int) -> str:
    if len(data) > max_bytes:
        raise InputError("json.too_large", f"the document has {len(data)} bytes; at most {max_bytes} are read")
    if data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(data, max_depth)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        _refuse("the document is not UTF-8")


_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse_lone_surrogates(text: str, value: Any) -> None:
    """Half a character can be written as an escape alone, and whatever wants to store or send it as UTF-8 would fail."""
    if "\\u" in text and _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            _refuse("the document holds characters that are no Unicode (lone surrogates)")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_int=_integer, parse_float=_real
)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined]
"""A value and where it ends, without a call of Python around it. Raises StopIteration with the place of a value that is missing."""
_NOT_JSON = "the document is not JSON"


def loads(data: bytes, *, max_bytes: int, max_depth: int = JSON_MAX_DEPTH) -> Any:
    """Parse UTF-8 JSON. Raises InputError `json.invalid` or `json.too_large`, never a decoder's exception."""
    text = _checked_text(data, max_bytes, max_depth)
    try:
        if text.startswith("\ufeff"):
            _refuse("the document begins with a byte order mark")
        value = _DECODER.decode(text)
        _refuse_lone_surrogates(text, value)
        return value
    except json.JSONDecodeError as error:
        _refuse(f"{_NOT_JSON}: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse(f"the document is nested deeper than {max_depth}")


class Member(NamedTuple):
    """One member of an object: its value, and where that value stands in the text."""

    value: Any
    start: int
    end: int


_member: Final = partial(tuple.__new__, Member)
"""As `Member`, of a tuple and without a call of Python."""

_SPACE: Final = r"[ \t\n\r]*+"
_OPEN: Final = re.compile(rf"{_SPACE}\{{{_SPACE}")
_NAME: Final = re.compile(rf'"([^"\\\x00-\x1f]*+)"{_SPACE}:{_SPACE}')
"""A name without escapes, which is how names are written."""
_NEXT_NAME: Final = re.compile(rf'{_SPACE},{_SPACE}"([^"\\\x00-\x1f]*+)"{_SPACE}:{_SPACE}')
_COLON: Final = re.compile(rf"{_SPACE}:{_SPACE}")
_NEXT: Final = re.compile(rf"{_SPACE}([,}}]){_SPACE}")


def members(data: bytes, *, max_bytes: int, max_depth: int = JSON_MAX_DEPTH) -> tuple[str, dict[str, Member]]:
    """Parse an object as `loads` does and say where each value stands, so that a part can be passed on as it came.

    Raises InputError `json.invalid` or `json.too_large`; something else than an object is `json.invalid`.
    """
    text = _checked_text(data, max_bytes, max_depth)
    opened = _OPEN.match(text)
    if opened is None:
        _refuse("the document is not a JSON object")
    found: dict[str, Member] = {}
    at = opened.end()
    plain = _NAME.match(text, at)
    try:
        more = plain is not None or text[at : at + 1] != "}"
        if not more:
            at = _behind(text, at)
        while more:
            name, at = _name(text, at) if plain is None else (plain[1], plain.end())
            if name in found:
                _refuse(f'the key "{display_safe(name, max_chars=64)}" appears twice in one object')
            value, end = _scan(text, at)
            found[name] = _member((value, at, end))
            plain = _NEXT_NAME.match(text, end)
            if plain is None:
                after = _NEXT.match(text, end)
                if after is None:
                    _refuse(f"{_NOT_JSON}: something else at character {end}")
                at, more = after.end(), after[1] == ","
        _refuse_lone_surrogates(text, found)
    except StopIteration as stopped:
        _refuse(f"{_NOT_JSON}: a value is missing at character {stopped.value}")
    except json.JSONDecodeError as error:
        _refuse(f"{_NOT_JSON}: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse(f"the document is nested deeper than {max_depth}")
    if at != len(text):
        _refuse(f"{_NOT_JSON}: something else at character {at}")
    return text, found


def _behind(text: str, at: int) -> int:
    """Where the space behind a closing brace ends."""
    closed = _NEXT.match(text, at)
    return at if closed is None else closed.end()


def _name(text: str, at: int) -> tuple[str, int]:
    """A member's name that is written with escapes, and where its value begins."""
    if text[at : at + 1] != '"':
        _refuse(f"{_NOT_JSON}: a name is missing at character {at}")
    name, end = _DECODER.raw_decode(text, at)
    colon = _COLON.match(text, end)
    if colon is None:
        _refuse(f"{_NOT_JSON}: a colon is missing at character {end}")
    return name, colon.end()


def dump_pretty(value: Any) -> str:
    """Sorted keys, two spaces, a final newline: for people and for version control."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
