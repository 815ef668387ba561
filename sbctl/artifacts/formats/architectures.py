"""From a GGUF header to a `ModelShape`: how llama.cpp's architectures keep tokens and sequences.

What a header does not say, and the engine knows by heart, stands in the tables here, each for the names that the engine gives it. An
architecture that is in none of them is taken for plain attention over the whole context, which is at most too much, unless its header has
keys of a kind that only means something to an engine that knows it: then nothing is known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from sbctl.artifacts.formats.gguf import ArrayInfo, GgufHeader, Value, read_gguf
from sbctl.artifacts.formats.shape import Certainty, LayerShape, ModelShape
from sbctl.base.errors import ArtifactError

__all__ = ["model_shape", "read_shape"]

_PLAIN: Final = frozenset({
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bloom", "chatglm", "codeshell", "command-r", "dbrx", "deepseek",
    "deepseek2", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4", "gpt2", "gptneox", "granite", "granitemoe",
    "grok", "hunyuan-dense", "hunyuan-moe", "internlm2", "llama", "minicpm", "minicpm3", "mistral3", "mpt", "nemotron", "olmo", "olmoe",
    "openelm", "orion", "phi2", "phi3", "phimoe", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe",
    "seed_oss", "smollm3", "stablelm", "starcoder2", "xverse",
})  # fmt: skip
"""Attention over the whole context in every layer."""
_WINDOWS: Final[Mapping[str, tuple[int, bool, int]]] = {
    "gemma2": (2, False, 4096),
    "gemma3": (6, False, 0),
    "gemma3n": (5, False, 0),
    "gpt-oss": (2, False, 0),
    "cohere2": (4, False, 0),
    "exaone4": (4, False, 0),
    "exaone-moe": (4, False, 0),
    "llama4": (4, False, 8192),
    "olmo2": (4, False, 0),
    "afmoe": (4, False, 0),
    "smallthinker": (4, True, 0),
    "laguna": (4, True, 0),
}
"""Architecture → each how manyth layer sees everything, whether it is the first of its group, the window where the header has none."""
_WINDOW_LISTS: Final = frozenset({"gemma4", "mimo2", "step35"})
"""The header lists layer by layer which ones have a window."""
_ENCODERS: Final = frozenset({
    "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe",
})  # fmt: skip
_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_HYBRID: Final = frozenset({"jamba", "granitehybrid", "lfm2", "lfm2moe", "plamo2", "nemotron_h", "nemotron_h_moe"})
"""Layers without heads for keys keep a state instead."""
_HYBRID_STRIDE: Final = frozenset({"qwen3next", "qwen35", "qwen35moe"})
"""Every n-th layer is attention, the others keep a state."""
_HYBRID_BOTH: Final = frozenset({"falcon-h1"})
"""Each layer does both."""
_INDEXED: Final = frozenset({"deepseek32", "glm-dsa"})
"""A second cache of keys for choosing tokens."""
_FEED_FORWARD_ONLY: Final = frozenset({"nemotron_h", "nemotron_h_moe"})
"""A layer with a feed-forward part of its own keeps nothing."""
_KV_FROM_START: Final[Mapping[str, int]] = {"gemma3n": 20}
"""Layers from here on use what earlier ones kept."""
_NOT_UNDERSTOOD: Final = (
    "ssm.",
    "wkv.",
    "shortconv.",
    "kda.",
    "attention.indexer.",
    "attention.compress_ratios",
    "decoder_block_count",
)
_BLOCK_RE: Final = re.compile(r"(?:blk|enc\.blk|dec\.blk)\.(\d{1,4})\.")
_LAYERS_MAX: Final = 4096
_NUMBER_MAX: Final = 1 << 31


@dataclass(frozen=True)
class _Keys:
    """The numbers of one architecture; what is missing or absurd reads as 0."""

    metadata: Mapping[str, Value]
    architecture: str

    def number(self, name: str, otherwise: int = 0) -> int:
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if type(value) is int and 0 <= value <= _NUMBER_MAX else otherwise

    def each(self, name: str, layers: int, otherwise: int = 0) -> tuple[int, ...]:
        """One for each layer, also where the header has one for all."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        if isinstance(value, tuple):
            listed = tuple(int(one) if isinstance(one, int) and 0 <= one <= _NUMBER_MAX else 0 for one in value)
            return (listed + (0,) * layers)[:layers]
        return (self.number(name, otherwise),) * layers

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata


