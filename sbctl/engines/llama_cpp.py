"""llama.cpp: the driver. The whole command line of one server process, and how the server is asked whether it does what it was told.

Everything that has a surprising default is written out: the slot count and the context (which llama-server splits between slots), fit
(which shrinks both behind the planner), the prompt cache (8 GiB of memory), threads (two on two busy cores collapse), UI and network.
Two flavours take the same flags: `llama-server`, and the pinned wheel behind `llama_wheel_launcher`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import EngineError
from sbctl.engines.detect import find_engine
from sbctl.engines.driver import EngineSite, EngineWish
from sbctl.engines.fit import CONTEXT_CHECKPOINTS
from sbctl.engines.flag_tables import FLAG_VALUES, flag_table, kv_cache_type
from sbctl.engines.flags import ExtraFlag, parse_extra_args
from sbctl.engines.model import (
    EVERY_DEVICE,
    Adapter,
    Availability,
    Canary,
    EngineBuild,
    EngineKind,
    LaunchRequest,
    LaunchSpec,
    ProbePlan,
    StopPlan,
    engine_environment,
)
from sbctl.engines.pins import WheelPin, wheel_pin
from sbctl.engines.release_pins import ArchivePin, Machine, archive_pin

__all__ = ["LlamaCpp", "default_threads", "weight_file"]

_BATCH_TOKENS: Final = 2048
_UBATCH_TOKENS: Final = 512
_HTTP_THREADS_BESIDE_SLOTS: Final = 4
"""For probes, metrics and slot queries while every slot streams."""
_ALL_LAYERS: Final = 999

_REQUIRED: Final = ("--model", "--host", "--port", "--ctx-size", "--parallel", "--threads")
_SHARD_RE: Final = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf")
_COUNTERS: Final = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total", "llamacpp:n_decode_total")
_FATAL_OUTPUT: Final = ("CUDA error", "ggml_abort", "GGML_ASSERT(", "failed to allocate buffer of size")


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
        place=f"{facts.model}:{facts.variant}",
        next_step="choose a GGUF variant of this model",
    )


Option = tuple[str, str | None]


class LlamaCpp:
    """See `driver.EngineDriver`."""

    engine: ClassVar[EngineKind] = "llama_cpp"

    def detect(self, wish: EngineWish, site: EngineSite) -> Availability:
        return find_engine(wish, site)

    def provision(self, wish: EngineWish, machine: Machine) -> WheelPin | ArchivePin:
        if wish.launch == "wheel":
            return wheel_pin(wish.version or "", machine.arch, machine.libc)
        return archive_pin(wish.version, machine, wish.acceleration, sha256=wish.sha256)

    def launch(self, build: EngineBuild, request: LaunchRequest) -> LaunchSpec:
        """One server that gives each of `slots` requests its own `context_length` tokens. An extra argument wins over a default of ours
        and over `threads`. As `EngineDriver.launch`.
        """
        address = request.address
        if address.unix_path is not None and address.unix_path.suffix != ".sock":
            raise ValueError(f"llama.cpp takes a path for a socket only when it ends in .sock: {address.unix_path}")
        extra = {flag.flag: flag for flag in parse_extra_args("llama_cpp", request.extra_args)}
        listed = [
            *_served(request, extra),
            *_worked(request, extra),
            *_placed(build, request),
            *_kept(request, extra),
            ("--fit", "off"),
            ("--cache-ram", str(request.prompt_cache_mib)),
            ("--ctx-checkpoints", str(CONTEXT_CHECKPOINTS)),
            ("--no-context-shift", None),
            ("--offline", None),
            ("--no-ui", None),
            ("--warmup", None),
            ("--metrics", None),
            ("--slots", None),
        ]
        return LaunchSpec(
            argv=(*build.argv_prefix, *_render(listed, build)),
            env=_environment(build, request),
            address=address,
            probe=self.probe(request),
            stop=StopPlan(),
            slots=request.slots,
            context_length=request.context_length,
            devices=request.devices if build.acceleration == "cpu" else request.devices or (EVERY_DEVICE,),
        )

    def probe(self, request: LaunchRequest) -> ProbePlan:
        return ProbePlan(
            path="/health",
            canary=_canary(request),
            facts_path="/props",
            slots_path="/slots",
            metrics_path="/metrics",
            counters=_COUNTERS,
            fatal_output=_FATAL_OUTPUT,
        )

    def mismatch(self, spec: LaunchSpec, facts: Mapping[str, Any], slots: object) -> str | None:
        settings = facts.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        if isinstance(context, int) and context < spec.context_length:
            return f"it gives a request {context} tokens of context, {spec.context_length} were asked for"
        total = facts.get("total_slots")
        if isinstance(total, int) and total != spec.slots:
            return f"it works on {total} requests at once, {spec.slots} were asked for"
        model, wanted = facts.get("model_path"), spec.argv[spec.argv.index("--model") + 1]
        if isinstance(model, str) and model not in ("", wanted):
            return f"it serves {model[:200]}, and {wanted} was asked for"
        return _slots_mismatch(spec, slots)


def _slots_mismatch(spec: LaunchSpec, slots: object) -> str | None:
    if not isinstance(slots, list):
        return None
    if len(slots) != spec.slots:
        return f"it has {len(slots)} slots, {spec.slots} were asked for"
    contexts = [slot["n_ctx"] for slot in slots if isinstance(slot, dict) and isinstance(slot.get("n_ctx"), int)]
    if any(context < spec.context_length for context in contexts):
        return f"a slot has {min(contexts)} tokens of context, {spec.context_length} were asked for"
    return None


def _canary(request: LaunchRequest) -> Canary:
    match request.mode:
        case "embedding":
            return Canary("/v1/embeddings", {"model": request.alias, "input": "Hi"})
        case "rerank":
            return Canary("/v1/rerank", {"model": request.alias, "query": "Hi", "documents": ["Hi"]})
        case _:
            return Canary("/v1/completions", {"model": request.alias, "prompt": "Hi", "max_tokens": 1, "stream": False})


def _served(request: LaunchRequest, extra: Mapping[str, ExtraFlag]) -> list[Option]:
    address = request.address
    modes = {"chat": (), "embedding": (("--embeddings", None),), "rerank": (("--rerank", None),)}
    return [
        ("--model", str(request.weights)),
        ("--alias", request.alias),
        ("--host", str(address.unix_path) if address.unix_path is not None else "127.0.0.1"),
        *((("--port", str(address.port)),) if address.port is not None else ()),
        *modes[request.mode],
        *((("--pooling", extra["--pooling"].value),) if "--pooling" in extra else ()),
        *((("--lora-scaled", _adapters(request.adapters)),) if request.adapters else ()),
    ]


def _adapters(adapters: Sequence[Adapter]) -> str:
    for adapter in adapters:
        if any(char in str(adapter.path) for char in ':,"'):
            raise EngineError(
                "engine.artifact_unusable",
                f"llama.cpp cannot be given an adapter below this directory: {adapter.path}",
                place=str(adapter.path),
                next_step="move the cache to a path without colon, comma and quote (model_host.cache.directory)",
            )
    return ",".join(f"{adapter.path}:{adapter.scale:g}" for adapter in adapters)


def _worked(request: LaunchRequest, extra: Mapping[str, ExtraFlag]) -> list[Option]:
    """Slots, context and how much is computed at once. A text for embedding or reranking is computed in one piece."""
    given = request.threads if request.threads is not None else default_threads(request.physical_cores)
    threads = _value(extra, "--threads", given)
    whole = None if request.mode == "chat" else request.context_length
    return [
        ("--ctx-size", str(request.context_length * request.slots)),
        ("--parallel", str(request.slots)),
        ("--no-kv-unified", None),
        ("--threads", threads),
        ("--threads-batch", threads),
        ("--threads-http", str(request.slots + _HTTP_THREADS_BESIDE_SLOTS)),
        ("--batch-size", _value(extra, "--batch-size", whole or _BATCH_TOKENS)),
        ("--ubatch-size", _value(extra, "--ubatch-size", whole or _UBATCH_TOKENS)),
    ]


def _placed(build: EngineBuild, request: LaunchRequest) -> list[Option]:
    if build.acceleration == "cpu":
        return [("--n-gpu-layers", "0")]
    placed: list[Option] = [("--n-gpu-layers", str(_ALL_LAYERS))]
    if len(request.devices) > 1:
        mode = "row" if build.acceleration == "cuda" else "layer"
        placed += [("--split-mode", mode), ("--tensor-split", ",".join("1" for _ in request.devices))]
    return placed


def _kept(request: LaunchRequest, extra: Mapping[str, ExtraFlag]) -> list[Option]:
    """The attention cache, and how weights are held. A quantised cache of values needs flash attention."""
    kind = kv_cache_type(request.kv_quant)
    attention = "on" if "--flash-attn" in extra or kind not in (None, "f16") else "auto"
    return [
        ("--flash-attn", attention),
        *((("--cache-type-k", kind), ("--cache-type-v", kind)) if kind is not None else ()),
        *((("--seed", extra["--seed"].value),) if "--seed" in extra else ()),
        ("--load-mode", _load_mode(extra)),
    ]


def _environment(build: EngineBuild, request: LaunchRequest) -> dict[str, str]:
    env = engine_environment(request.environ, library_path=build.launch == "binary" and not build.ours)
    if build.libraries is not None:
        env["LD_LIBRARY_PATH"] = str(build.libraries)
    if build.acceleration == "cuda" and request.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(request.devices)
    return env


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
_NEVER_LEFT_OUT: Final = frozenset(
    {
        "--embeddings",
        "--rerank",
        "--pooling",
        "--lora-scaled",
        "--cache-type-k",
        "--cache-type-v",
        "--tensor-split",
        "--split-mode",
    }
)
"""Without these an engine would do something else than was asked."""


def _render(listed: Sequence[Option], build: EngineBuild) -> list[str]:
    known = build.known_flags
    if known is None:
        table = flag_table(build.version)
        known = frozenset(FLAG_VALUES) if table is None else table.flags
    if lacking := [flag for flag in _REQUIRED if flag not in known]:
        raise _unfit(build, ", ".join(lacking), "it is no llama-server that sbctl can drive")
    argv: list[str] = []
    for flag, value in listed:
        allowed = FLAG_VALUES[flag]
        if (allowed is None) != (value is None) or (allowed is not None and not allowed.admits(value or "")):
            raise EngineError(
                "engine.unsafe_argument",
                f"{flag} cannot be {value!r} for llama.cpp",
                place=str(build.path),
                next_step="correct what asks for it in the deployment: max_context, max_concurrency, kv_quant, lora or extra_args",
            )
        if flag in known:
            argv += [flag] if value is None else [flag, value]
        elif flag == "--load-mode" and value is not None:
            argv += [older for older in _OLDER_LOAD_FLAGS[value] if older in known]
        elif flag == "--no-ui" and "--no-webui" in known:
            argv.append("--no-webui")
        elif flag in _NEVER_LEFT_OUT:
            raise _unfit(build, flag, "the deployment needs it")
    return argv


def _unfit(build: EngineBuild, flags: str, why: str) -> EngineError:
    return EngineError(
        "engine.incompatible",
        f"{build.path} does not know {flags}; {why}",
        place=str(build.path),
        next_step="install a current llama-server, or use launch: wheel",
    )
