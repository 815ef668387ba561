"""The nouns of engines: where one is found, what starts it, where it listens, how it is asked whether it is well, how it is ended.

Pure data. Nothing here starts a process; the runtime's EngineHost does, from a LaunchSpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sbctl.base.limits import ENGINE_READY_DEADLINE_S, ENGINE_STOP_GRACE_S

__all__ = [
    "DRIVEN",
    "EVERY_DEVICE",
    "LAUNCHER_NAME",
    "LIBRARIES_NAME",
    "PROGRAM_PATH",
    "UNIX_PATH_MAX_BYTES",
    "Acceleration",
    "Adapter",
    "Availability",
    "Canary",
    "EngineAddress",
    "EngineBuild",
    "EngineKind",
    "LaunchRequest",
    "LaunchSpec",
    "ProbePlan",
    "StopPlan",
    "engine_environment",
]

EngineKind = Literal["llama_cpp", "vllm", "sglang", "mistralrs"]
DRIVEN: Final[tuple[EngineKind, ...]] = ("llama_cpp",)
"""Those that this version can put on a host and start."""
Acceleration = Literal["cpu", "cuda", "vulkan", "metal"]
"""What a build computes on."""

UNIX_PATH_MAX_BYTES: Final = 107
"""`sun_path` of Linux without its final NUL."""

LAUNCHER_NAME: Final = "llama_wheel_launcher.py"
"""In an engine's own environment: the script that starts it."""
LIBRARIES_NAME: Final = "shared"
"""In an engine's own environment: libraries that the host lacks; the loader looks there first."""

EVERY_DEVICE: Final = "all"
"""An engine that was not given devices of its own may use each."""
PROGRAM_PATH: Final = "bin/llama-server"
"""Inside a release or source build of ours."""


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

    `argv_prefix` starts it and takes the engine's flags behind it. `known_flags` are the long flags its help names; None means that the
    table of its version holds. `ours` is False for a program found on PATH or named by the user. `libraries` is a directory of shared
    libraries that came with the engine because the host lacks them. `notes` say what is not as it was tried.
    """

    engine: EngineKind
    launch: Literal["wheel", "binary", "uv", "container"]
    version: str
    argv_prefix: tuple[str, ...]
    path: Path
    known_flags: frozenset[str] | None = None
    ours: bool = True
    libraries: Path | None = None
    acceleration: Acceleration = "cpu"
    has_unix_sockets: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter's file, and how strongly it is applied."""

    path: Path
    scale: float


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a deployment asks of one engine process, whichever engine it is.

    `weights` is a file (llama.cpp) or a snapshot's directory. `context_length` is for each of `slots` requests. `devices` are ids as the
    device's driver tells them; none for the CPU.
    """

    weights: Path
    address: EngineAddress
    alias: str
    context_length: int
    slots: int
    physical_cores: int
    environ: Mapping[str, str]
    threads: int | None = None
    extra_args: tuple[str, ...] = ()
    mode: Literal["chat", "embedding", "rerank"] = "chat"
    kv_quant: Literal["auto", "f16", "fp8", "int8", "int4"] = "auto"
    adapters: tuple[Adapter, ...] = ()
    devices: tuple[str, ...] = ()
    prompt_cache_mib: int = 0


@dataclass(frozen=True, slots=True)
class Canary:
    """A request of one token (or one vector): an engine that answers it works, whatever its health route says."""

    path: str
    body: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """How an engine is asked whether it is ready and well.

    `path` answers 200 once the model is loaded. `timeout_s` is for one answer: SGLang's health route works before it answers. `facts_path`
    tells what the engine made of its flags, `slots_path` what each slot does, `metrics_path` has `counters`, which grow while it works.
    """

    path: str
    canary: Canary
    timeout_s: float = 2.0
    facts_path: str | None = None
    slots_path: str | None = None
    metrics_path: str | None = None
    counters: tuple[str, ...] = ()
    fatal_output: tuple[str, ...] = ()
    """What an engine prints when it goes on answering but will never work again."""


@dataclass(frozen=True, slots=True)
class StopPlan:
    """How an engine is ended once it was drained: SIGTERM, `grace_s`, SIGKILL. An engine that loads may not have its handler yet."""

    grace_s: float = ENGINE_STOP_GRACE_S
    loading_grace_s: float = 1.0


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All that starting one engine process takes. `env` is its whole environment; nothing is inherited."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    address: EngineAddress
    probe: ProbePlan
    stop: StopPlan = StopPlan()
    ready_deadline_s: float = ENGINE_READY_DEADLINE_S
    """Without any progress: an engine that goes on loading is not given up."""
    slots: int = 1
    """Requests that run at once; compared with what the engine reports."""
    context_length: int = 0
    """Tokens each slot must have; compared with what the engine reports."""
    devices: tuple[str, ...] = ()
    """Whose memory it takes: starts and stops on one device take turns. None: the host's."""
    memory_max_bytes: int | None = None
    """Of the host's memory: beyond it the kernel ends the engine, and nothing else. None: no ceiling of its own."""


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