def model_shape(headers: Sequence[GgufHeader]) -> ModelShape | None:
    """Of one model, also where it is split over files: the first one has the keys, and a projector for images only adds bytes.

    None: no header, or none that describes a model that could be sized.
    """
    headers = sorted(headers, key=lambda header: header.metadata.get("general.architecture") == "clip")
    if not headers:
        return None
    first = headers[0]
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str) or not 0 < len(architecture) <= 64:
        return None
    keys = _Keys(first.metadata, architecture)
    count, embedding = keys.number("block_count"), keys.number("embedding_length")
    if not 0 < count <= _LAYERS_MAX or not 0 < embedding <= 1 << 24:
        return None
    certainty, reason = _certainty(keys, headers)
    blocks, experts, before, behind = _weights(headers, count)
    heads = keys.each("attention.head_count", count)
    used = keys.number("expert_used_count")
    dense = max(keys.each("feed_forward_length", count), default=0)
    layers = [
        kept.model_copy(update={"weight_bytes": blocks[index], "expert_bytes": experts[index]})
        for index, kept in enumerate(_kept(keys, count, embedding, heads))
    ]
    return ModelShape(
        architecture=architecture,
        context_length=keys.number("context_length"),
        embedding=embedding,
        vocabulary=_vocabulary(keys, headers),
        attention_row=max(heads)
        * max(_head_length(keys, embedding, max(heads)), keys.number("attention.key_length_swa")),
        heads=max(heads),
        feed_forward=max(dense, used * keys.number("expert_feed_forward_length", dense)),
        inner=_inner_row(keys, embedding),
        experts=min(keys.number("expert_count"), 1 << 16),
        experts_used=min(used, 1 << 16),
        window=_window(keys) if any(layer.windowed for layer in layers) else 0,
        has_cache=architecture not in _ENCODERS,
        layers=_in_runs(layers),
        input_bytes=before,
        tied_bytes=_tied_bytes(headers),
        output_bytes=behind,
        certainty=certainty,
        reason=reason,
    )


def read_shape(paths: Sequence[Path]) -> ModelShape | None:
    """Of the weight files of one artifact, in the order of their names; what stands beside a model (a projector for images) adds its bytes.

    None: none is GGUF that describes a model. Never raises: weights that cannot be sized may still be served.
    """
    try:
        return model_shape([read_gguf(path) for path in paths])
    except (ArtifactError, OSError):
        return None


def _certainty(keys: _Keys, headers: Sequence[GgufHeader]) -> tuple[Certainty, str]:
    architecture = keys.architecture
    if architecture in _INDEXED or keys.number("nextn_predict_layers"):
        return "upper_bound", "it has layers that the engine may leave out"
    known = _PLAIN | _WINDOWS.keys() | _WINDOW_LISTS | _ENCODERS | _RECURRENT | _HYBRID | _HYBRID_STRIDE | _HYBRID_BOTH
    if architecture in known:
        unsized = sorted({kind for header in headers for kind in header.unknown_types})
        return ("upper_bound", f"tensors of type {unsized[0]} are sized by their room") if unsized else ("exact", "")
    strange = next(
        (name for name in _NOT_UNDERSTOOD if any(key.startswith(f"{architecture}.{name}") for key in keys.metadata)),
        None,
    )
    if strange is not None:
        return "unknown", f"how {architecture} uses {strange.rstrip('.')} is not known to this version"
    return "upper_bound", f"{architecture} is taken for attention over the whole context"


def _weights(headers: Sequence[GgufHeader], count: int) -> tuple[Mapping[int, int], Mapping[int, int], int, int]:
    """Bytes by layer, bytes of experts by layer, bytes before the first layer and behind the last."""
    blocks: dict[int, int] = defaultdict(int)
    experts: dict[int, int] = defaultdict(int)
    before = behind = 0
    for header in headers:
        for tensor in header.tensors:
            block = _BLOCK_RE.match(tensor.name)
            if block is not None and int(block[1]) < count:
                blocks[int(block[1])] += tensor.size_bytes
                experts[int(block[1])] += tensor.size_bytes if "_exps" in tensor.name else 0
            elif tensor.name.startswith("output"):
                behind += tensor.size_bytes
            else:
                before += tensor.size_bytes
    return blocks, experts, before, behind


def _tied_bytes(headers: Sequence[GgufHeader]) -> int:
    """Of the table of tokens, where it also is the output."""
    tensors = {tensor.name: tensor.size_bytes for header in headers for tensor in header.tensors}
    return 0 if "output.weight" in tensors else tensors.get("token_embd.weight", 0)


