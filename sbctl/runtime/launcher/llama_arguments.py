"""The arguments that a llama.cpp engine may be started with: flag by flag, checked by the launcher whatever the runtime says.

The table is that of `sbctl.engines.flag_tables`, with what names something bound to what root knows of this engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.engines.flag_tables import FLAG_VALUES

__all__ = ["Bound", "refused_argument"]


@dataclass(frozen=True, slots=True)
class Bound:
    """What the values that name something must be: the model's alias, where it listens, below which directories weights are."""

    alias: str
    unix_path: Path | None
    port: int | None
    weights: tuple[Path, ...]


_Check = Callable[[str, Bound], bool]
_SCALE: Final = re.compile(r"-?[0-9]{1,3}(\.[0-9]{1,6})?")
_SPLIT: Final = re.compile(r"1(,1){1,63}")


def _value(flag: str) -> _Check | None:
    value = FLAG_VALUES[flag]
    return None if value is None else lambda text, _bound: value.admits(text)


def _model(value: str, bound: Bound) -> bool:
    plain = os.path.normpath(value) == value and value.endswith(".gguf")
    return plain and any(root in Path(value).parents for root in bound.weights)


def _host(value: str, bound: Bound) -> bool:
    return value == ("127.0.0.1" if bound.unix_path is None else str(bound.unix_path))


def _adapters(value: str, bound: Bound) -> bool:
    """`/path:scale,…`, every file below a directory of weights."""
    for entry in value.split(","):
        path, colon, scale = entry.rpartition(":")
        if not colon or _SCALE.fullmatch(scale) is None or not _model(path, bound):
            return False
    return True


_FLAGS: Final[Mapping[str, _Check | None]] = {
    **{flag: _value(flag) for flag in FLAG_VALUES},
    "--model": _model,
    "--alias": lambda value, bound: value == bound.alias,
    "--host": _host,
    "--port": lambda value, bound: value == str(bound.port),
    "--lora-scaled": _adapters,
    "--tensor-split": lambda value, _bound: _SPLIT.fullmatch(value) is not None,
}
_NEEDED: Final = ("--model", "--host", "--ctx-size", "--parallel", "--threads")


def refused_argument(arguments: Sequence[str], bound: Bound) -> str | None:
    """Why these arguments are refused, in one sentence; None when the engine may be started with them."""
    given: set[str] = set()
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if flag not in _FLAGS:
            return f"{flag[:64]!r} is no argument that an engine may have"
        if flag in given:
            return f"{flag} is given twice"
        given.add(flag)
        check = _FLAGS[flag]
        if check is None:
            continue
        value = rest.pop(0) if rest else ""
        if not check(value, bound):
            return f"{flag} may not be {value[:128]!r} here"
    needed = (*_NEEDED, *(("--port",) if bound.port is not None else ()))
    lacking = [flag for flag in needed if flag not in given]
    return f"{', '.join(lacking)} must be given" if lacking else None
