"""The arguments that a llama.cpp engine may be started with: flag by flag, checked by the launcher whatever the runtime says.

The table is the whole command line that `sbctl.engines.llama_cpp` writes; what users may add themselves is checked by `sbctl.engines.flags`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.engines.flags import check_extra_args

__all__ = ["Bound", "refused_argument"]


@dataclass(frozen=True, slots=True)
class Bound:
    """What the values that name something must be: the model's alias, where it listens, below which directories weights are."""

    alias: str
    unix_path: Path | None
    port: int | None
    weights: tuple[Path, ...]


_Check = Callable[[str, Bound], bool]


def _whole(low: int, high: int) -> _Check:
    return lambda value, _bound: value.isascii() and value.isdigit() and len(value) <= 10 and low <= int(value) <= high


def _one_of(*names: str) -> _Check:
    return lambda value, _bound: value in names


def _extra(flag: str) -> _Check:
    return lambda value, _bound: not check_extra_args("llama_cpp", [flag, value])


def _model(value: str, bound: Bound) -> bool:
    plain = os.path.normpath(value) == value and value.endswith(".gguf")
    return plain and any(root in Path(value).parents for root in bound.weights)


def _host(value: str, bound: Bound) -> bool:
    return value == ("127.0.0.1" if bound.unix_path is None else str(bound.unix_path))


_FLAGS: Final[Mapping[str, _Check | None]] = {
    "--model": _model,
    "--alias": lambda value, bound: value == bound.alias,
    "--host": _host,
    "--port": lambda value, bound: value == str(bound.port),
    "--ctx-size": _whole(1, 2**31 - 1),
    "--parallel": _whole(1, 1_000_000),
    "--no-kv-unified": None,
    "--threads": _extra("--threads"),
    "--threads-batch": _whole(1, 1024),
    "--threads-http": _whole(1, 2_000_000),
    "--batch-size": _extra("--batch-size"),
    "--ubatch-size": _extra("--ubatch-size"),
    "--n-gpu-layers": _whole(0, 100_000),
    "--flash-attn": _one_of("on", "off", "auto"),
    "--seed": _extra("--seed"),
    "--load-mode": _one_of("auto", "none", "mmap", "mlock", "mmap+mlock"),
    "--fit": _one_of("off"),
    "--cache-ram": _whole(0, 2**31 - 1),
    "--no-context-shift": None,
    "--offline": None,
    "--no-ui": None,
    "--no-webui": None,
    "--no-mmap": None,
    "--mlock": None,
    "--warmup": None,
    "--metrics": None,
    "--slots": None,
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