def _head_length(keys: _Keys, embedding: int, heads: int) -> int:
    return keys.number("attention.key_length", embedding // heads if heads else 0)


def _kept(keys: _Keys, count: int, embedding: int, heads: Sequence[int]) -> list[LayerShape]:
    """What each layer keeps, without its weights."""
    architecture = keys.architecture
    if architecture in _ENCODERS:
        return [LayerShape()] * count
    kv_heads = [
        kv if keys.has("attention.head_count_kv") else head
        for kv, head in zip(keys.each("attention.head_count_kv", count), heads, strict=True)
    ]
    attends, recurs = _kinds(keys, count, kv_heads)
    windowed = _windowed(keys, count)
    key_length = _head_length(keys, embedding, max(heads))
    value_length = keys.number("attention.value_length", embedding // max(heads) if max(heads) else 0)
    latent = bool(keys.number("attention.key_length_mla") and keys.number("attention.value_length_mla"))
    index_row = keys.number("attention.indexer.key_length") if architecture in _INDEXED else 0
    shared_from = count - keys.number("attention.shared_kv_layers")
    shared_from = min(shared_from, _KV_FROM_START.get(architecture, count))
    state = _state_row(keys, embedding)
    kept: list[LayerShape] = []
    for index in range(count):
        near = windowed[index]
        key = keys.number("attention.key_length_swa", key_length) if near else key_length
        value = keys.number("attention.value_length_swa", value_length) if near else value_length
        keeps = attends[index] and index < shared_from
        kept.append(
            LayerShape(
                key_row=kv_heads[index] * key + index_row if keeps else 0,
                value_row=kv_heads[index] * value if keeps and not latent else 0,
                windowed=keeps and near,
                state_row=state if recurs[index] else 0,
            )
        )
    return kept


def _kinds(keys: _Keys, count: int, kv_heads: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Layer by layer: whether it attends, whether it keeps a state."""
    architecture = keys.architecture
    if architecture in _RECURRENT:
        return [False] * count, [True] * count
    if architecture in _HYBRID_BOTH:
        return [True] * count, [True] * count
    if architecture in _HYBRID_STRIDE:
        stride = keys.number("full_attention_interval", 4) or 4
        attends = [
            (index + 1) % stride == 0 or index >= count - keys.number("nextn_predict_layers") for index in range(count)
        ]
        return attends, [not one for one in attends]
    if architecture in _HYBRID:
        dense = keys.each("feed_forward_length", count)
        only = architecture in _FEED_FORWARD_ONLY
        return [kv > 0 for kv in kv_heads], [
            kv == 0 and not (only and feed) for kv, feed in zip(kv_heads, dense, strict=True)
        ]
    return [kv > 0 for kv in kv_heads], [False] * count


def _window(keys: _Keys) -> int:
    default = _WINDOWS.get(keys.architecture, (0, False, 0))[2]
    return default if keys.architecture == "llama4" else keys.number("attention.sliding_window", default)


def _windowed(keys: _Keys, count: int) -> list[bool]:
    pattern = keys.metadata.get(f"{keys.architecture}.attention.sliding_window_pattern")
    if (
        keys.architecture == "llama4"
        and keys.has("attention.sliding_window")
        and not keys.number("attention.sliding_window")
    ):
        return [False] * count
    if not _window(keys) or keys.architecture not in _WINDOW_LISTS | _WINDOWS.keys():
        return [False] * count
    if isinstance(pattern, tuple):
        return [bool(one) for one in (pattern + (False,) * count)[:count]]
    if keys.architecture in _WINDOW_LISTS:
        return [False] * count
    period, dense_first, _ = _WINDOWS[keys.architecture]
    period = pattern if type(pattern) is int and 0 < pattern <= _LAYERS_MAX else period
    return [index % period != (0 if dense_first else period - 1) for index in range(count)]


def _state_row(keys: _Keys, embedding: int) -> int:
    """Numbers of one sequence in a layer that keeps a state: its last inputs, and the state itself."""
    if keys.number("wkv.head_size"):
        return keys.number("token_shift_count", 2) * embedding + embedding * keys.number("wkv.head_size")
    if keys.number("shortconv.l_cache"):
        return embedding * (keys.number("shortconv.l_cache") - 1)
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    inputs = max(0, keys.number("ssm.conv_kernel") - 1) * (inner + 2 * keys.number("ssm.group_count") * state)
    return inputs + state * inner


def _inner_row(keys: _Keys, embedding: int) -> int:
    if keys.number("wkv.head_size") or keys.number("shortconv.l_cache"):
        return 4 * embedding
    return keys.number("ssm.inner_size") + 2 * keys.number("ssm.group_count") * keys.number("ssm.state_size")


def _vocabulary(keys: _Keys, headers: Sequence[GgufHeader]) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    listed = tokens.count if isinstance(tokens, ArrayInfo) else 0
    rows = (
        tensor.dimensions[1]
        for header in headers
        for tensor in header.tensors
        if tensor.name == "token_embd.weight" and len(tensor.dimensions) == 2
    )
    return min(listed or keys.number("vocab_size") or next(rows, 0), 1 << 28)


def _in_runs(layers: Sequence[LayerShape]) -> tuple[LayerShape, ...]:
    runs = ((layer, sum(1 for _ in same)) for layer, same in groupby(layers))
    return tuple(layer.model_copy(update={"repeat": count}) for layer, count in runs)
