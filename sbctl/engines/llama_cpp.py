"""llama.cpp: the whole command line of one server process, pure.

Everything that has a surprising default is written out: the slot count and the context (which llama-server splits between slots), fit
(which shrinks both behind the planner), the prompt cache (8 GiB of memory), threads (two on two busy cores collapse), UI and network.
Two flavours take the same flags: `llama-server`, and the pinned wheel behind `llama_wheel_launcher`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import EngineError
from sbctl.engines.flags import ExtraFlag, parse_extra_args
from sbctl.engines.model import EngineAddress, EngineBuild, LaunchSpec, engine_environment

__all__ = ["PROBE_PATH", "default_threads", "launch_spec", "weight_file"]

PROBE_PATH: Final = "/health"

_BATCH_TOKENS: Final = 2048
_UBATCH_TOKENS: Final = 512
_HTTP_THREADS_BESIDE_SLOTS: Final = 4
"""For probes, metrics and slot queries while every slot streams."""

_REQUIRED: Final = ("--model", "--host", "--port", "--ctx-size", "--parallel", "--threads")
_SHARD_RE: Final = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf")


def default_threads(physical_cores: int) -> int:
    """One core stays free for the runtime and the system; never less than one thread."""
    return max(1, physical_cores - 1)


def weight_file(facts: ArtifactFacts) -> str:
    """The path inside the snapshot that `--model` gets: the one GGUF file, or the first of a complete set of shards.

    Raises EngineError `engine.artifact_unusable` when there is none, or several that do not belong together.
    """
    names = sorted(file.path for file in facts.files if file.path.endswith(".gguf"))
    if facts.format == "gguf" and len(names) == 1 and _SHARD_RE.search(names[0]) is None:
        return names[0]
    shards = [match for name in names if (match := _SHARD_RE.search(name))]
    if facts.format == "gguf" and shards and len(shards) == len(names):
        stems = {match.string[: match.start()] for match in shards}
        numbers = [int(match[1]) for match in shards]
        if len(stems) == 1 and numbers == list(range(1, int(shards[0][2]) + 1)):
            return names[0]
    raise EngineError(
        "engine.artifact_unusable",
        f"llama.cpp needs one GGUF file or one complete set of shards; {facts.model}:{facts.variant} has {len(names)}",
        next_step="choose a GGUF variant of this model",
    )


def launch_spec(
    build: EngineBuild,
    *,
    model_path: Path,
    address: EngineAddress,
    alias: str,
    context_length: int,
    slots: int,
    physical_cores: int,
    environ: Mapping[str, str],
    threads: int | None = None,
    extra_args: Sequence[str] = (),
    gpu_layers: int = 0,
    prompt_cache_mib: int = 0,
) -> LaunchSpec:
    """How to start one llama.cpp server that gives each of `slots` requests its own `context_length` tokens.

    An extra argument wins over a default of ours and over `threads`. Raises EngineError `engine.unsafe_argument` for one that is not on
    the list, `engine.incompatible` when the program lacks a flag that cannot be left out; ValueError for a socket that llama.cpp would
    take for a host name.
    """
    if address.unix_path is not None and address.unix_path.suffix != ".sock":
        raise ValueError(f"llama.cpp takes a path for a socket only when it ends in .sock: {address.unix_path}")
    extra = {flag.flag: flag for flag in parse_extra_args("llama_cpp", extra_args)}
    thread_count = _value(extra, "--threads", threads if threads is not None else default_threads(physical_cores))
    host = str(address.unix_path) if address.unix_path is not None else "127.0.0.1"
    listed: list[tuple[str, str | None]] = [
        ("--model", str(model_path)),
        ("--alias", alias),
        ("--host", host),
        *((("--port", str(address.port)),) if address.port is not None else ()),
        ("--ctx-size", str(context_length * slots)),
        ("--parallel", str(slots)),
        ("--no-kv-unified", None),
        ("--threads", thread_count),
        ("--threads-batch", thread_count),
        ("--threads-http", str(slots + _HTTP_THREADS_BESIDE_SLOTS)),
        ("--batch-size", _value(extra, "--batch-size", _BATCH_TOKENS)),
        ("--ubatch-size", _value(extra, "--ubatch-size", _UBATCH_TOKENS)),
        ("--n-gpu-layers", str(gpu_layers)),
        ("--flash-attn", "on" if "--flash-attn" in extra else "auto"),
        *((("--seed", extra["--seed"].value),) if "--seed" in extra else ()),
        ("--load-mode", _load_mode(extra)),
        ("--fit", "off"),
        ("--cache-ram", str(prompt_cache_mib)),
        ("--no-context-shift", None),
        ("--offline", None),
        ("--no-ui", None),
        ("--warmup", None),
        ("--metrics", None),
        ("--slots", None),
    ]
    return LaunchSpec(
        argv=(*build.argv_prefix, *_render(listed, build.known_flags, build)),
        env=_environment(build, environ),
        address=address,
        probe_path=PROBE_PATH,
        slots=slots,
        context_length=context_length,
    )


def _environment(build: EngineBuild, environ: Mapping[str, str]) -> dict[str, str]:
    env = engine_environment(environ, library_path=build.launch == "binary")
    return env if build.libraries is None else {**env, "LD_LIBRARY_PATH": str(build.libraries)}


def _value(extra: Mapping[str, ExtraFlag], flag: str, otherwise: int) -> str:
    given = extra.get(flag)
    return str(otherwise) if given is None or given.value is None else str(int(given.value))


def _load_mode(extra: Mapping[str, ExtraFlag]) -> str:
    match "--no-mmap" in extra, "--mlock" in extra:
        case True, True:
            return "mlock"
        case True, False:
            return "none"
        case False, True:
            return "mmap+mlock"
        case _:
            return "auto"


_OLDER_LOAD_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto": (),
    "none": ("--no-mmap",),
    "mmap+mlock": ("--mlock",),
    "mlock": ("--no-mmap", "--mlock"),
}
"""What llama-server understood before `--load-mode`."""


def _render(listed: Sequence[tuple[str, str | None]], known: frozenset[str] | None, build: EngineBuild) -> list[str]:
    if known is not None and (lacking := [flag for flag in _REQUIRED if flag not in known]):
        raise EngineError(
            "engine.incompatible",
            f"{build.path} does not know {', '.join(lacking)}; it is no llama-server that sbctl can drive",
            place=str(build.path),
            next_step="install a current llama-server, or use launch: wheel",
        )
    argv: list[str] = []
    for flag, value in listed:
        if known is None or flag in known:
            argv += [flag] if value is None else [flag, value]
        elif flag == "--load-mode" and value is not None:
            argv += [older for older in _OLDER_LOAD_FLAGS[value] if older in known]
        elif flag == "--no-ui" and "--no-webui" in known:
            argv.append("--no-webui")
    return argv
