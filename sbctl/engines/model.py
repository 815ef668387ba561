"""The nouns of engines: where one is found, what starts it, where it listens.

Pure data. Nothing here starts a process; the runtime's EngineHost does, from a LaunchSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sbctl.base.limits import ENGINE_READY_DEADLINE_S

__all__ = [
    "LAUNCHER_NAME",
    "LIBRARIES_NAME",
    "UNIX_PATH_MAX_BYTES",
    "Availability",
    "EngineAddress",
    "EngineBuild",
    "LaunchSpec",
    "engine_environment",
]

UNIX_PATH_MAX_BYTES: Final = 107
"""`sun_path` of Linux without its final NUL."""

LAUNCHER_NAME: Final = "llama_wheel_launcher.py"
"""In an engine's own environment: the script that starts it."""
LIBRARIES_NAME: Final = "shared"
"""In an engine's own environment: libraries that the host lacks; the loader looks there first."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens: a UNIX socket or a port on 127.0.0.1, exactly one of the two."""

    unix_path: Path | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if (self.unix_path is None) == (self.port is None):
            raise ValueError("an engine listens on a UNIX socket or on a loopback port")
        if self.unix_path is not None and len(str(self.unix_path).encode()) > UNIX_PATH_MAX_BYTES:
            raise ValueError(f"the socket path has more than {UNIX_PATH_MAX_BYTES} bytes: {self.unix_path}")

    def __str__(self) -> str:
        return f"unix:{self.unix_path}" if self.unix_path is not None else f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """One installed engine program.

    `argv_prefix` starts it and takes the engine's flags behind it. `known_flags` are the long flags its help names; None means the
    newest table holds. `ours` is False for a program found on PATH or named by the user. `libraries` is a directory of shared libraries that
    came with the engine because the host lacks them.
    """

    engine: Literal["llama_cpp"]
    launch: Literal["wheel", "binary"]
    version: str
    argv_prefix: tuple[str, ...]
    path: Path
    known_flags: frozenset[str] | None = None
    ours: bool = True
    libraries: Path | None = None


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All that starting one engine process takes. `env` is its whole environment; nothing is inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    address: EngineAddress
    probe_path: str
    """Answers 200 once the model is loaded, 503 while it loads."""
    ready_deadline_s: float = ENGINE_READY_DEADLINE_S
    slots: int = 1
    """Requests that run at once."""
    context_length: int = 0
    """Tokens each slot must have; compared with what the engine reports."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a host can run an engine: `available` now, `acquirable` by apply, `incompatible` never here, `blocked` until `remedy` is done."""

    state: Literal["available", "acquirable", "incompatible", "blocked"]
    reason: str = ""
    remedy: str = ""
    build: EngineBuild | None = field(default=None)


_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED: Final = ("HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


def engine_environment(environ: Mapping[str, str], *, library_path: bool = False) -> dict[str, str]:
    """An engine's environment, built from empty: a fixed PATH and what SBproxy lets through. No `LD_PRELOAD`, `LLAMA_ARG_*`, `CUDA_INJECTION*`.

    `library_path` also passes LD_LIBRARY_PATH, which a program of the user's may need to find its own libraries.
    """
    passed = (*_PASSED, "LD_LIBRARY_PATH") if library_path else _PASSED
    return {"PATH": _DEFAULT_PATH, **{name: environ[name] for name in passed if environ.get(name)}}
