"""What each tried build of llama.cpp understands, of all that sbctl may write, and what no engine is ever given.

A build is known by its version and by the digest of the flags that its `--help` names; the digest was taken from a build of exactly that
source. Flags come and go between releases, so a program that says one version and helps like another is not driven as either.
A program of another version gets what its own help names, out of the newest table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.digests import sha256_bytes

__all__ = [
    "CACHE_TYPES",
    "FLAG_VALUES",
    "REFUSED_FLAGS",
    "FlagTable",
    "Value",
    "flag_table",
    "help_digest",
    "help_flags",
    "kv_cache_type",
]

_FLAG_RE: Final = re.compile(r"(?<![A-Za-z0-9-])--[a-z][a-z0-9-]*")
_BUILD_OPTIONS: Final = frozenset({"--rpc"})
"""Named by the help of a build that was compiled with them, whatever its version."""

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_KV_QUANT: Final[Mapping[str, str]] = {"f16": "f16", "fp8": "q8_0", "int8": "q8_0", "int4": "q4_0"}


def kv_cache_type(kv_quant: str) -> str | None:
    """llama.cpp's type for a deployment's `kv_quant`; None leaves it to the engine, which takes f16."""
    return _KV_QUANT.get(kv_quant)


@dataclass(frozen=True, slots=True)
class Value:
    """What may follow a flag: a whole number in a range, one of some words, or (neither) text that the driver makes itself."""

    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()

    def admits(self, text: str) -> bool:
        if self.words:
            return text in self.words
        if self.low is None or self.high is None:
            return text != "" and not text.startswith("-")
        return text.isascii() and text.isdigit() and len(text) <= 10 and self.low <= int(text) <= self.high


_TEXT: Final = Value()
_COUNT: Final = Value(0, 2**31 - 1)

FLAG_VALUES: Final[Mapping[str, Value | None]] = {
    "--model": _TEXT,
    "--alias": _TEXT,
    "--host": _TEXT,
    "--port": Value(1, 65_535),
    "--ctx-size": Value(1, 2**31 - 1),
    "--parallel": Value(1, 1_000_000),
    "--no-kv-unified": None,
    "--threads": Value(1, 1024),
    "--threads-batch": Value(1, 1024),
    "--threads-http": Value(1, 2_000_000),
    "--batch-size": Value(1, 1_048_576),
    "--ubatch-size": Value(1, 1_048_576),
    "--n-gpu-layers": Value(0, 100_000),
    "--split-mode": Value(words=("none", "layer", "row")),
    "--tensor-split": _TEXT,
    "--flash-attn": Value(words=("on", "off", "auto")),
    "--cache-type-k": Value(words=CACHE_TYPES),
    "--cache-type-v": Value(words=CACHE_TYPES),
    "--lora-scaled": _TEXT,
    "--embeddings": None,
    "--rerank": None,
    "--pooling": Value(words=("mean", "cls", "last")),
    "--seed": Value(0, 2**32 - 1),
    "--load-mode": Value(words=("auto", "none", "mmap", "mlock", "mmap+mlock")),
    "--no-mmap": None,
    "--mlock": None,
    "--fit": Value(words=("off",)),
    "--cache-ram": _COUNT,
    "--ctx-checkpoints": Value(0, 1024),
    "--no-context-shift": None,
    "--offline": None,
    "--no-ui": None,
    "--no-webui": None,
    "--warmup": None,
    "--metrics": None,
    "--slots": None,
}
"""Every flag that the driver may write, and what may follow it; None marks a switch."""

_NETWORK: Final = "an engine reaches no network: weights are fetched and verified before it starts"
_ADDRESS: Final = "where an engine listens is the runtime's to say"
_SECRET: Final = "an engine has no key of its own, and a command line can be read by everybody on the host"  # noqa: S105
_CODE: Final = "an engine runs no tools and no programs of others"
_FILES: Final = "an engine reads and writes no files but its weights"
_MEMORY: Final = "context, slots and memory are the runtime's: the plan must say what the launch does"

REFUSED_FLAGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--hf-repo", "--hf-file", "--hf-token", "--model-url", "--docker-repo", "--rpc"), _NETWORK),
    **dict.fromkeys(("--mmproj-url", "--models-dir", "--models-preset", "--models-max", "--models-autoload"), _NETWORK),
    **dict.fromkeys(("--host", "--port", "--reuse-port", "--api-prefix", "--path", "--cors-origins"), _ADDRESS),
    **dict.fromkeys(("--api-key", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"), _SECRET),
    **dict.fromkeys(("--tools", "--agent", "--mcp-servers-config", "--mcp-servers-json", "--ui-mcp-proxy"), _CODE),
    **dict.fromkeys(("--media-path", "--slot-save-path", "--log-prompts-dir", "--log-file", "--lookup-cache-dynamic"), _FILES),
    **dict.fromkeys(("--model", "--lora", "--lora-scaled", "--chat-template-file", "--grammar-file"), _FILES),
    **dict.fromkeys(("--ctx-size", "--parallel", "--kv-unified", "--fit", "--cache-ram", "--ctx-checkpoints", "--n-gpu-layers"), _MEMORY),
    **dict.fromkeys(("--override-tensor", "--override-kv", "--sleep-idle-seconds", "--cache-type-k", "--cache-type-v"), _MEMORY),
}  # fmt: skip
"""Flags that users ask for and do not get, with the reason; whatever else is not on the list of `flags` is refused without one."""


@dataclass(frozen=True, slots=True)
class FlagTable:
    """One tried version: the flags of `FLAG_VALUES` that it knows, and the digest of what its help names (None: its flags are mapped by
    a launcher of ours, which is pinned itself). `has_unix_sockets`: it listens on a path that ends in .sock."""

    version: str
    flags: frozenset[str]
    help_digest: str | None
    has_unix_sockets: bool = True


_EVERY: Final = frozenset(FLAG_VALUES)
_OLD_LOADING: Final = frozenset({"--no-mmap", "--mlock"})
_TABLES: Final[Mapping[str, FlagTable]] = {
    table.version: table
    for table in (
        FlagTable(
            "b9905", _EVERY - {"--load-mode"}, "5e9b3df79240a53dec898fe19a4421f9e31a388bf691d83a4cd66ff7f743ba6d"
        ),
        FlagTable("b11434", _EVERY - _OLD_LOADING, "d7e0ea30c225b3f2b4fd14cdb3224dcf5438fb7162869af711f4119715116ed9"),
        FlagTable("2026.10.11549", _EVERY - _OLD_LOADING - {"--no-webui", "--split-mode", "--tensor-split"}, None),
    )
}


def flag_table(version: str) -> FlagTable | None:
    """None for a version that was never tried."""
    return _TABLES.get(version)


def help_flags(text: str) -> frozenset[str]:
    """The long flags that a help names."""
    return frozenset(_FLAG_RE.findall(text))


def help_digest(flags: Collection[str]) -> str:
    """64 hex characters over the flags that a help names, their order and the build's options aside."""
    return sha256_bytes("\n".join(sorted(set(flags) - _BUILD_OPTIONS)).encode())
