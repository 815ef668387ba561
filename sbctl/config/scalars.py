"""What a plain YAML scalar means: the YAML 1.2 core schema, without the forms in which two readers disagree.

Refused with a sentence instead of guessed: numbers with `_`, leading zeros, a leading `+`, `0x`, `0o`, `-0`, beyond 2^53-1 or beyond a
double, `.inf`, `.nan`, and dates. Quoting makes text of any of them. `yes`, `no`, `on` and `off` are text,
and so are 40 or 64 hex digits: a commit or a digest that happens to look like a number.
"""

from __future__ import annotations

import re
from typing import Final

from sbctl.base.limits import JSON_INT_MAX

__all__ = ["Scalar", "ScalarRefusedError", "typed_scalar"]

Scalar = str | int | float | bool | None

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT_RE: Final = re.compile("-?(?:0|[1-9][0-9]*)")
_FLOAT_RE: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_ODD_NUMBER_RE: Final = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)"
)
_NOT_FINITE_RE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DATE_RE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9:.Zz +-]*)?")

_DIGEST_RE: Final = re.compile("[0-9a-f]+")
_DIGEST_LENGTHS: Final = (40, 64)
"""A commit or a SHA-256 stays text also when it happens to have no letter, or a single e."""


class ScalarRefusedError(ValueError):
    """The scalar has no one meaning. `code` is `number_refused` or `date_refused`; `sentence` never repeats the scalar."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def _number(sentence: str) -> ScalarRefusedError:
    return ScalarRefusedError("number_refused", sentence)


def typed_scalar(text: str) -> Scalar:
    """The value of a plain scalar. Raises ScalarRefusedError."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    first = text[0]
    if not (first.isdigit() or first in "-+."):
        return text
    if len(text) in _DIGEST_LENGTHS and _DIGEST_RE.fullmatch(text):
        return text
    if _INT_RE.fullmatch(text):
        return _integer(text)
    if _FLOAT_RE.fullmatch(text):
        return _real(text)
    if _NOT_FINITE_RE.fullmatch(text):
        raise _number("infinity and NaN are not numbers here")
    if _DATE_RE.fullmatch(text):
        raise ScalarRefusedError(
            "date_refused", "a date without quotes is read differently by different tools; put it in quotes"
        )
    if _ODD_NUMBER_RE.fullmatch(text):
        raise _number(
            "this number is read differently by different tools; write plain decimal digits, or put it in quotes"
        )
    return text


def _integer(text: str) -> int:
    if text == "-0":
        raise _number("minus zero is read differently by different tools; write 0")
    if len(text) > 17 or abs(int(text)) > JSON_INT_MAX:
        raise _number("this whole number is beyond 2^53-1")
    return int(text)


def _real(text: str) -> float:
    if len(text) > 64:
        raise _number("this number has more digits than a double can hold")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _number("this number is beyond the range of a double")
    return value
