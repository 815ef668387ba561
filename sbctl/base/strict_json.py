"""The one JSON reader: no duplicate keys, no NaN, no integers beyond 2^53-1, bounded size and depth."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from sbctl.base.errors import InputError
from sbctl.base.limits import JSON_INT_MAX, JSON_MAX_DEPTH

__all__ = ["dump_pretty", "loads"]


def _refuse(what: str) -> NoReturn:
    raise InputError("json.invalid", what)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f'the key "{key[:64]}" appears twice in one object')
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


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in (0x5B, 0x7B):
            depth += 1
            if depth > max_depth:
                _refuse(f"the document is nested deeper than {max_depth}")
        elif byte in (0x5D, 0x7D):
            depth -= 1


def loads(data: bytes, *, max_bytes: int, max_depth: int = JSON_MAX_DEPTH) -> Any:
    """Parse UTF-8 JSON. Raises InputError `json.invalid` or `json.too_large`, never a decoder's exception."""
    if len(data) > max_bytes:
        raise InputError("json.too_large", f"the document has {len(data)} bytes; at most {max_bytes} are read")
    if data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(data, max_depth)
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_constant, parse_int=_integer, parse_float=_real
        )
        text.encode("utf-8")
    except UnicodeDecodeError:
        _refuse("the document is not UTF-8")
    except json.JSONDecodeError as error:
        _refuse(f"the document is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse(f"the document is nested deeper than {max_depth}")
    return value


def dump_pretty(value: Any) -> str:
    """Sorted keys, two spaces, a final newline: for people and for version control."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
