"""Checks of single values that a caller sends: type, range, size. Each says yes or no; `fields` says which field has which."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

__all__ = [
    "NAME_MAX_CHARS",
    "TOKENS_MAX",
    "Check",
    "a_flag",
    "a_logit_bias",
    "a_number",
    "a_response_format",
    "a_stop",
    "a_text",
    "a_tool_choice",
    "a_whole_number",
    "is_small",
    "items",
    "one_of",
    "only_flags",
    "only_of",
    "tools",
]

Check = Callable[[Any], bool]

NAME_MAX_CHARS: Final = 256
TOKENS_MAX: Final = 2**31 - 1
_TOOLS_MAX: Final = 128
_SCHEMA_MAX_BYTES: Final = 64 * 1024
_SCHEMA_MAX_DEPTH: Final = 16


def a_whole_number(low: int, high: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def a_number(low: float, high: float) -> Check:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and low <= value <= high
    )


def a_flag(value: Any) -> bool:
    return isinstance(value, bool)


def one_of(*names: str) -> Check:
    return lambda value: isinstance(value, str) and value in names


def a_text(max_chars: int, *, min_chars: int = 0) -> Check:
    return lambda value: isinstance(value, str) and min_chars <= len(value) <= max_chars


def items(most: int, check: Check) -> Check:
    """A list of 1 to `most` values that each pass."""
    return lambda value: isinstance(value, list) and 0 < len(value) <= most and all(map(check, value))


def only_of(*checks: Check) -> Check:
    """A value that passes one of them."""
    return lambda value: any(check(value) for check in checks)


def only_flags(*names: str) -> Check:
    """An object with these members at most, each true or false."""
    return lambda value: isinstance(value, dict) and set(value) <= {*names} and all(map(a_flag, value.values()))


def a_stop(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return len(texts) <= 16 and all(isinstance(text, str) and 0 < len(text) <= 256 for text in texts)


def a_logit_bias(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= 1024
        and all(key.isascii() and key.isdigit() and a_number(-100, 100)(bias) for key, bias in value.items())
    )


def is_small(value: Any) -> bool:
    """A JSON Schema that a grammar is made of: bounded, since its size multiplies in the engine."""

    def depth(part: Any) -> int:
        if isinstance(part, dict):
            return 1 + max((depth(entry) for entry in part.values()), default=0)
        if isinstance(part, list):
            return 1 + max((depth(entry) for entry in part), default=0)
        return 0

    return depth(value) <= _SCHEMA_MAX_DEPTH and len(json.dumps(value)) <= _SCHEMA_MAX_BYTES


def a_response_format(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("type") not in ("text", "json_object", "json_schema"):
        return False
    return set(value) <= {"type", "json_schema", "schema", "name", "strict", "description"} and is_small(value)


def tools(*, nested: bool) -> Check:
    """Functions only. `nested`: what describes one stands in `function` (chat), else beside its type (responses)."""

    def check(tool: Any) -> bool:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            return False
        described = isinstance(tool.get("function"), dict) if nested else isinstance(tool.get("name"), str)
        return described and is_small(tool)

    return lambda value: isinstance(value, list) and len(value) <= _TOOLS_MAX and all(map(check, value))


def a_tool_choice(value: Any) -> bool:
    return one_of("none", "auto", "required")(value) or (isinstance(value, dict) and is_small(value))
