"""Judge the programs that a host has: is the one that a deployment will start there, and is it the build that sb.yml names? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from providers.comparison import Blocked

__all__ = ["FoundProgram", "find_program", "same_build"]

_BUILD_RE = re.compile(r"b?([0-9]+(?:\.[0-9]+)*)")


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """`found` is `path (version)`, None when nothing was reported; `blocked` says why it cannot serve."""

    found: str | None
    blocked: Blocked | None = None


def same_build(wanted: str, reported: str) -> bool:
    """llama.cpp's tag `b9905` and its program's own `9905` (or `9905 (3fa1c2)`) are one build."""
    left, right = _BUILD_RE.match(wanted), _BUILD_RE.match(reported)
    if left is None or right is None:
        return wanted == reported
    return left[1] == right[1]


def find_program(programs: Mapping[str, str], path: str | None, versions: Sequence[str]) -> FoundProgram:
    """`programs`: path → version, first on PATH first. A named path that the host does not report is left to the runtime, which looks
    at it before it takes the bundle."""
    if path is not None and path not in programs:
        return FoundProgram(None)
    if path is None and not programs:
        hint = "install llama-server on the host, name its path, or set engines.llama_cpp.launch: wheel"
        return FoundProgram(None, Blocked("engine.missing", "the host has no llama-server on its PATH", hint))
    chosen = path if path is not None else next(iter(programs))
    version = programs[chosen]
    found = f"{chosen} ({version})"
    unlike = [wanted for wanted in versions if not same_build(wanted, version)]
    if unlike:
        message = f"sb.yml names llama.cpp {', '.join(unlike)}, and {chosen} is {version}"
        hint = "install that build, name the version that is there, or set engines.llama_cpp.launch: wheel"
        return FoundProgram(found, Blocked("engine.other_version", message, hint))
    return FoundProgram(found)
