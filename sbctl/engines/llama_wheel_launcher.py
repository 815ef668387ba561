"""Starts the llama.cpp server of the wheel `xllamacpp` with llama-server's flags: `python -I llama_wheel_launcher.py --model F …`.

A program of its own: it is copied into the engine's environment and imports nothing but the standard library and that wheel. It maps the
flags of FLAGS and refuses every other one with exit 64 and a sentence. What llama-server turns on by itself and a managed engine must not
have (fit, UI, network, a prompt cache of 8 GiB, a shared KV pool) is off unless a flag says otherwise.

Prints `LISTEN <address>` once the model is loaded. SIGTERM and SIGINT: its socket is removed, exit 0; before
LISTEN they end the process at once. Exit 1: the server could not start.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["FLAGS", "Refused", "main", "read_arguments"]

EX_USAGE = 64


class Refused(Exception):  # noqa: N818 - it becomes a sentence and exit 64
    """A flag that this launcher does not map, or a value that does not fit it."""


def _text(value: str) -> str:
    return value


def _count(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise ValueError("a whole number")
    return int(value)


def _choice(*names: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return read


def _adapters(value: str) -> list[tuple[str, float]]:
    found = []
    for entry in value.split(","):
        path, colon, scale = entry.rpartition(":")
        try:
            number = float(scale)
        except ValueError:
            number = math.nan
        if not colon or not path.startswith("/") or not math.isfinite(number):
            raise ValueError("a list of /path:scale")
        found.append((path, number))
    return found


CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

FLAGS: dict[str, Callable[[str], Any] | None] = {
    "--model": _text,
    "--alias": _text,
    "--host": _text,
    "--port": _count,
    "--ctx-size": _count,
    "--parallel": _count,
    "--kv-unified": None,
    "--no-kv-unified": None,
    "--threads": _count,
    "--threads-batch": _count,
    "--threads-http": _count,
    "--batch-size": _count,
    "--ubatch-size": _count,
    "--n-gpu-layers": _count,
    "--flash-attn": _choice("on", "off", "auto"),
    "--cache-type-k": _choice(*CACHE_TYPES),
    "--cache-type-v": _choice(*CACHE_TYPES),
    "--lora-scaled": _adapters,
    "--embeddings": None,
    "--rerank": None,
    "--pooling": _choice("mean", "cls", "last"),
    "--seed": _count,
    "--load-mode": _choice("auto", "none", "mmap", "mlock", "mmap+mlock"),
    "--fit": _choice("on", "off"),
    "--cache-ram": _count,
    "--ctx-checkpoints": _count,
    "--no-context-shift": None,
    "--offline": None,
    "--no-ui": None,
    "--warmup": None,
    "--no-warmup": None,
    "--metrics": None,
    "--slots": None,
    "--no-slots": None,
}
"""Flag → reader of its value; None marks a switch."""

_NEEDED = ("--model", "--host", "--ctx-size", "--parallel", "--threads")


def read_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """Flag → value (True for a switch). Raises Refused with one sentence."""
    given: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        flag, equals, attached = rest.pop(0).partition("=")
        if flag not in FLAGS:
            raise Refused(f"{flag!r} is not a flag of the wheel launcher; it maps {', '.join(sorted(FLAGS))}")
        if flag in given:
            raise Refused(f"{flag} is given twice")
        read = FLAGS[flag]
        if read is None:
            if equals:
                raise Refused(f"{flag} is a switch and takes no value")
            given[flag] = True
            continue
        if not equals and not rest:
            raise Refused(f"{flag} needs a value")
        value = attached if equals else rest.pop(0)
        try:
            given[flag] = read(value)
        except ValueError as error:
            raise Refused(f"{flag} needs {error}, not {value!r}") from None
    lacking = [flag for flag in _NEEDED if flag not in given]
    if lacking:
        raise Refused(f"{', '.join(lacking)} must be given")
    host = given["--host"]
    if host != "127.0.0.1" and not (host.startswith("/") and host.endswith(".sock")):
        raise Refused("--host is 127.0.0.1 or an absolute path ending in .sock; an engine never listens elsewhere")
    return given


def _common_params(given: dict[str, Any], xllamacpp: Any) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = given["--model"]
    params.hostnames = [given["--host"]]
    params.port = given.get("--port", 0)
    if "--alias" in given:
        params.model_alias = {given["--alias"]}
    params.n_ctx = given["--ctx-size"]
    params.n_parallel = given["--parallel"]
    params.kv_unified = given.get("--kv-unified", False)
    params.cpuparams.n_threads = given["--threads"]
    params.cpuparams_batch.n_threads = given.get("--threads-batch", given["--threads"])
    if "--threads-http" in given:
        params.n_threads_http = given["--threads-http"]
    params.n_batch = given.get("--batch-size", 2048)
    params.n_ubatch = given.get("--ubatch-size", 512)
    params.n_gpu_layers = given.get("--n-gpu-layers", 0)
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.get("--flash-attn", "auto")]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
    for side in ("k", "v"):
        if f"--cache-type-{side}" in given:
            kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given[f'--cache-type-{side}'].upper()}")
            setattr(params, f"cache_type_{side}", kind)
    if "--lora-scaled" in given:
        params.lora_adapters = [_adapter(path, scale, xllamacpp) for path, scale in given["--lora-scaled"]]
    if "--embeddings" in given or "--rerank" in given:
        params.embedding = True
    if "--pooling" in given:
        kind = f"LLAMA_POOLING_TYPE_{given['--pooling'].upper()}"
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, kind)
    if "--rerank" in given:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    if "--seed" in given:
        params.sampling.seed = given["--seed"]
    mode = given.get("--load-mode", "auto").upper().replace("+", "_")
    params.load_mode = getattr(xllamacpp.llama_load_mode, f"LLAMA_LOAD_MODE_{mode}")
    params.fit_params = given.get("--fit", "off") == "on"
    params.cache_ram_mib = given.get("--cache-ram", 0)
    params.n_ctx_checkpoints = given.get("--ctx-checkpoints", 0)
    params.ctx_shift = False
    params.offline = True
    params.ui = False
    params.ui_mcp_proxy = False
    params.endpoint_props = False
    params.warmup = "--no-warmup" not in given
    params.endpoint_metrics = "--metrics" in given
    params.endpoint_slots = "--no-slots" not in given
    return params


def _adapter(path: str, scale: float, xllamacpp: Any) -> Any:
    adapter = xllamacpp.CommonAdapterLoraInfo()
    adapter.path, adapter.scale = path, scale
    return adapter


def _socket_identity(host: str) -> tuple[int, int] | None:
    try:
        status = Path(host).lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _wait_for_signal() -> None:
    """Returns on SIGTERM or SIGINT, also when a thread of the server received it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    os.read(reader, 1)


def _fail(code: int, sentence: str) -> NoReturn:
    print(f"llama_wheel_launcher: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def main(argv: Sequence[str]) -> NoReturn:
    """Serve until a signal comes, then end the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        given = read_arguments(argv)
    except Refused as refusal:
        _fail(EX_USAGE, str(refusal))
    try:
        import xllamacpp
    except ImportError as error:
        _fail(1, f"the engine's wheel cannot be imported: {error}")
    try:
        server = xllamacpp.Server(_common_params(given, xllamacpp))
    except RuntimeError as error:
        _fail(1, f"llama.cpp did not start: {error}")
    identity = _socket_identity(given["--host"])
    print(f"LISTEN {server.listening_address}", flush=True)
    _wait_for_signal()
    if identity is not None and _socket_identity(given["--host"]) == identity:
        Path(given["--host"]).unlink(missing_ok=True)
    # The server's destructor waits up to half a minute for streams and holds the interpreter meanwhile. The runtime has drained before it
    # asks, and the process keeps nothing, so it ends here.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
