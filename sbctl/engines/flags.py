"""Which extra arguments a deployment may hand to its engine: an allowlist per engine, checked at validate and again at launch.

Rules (SBproxy, model host, "extra_args"): only long flags of the table; `--flag=value` and `--flag value` both count; `_` reads as `-`;
prefixes are refused, since argparse-like parsers complete them (`--li` would be `--lora-init…`); a value never starts with `-`;
a flag appears once. Whatever the runtime owns (addresses, model, keys, memory) is not in the table and so is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError
from sbctl.engines.flag_tables import REFUSED_FLAGS

__all__ = ["ALLOWED_FLAGS", "ExtraFlag", "check_extra_args", "parse_extra_args"]

_Check = Callable[[str], str | None]
"""A value in, a phrase that says what was expected out; None when it fits."""

_MAX_ARGS: Final = 64
_MAX_CHARS: Final = 128


@dataclass(frozen=True, slots=True)
class ExtraFlag:
    """One accepted argument: the flag as the table writes it, its value, None for a switch."""

    flag: str
    value: str | None


def _whole(low: int, high: int) -> _Check:
    def check(value: str) -> str | None:
        digits = value.isascii() and value.isdigit() and len(value) <= 20
        return None if digits and low <= int(value) <= high else f"a whole number from {low} to {high}"

    return check


def _one_of(*names: str) -> _Check:
    return lambda value: None if value in names else "one of " + ", ".join(names)


def _not_negative(value: str) -> str | None:
    expected = "a number, 0 or more"
    if not value.isascii() or not value.replace(".", "", 1).isdigit():
        return expected
    return None if math.isfinite(float(value)) else expected


_U32: Final = _whole(0, 2**32 - 1)
_U64: Final = _whole(0, 2**64 - 1)

ALLOWED_FLAGS: Final[Mapping[str, Mapping[str, _Check | None]]] = {
    "llama_cpp": {
        "--flash-attn": None,
        "--no-mmap": None,
        "--mlock": None,
        "--threads": _whole(1, 1024),
        "--batch-size": _whole(1, 1_048_576),
        "--ubatch-size": _whole(1, 1_048_576),
        "--seed": _U32,
        "--pooling": _one_of("mean", "cls", "last"),
    },
    "vllm": {
        "--enable-prefix-caching": None,
        "--disable-log-requests": None,
        "--enforce-eager": None,
        "--seed": _U64,
        "--dtype": _one_of("auto", "half", "float16", "bfloat16", "float32"),
    },
    "sglang": {
        "--enable-torch-compile": None,
        "--disable-radix-cache": None,
        "--schedule-conservativeness": _not_negative,
    },
    "mistralrs": {"--no-kv-cache": None, "--prefix-cache-n": _U64},
}
"""Engine → flag → check of its value; None marks a switch, which takes no value."""


def _quoted(text: str) -> str:
    return f'"{display_safe(text, max_chars=_MAX_CHARS)}"'


def _split(argument: str) -> tuple[str, str | None]:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-"), value if equals else None


def _unknown(engine: str, argument: str, name: str, table: Mapping[str, _Check | None]) -> str:
    allowed = ", ".join(sorted(table))
    longer = sorted(flag for flag in table if name.startswith("--") and len(name) > 2 and flag.startswith(name))
    if longer:
        return f"{_quoted(argument)} is only a beginning of {longer[0]}; flags are written in full"
    if engine == "llama_cpp" and (reason := REFUSED_FLAGS.get(name)) is not None:
        return f"{_quoted(argument)} may not be passed to {engine}: {reason}"
    return f"{_quoted(argument)} may not be passed to {engine}; allowed are {allowed}"


def _read(engine: str, args: Sequence[str]) -> tuple[list[ExtraFlag], list[str]]:
    table = ALLOWED_FLAGS.get(engine)
    if table is None:
        return [], [f"{_quoted(engine)} takes no extra arguments; known engines are {', '.join(sorted(ALLOWED_FLAGS))}"]
    if len(args) > _MAX_ARGS:
        return [], [f"there are {len(args)} extra arguments; at most {_MAX_ARGS} are read"]
    accepted: list[ExtraFlag] = []
    sentences: list[str] = []
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        name, value = _split(argument)
        if name not in table:
            sentences.append(_unknown(engine, argument, name, table))
            if rest and name.startswith("-") and value is None and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        check = table[name]
        if check is not None and value is None and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if (problem := _problem(name, value, check, accepted)) is not None:
            sentences.append(problem)
        else:
            accepted.append(ExtraFlag(name, value))
    return accepted, sentences


def _problem(name: str, value: str | None, check: _Check | None, accepted: Sequence[ExtraFlag]) -> str | None:
    if any(flag.flag == name for flag in accepted):
        return f"{name} is given twice"
    if check is None:
        return None if value is None else f"{name} is a switch and takes no value"
    if value is None or value == "":
        return f"{name} needs a value"
    expected = "a value that does not start with -" if value.startswith("-") else check(value)
    return None if expected is None else f"{name} needs {expected}, not {_quoted(value)}"


def check_extra_args(engine: str, args: Sequence[str]) -> list[str]:
    """One sentence for each argument that is refused; empty when all may be passed to `engine`. Never raises."""
    return _read(engine, args)[1]


def parse_extra_args(engine: str, args: Sequence[str]) -> tuple[ExtraFlag, ...]:
    """The arguments in table form, in their order. Raises EngineError `engine.unsafe_argument` for the first that is refused."""
    accepted, sentences = _read(engine, args)
    if sentences:
        raise EngineError(
            "engine.unsafe_argument",
            sentences[0],
            next_step="remove it from extra_args, or set the field that the runtime has for it",
            detail={"refused": sentences},
        )
    return tuple(accepted)
