"""GGUF files for tests: headers of real models' geometry over data that is a hole in the file, so a model of 20 GB takes a few KiB of disk."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sbctl.artifacts.formats.ggml_types import tensor_bytes

__all__ = ["MODELS", "GgufDraft", "tiny_gguf"]

F32, F16, Q8_0, Q4_K = 0, 1, 8, 12
_ALIGNMENT = 32
Order = Literal["<", ">"]


@dataclass
class GgufDraft:
    """What a file is to hold. Whole numbers become u32, lists of them arrays; `raw` values come as (type, bytes)."""

    keys: dict[str, Any] = field(default_factory=dict)
    tensors: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    version: int = 3
    order: Order = "<"

    def add(self, name: str, *dimensions: int, kind: int | None = None) -> None:
        if kind is None:
            kind = (
                F32
                if len(dimensions) == 1
                else Q4_K
                if dimensions[0] % 256 == 0
                else Q8_0
                if dimensions[0] % 32 == 0
                else F16
            )
        self.tensors.append((name, dimensions, kind))

    def header(self) -> tuple[bytes, int]:
        """The bytes before the data, and how many bytes the data take."""
        order, offset = self.order, 0
        out = bytearray(b"GGUF" + struct.pack(f"{order}IQQ", self.version, len(self.tensors), len(self.keys)))
        for key, value in self.keys.items():
            out += _text(key, order) + _value(value, order)
        for name, dimensions, kind in self.tensors:
            out += _text(name, order) + struct.pack(f"{order}I{len(dimensions)}Q", len(dimensions), *dimensions)
            out += struct.pack(f"{order}IQ", kind, offset)
            size = tensor_bytes(kind, dimensions)
            assert size, name
            offset += size + (-size) % _ALIGNMENT
        out += b"\0" * ((-len(out)) % _ALIGNMENT)
        return bytes(out), offset

    def data(self) -> bytes:
        """The whole file; for small ones."""
        header, size = self.header()
        return header + b"\0" * size

    def write(self, path: Path) -> Path:
        header, size = self.header()
        with path.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + size)
        return path


def _text(value: str, order: Order) -> bytes:
    data = value.encode()
    return struct.pack(f"{order}Q", len(data)) + data


def _value(value: Any, order: Order) -> bytes:
    if isinstance(value, bool):
        return struct.pack(f"{order}IB", 7, value)
    if isinstance(value, int):
        return struct.pack(f"{order}II", 4, value)
    if isinstance(value, float):
        return struct.pack(f"{order}If", 6, value)
    if isinstance(value, str):
        return struct.pack(f"{order}I", 8) + _text(value, order)
    if isinstance(value, tuple):
        kind, data = value
        return struct.pack(f"{order}I", kind) + bytes(data)
    kind, code = (7, "B") if isinstance(value[0], bool) else (4, "I") if isinstance(value[0], int) else (8, "")
    head = struct.pack(f"{order}IIQ", 9, kind, len(value))
    if not code:
        return head + b"".join(_text(one, order) for one in value)
    return head + struct.pack(f"{order}{len(value)}{code}", *value)


def tiny_gguf(*, layers: int = 1, note: str = "") -> bytes:
    """A file of a few hundred bytes that is GGUF in every respect; `note` makes it another one."""
    draft = GgufDraft({"general.architecture": "llama", "llama.block_count": layers, "llama.embedding_length": 8})
    if note:
        draft.keys["general.name"] = note
    draft.add("token_embd.weight", 8, 4, kind=F32)
    return draft.data()


def _base(architecture: str, vocabulary: int, numbers: Mapping[str, Any]) -> GgufDraft:
    keys: dict[str, Any] = {"general.architecture": architecture, "tokenizer.ggml.model": "no_vocab"}
    keys[f"{architecture}.vocab_size"] = vocabulary
    keys |= {f"{architecture}.{name}": value for name, value in numbers.items()}
    return GgufDraft(keys)


def _ends(draft: GgufDraft, embedding: int, vocabulary: int, *, tied: bool) -> None:
    draft.add("token_embd.weight", embedding, vocabulary)
    draft.add("output_norm.weight", embedding)
    if not tied:
        draft.add("output.weight", embedding, vocabulary)


def _attention(
    draft: GgufDraft, block: str, embedding: int, heads: int, kv: int, length: int, *, extra: Iterable[str] = ()
) -> None:
    draft.add(f"{block}.attn_norm.weight", embedding)
    draft.add(f"{block}.attn_q.weight", embedding, heads * length)
    draft.add(f"{block}.attn_k.weight", embedding, kv * length)
    draft.add(f"{block}.attn_v.weight", embedding, kv * length)
    draft.add(f"{block}.attn_output.weight", heads * length, embedding)
    for name in extra:
        draft.add(f"{block}.{name}.weight", length if name.endswith(("q_norm", "k_norm")) else embedding)


def _feed_forward(draft: GgufDraft, block: str, embedding: int, feed: int, norm: str = "ffn_norm.weight") -> None:
    draft.add(f"{block}.{norm}", embedding)
    draft.add(f"{block}.ffn_gate.weight", embedding, feed)
    draft.add(f"{block}.ffn_up.weight", embedding, feed)
    draft.add(f"{block}.ffn_down.weight", feed, embedding)


def _experts(draft: GgufDraft, block: str, embedding: int, feed: int, count: int, norm: str = "ffn_norm") -> None:
    draft.add(f"{block}.{norm}.weight", embedding)
    draft.add(f"{block}.ffn_gate_inp.weight", embedding, count, kind=F32)
    draft.add(f"{block}.ffn_gate_exps.weight", embedding, feed, count)
    draft.add(f"{block}.ffn_up_exps.weight", embedding, feed, count)
    draft.add(f"{block}.ffn_down_exps.weight", feed, embedding, count)


def _dense(
    architecture: str,
    *,
    layers: int,
    embedding: int,
    heads: int,
    kv: int,
    length: int,
    feed: int,
    vocabulary: int,
    context: int,
    tied: bool = False,
    biases: bool = False,
    extra: Sequence[str] = (),
    norm: str = "ffn_norm.weight",
    numbers: Mapping[str, Any] | None = None,
) -> GgufDraft:
    draft = _base(
        architecture,
        vocabulary,
        {
            "block_count": layers, "context_length": context, "embedding_length": embedding, "feed_forward_length": feed,
            "attention.head_count": heads, "attention.head_count_kv": kv, "attention.key_length": length,
            "attention.value_length": length, "rope.dimension_count": length, "attention.layer_norm_rms_epsilon": 1e-6,
            **(numbers or {}),
        },
    )  # fmt: skip
    _ends(draft, embedding, vocabulary, tied=tied)
    for index in range(layers):
        block = f"blk.{index}"
        _attention(draft, block, embedding, heads, kv, length, extra=extra)
        for name, width in (("q", heads), ("k", kv), ("v", kv)) if biases else ():
            draft.add(f"{block}.attn_{name}.bias", width * length)
        _feed_forward(draft, block, embedding, feed, norm)
    return draft


def _smollm2_135m() -> GgufDraft:
    return _dense(
        "llama",
        layers=30,
        embedding=576,
        heads=9,
        kv=3,
        length=64,
        feed=1536,
        vocabulary=49152,
        context=8192,
        tied=True,
    )


def _llama31_8b() -> GgufDraft:
    return _dense(
        "llama", layers=32, embedding=4096, heads=32, kv=8, length=128, feed=14336, vocabulary=128256, context=131072
    )


def _qwen25_05b() -> GgufDraft:
    return _dense(
        "qwen2",
        layers=24,
        embedding=896,
        heads=14,
        kv=2,
        length=64,
        feed=4864,
        vocabulary=151936,
        context=32768,
        tied=True,
        biases=True,
    )


def _qwen3_06b() -> GgufDraft:
    return _dense(
        "qwen3", layers=28, embedding=1024, heads=16, kv=8, length=128, feed=3072, vocabulary=151936, context=40960, tied=True,
        extra=("attn_q_norm", "attn_k_norm"),
    )  # fmt: skip


def _qwen3_8b() -> GgufDraft:
    return _dense(
        "qwen3", layers=36, embedding=4096, heads=32, kv=8, length=128, feed=12288, vocabulary=151936, context=40960,
        extra=("attn_q_norm", "attn_k_norm"),
    )  # fmt: skip


def _qwen3_30b_a3b() -> GgufDraft:
    numbers = {
        "block_count": 48, "context_length": 40960, "embedding_length": 2048, "feed_forward_length": 6144, "attention.head_count": 32,
        "attention.head_count_kv": 4, "attention.key_length": 128, "attention.value_length": 128, "rope.dimension_count": 128,
        "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768,
    }  # fmt: skip
    draft = _base("qwen3moe", 151936, numbers)
    _ends(draft, 2048, 151936, tied=False)
    for index in range(48):
        _attention(draft, f"blk.{index}", 2048, 32, 4, 128, extra=("attn_q_norm", "attn_k_norm"))
        _experts(draft, f"blk.{index}", 2048, 768, 128)
    return draft


def _gemma2_9b() -> GgufDraft:
    return _dense(
        "gemma2", layers=42, embedding=3584, heads=16, kv=8, length=256, feed=14336, vocabulary=256000, context=8192, tied=True,
        extra=("post_attention_norm", "post_ffw_norm"), numbers={"attention.sliding_window": 4096},
    )  # fmt: skip


def _gemma3_4b() -> GgufDraft:
    return _dense(
        "gemma3", layers=34, embedding=2560, heads=8, kv=4, length=256, feed=10240, vocabulary=262208, context=131072, tied=True,
        extra=("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"), numbers={"attention.sliding_window": 1024},
    )  # fmt: skip


def _gpt_oss_20b() -> GgufDraft:
    numbers = {
        "block_count": 24, "context_length": 131072, "embedding_length": 2880, "feed_forward_length": 2880, "attention.head_count": 64,
        "attention.head_count_kv": 8, "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": 32, "expert_used_count": 4, "expert_feed_forward_length": 2880,
        "attention.sliding_window": 128,
    }  # fmt: skip
    draft = _base("gpt-oss", 201088, numbers)
    _ends(draft, 2880, 201088, tied=False)
    for index in range(24):
        block = f"blk.{index}"
        _attention(draft, block, 2880, 64, 8, 64)
        for name, width in (
            ("attn_q", 4096),
            ("attn_k", 512),
            ("attn_v", 512),
            ("attn_output", 2880),
            ("ffn_gate_inp", 32),
        ):
            draft.add(f"{block}.{name}.bias", width)
        draft.add(f"{block}.attn_sinks.weight", 64)
        _experts(draft, block, 2880, 2880, 32, norm="post_attention_norm")
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
            draft.add(f"{block}.{name}.bias", 2880, 32, kind=F32)
    return draft


def _deepseek_v2_lite() -> GgufDraft:
    numbers = {
        "block_count": 27, "context_length": 163840, "embedding_length": 2048, "feed_forward_length": 10944, "attention.head_count": 16,
        "attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "leading_dense_block_count": 1,
        "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": 64, "expert_used_count": 6, "expert_feed_forward_length": 1408,
        "expert_shared_count": 2, "expert_weights_scale": 1.0,
    }  # fmt: skip
    draft = _base("deepseek2", 102400, numbers)
    _ends(draft, 2048, 102400, tied=False)
    for index in range(27):
        block = f"blk.{index}"
        draft.add(f"{block}.attn_norm.weight", 2048)
        draft.add(f"{block}.attn_kv_a_norm.weight", 512)
        draft.add(f"{block}.attn_q.weight", 2048, 16 * 192)
        draft.add(f"{block}.attn_kv_a_mqa.weight", 2048, 576)
        draft.add(f"{block}.attn_k_b.weight", 128, 512, 16)
        draft.add(f"{block}.attn_v_b.weight", 512, 128, 16)
        draft.add(f"{block}.attn_output.weight", 16 * 128, 2048)
        if index == 0:
            _feed_forward(draft, block, 2048, 10944)
        else:
            _experts(draft, block, 2048, 1408, 64)
            for name, shape in (("gate", (2048, 2816)), ("up", (2048, 2816)), ("down", (2816, 2048))):
                draft.add(f"{block}.ffn_{name}_shexp.weight", *shape)
    return draft


def _mamba_130m() -> GgufDraft:
    numbers = {
        "block_count": 24, "context_length": 1048576, "embedding_length": 768, "feed_forward_length": 0, "attention.head_count": 0,
        "ssm.conv_kernel": 4, "ssm.inner_size": 1536, "ssm.state_size": 16, "ssm.time_step_rank": 48,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    draft = _base("mamba", 50280, numbers)
    _ends(draft, 768, 50280, tied=True)
    for index in range(24):
        block = f"blk.{index}"
        draft.add(f"{block}.attn_norm.weight", 768)
        draft.add(f"{block}.ssm_in.weight", 768, 3072)
        draft.add(f"{block}.ssm_conv1d.weight", 4, 1536, kind=F32)
        draft.add(f"{block}.ssm_conv1d.bias", 1536)
        draft.add(f"{block}.ssm_x.weight", 1536, 80)
        draft.add(f"{block}.ssm_dt.weight", 48, 1536)
        draft.add(f"{block}.ssm_dt.bias", 1536)
        draft.add(f"{block}.ssm_a", 16, 1536, kind=F32)
        draft.add(f"{block}.ssm_d", 1536)
        draft.add(f"{block}.ssm_out.weight", 1536, 768)
    return draft


def _falcon_h1_1b5() -> GgufDraft:
    inner, state, groups, ranks = 3072, 256, 1, 48
    draft = _dense(
        "falcon-h1", layers=24, embedding=2048, heads=8, kv=2, length=128, feed=4096, vocabulary=65536, context=131072, norm="ffn_norm",
        numbers={
            "ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": ranks, "ssm.group_count": groups
        },
    )  # fmt: skip
    conv = inner + 2 * groups * state
    for index in range(24):
        block = f"blk.{index}"
        draft.add(f"{block}.ssm_in.weight", 2048, inner + conv + ranks)
        draft.add(f"{block}.ssm_conv1d.weight", 4, conv, kind=F32)
        draft.add(f"{block}.ssm_dt.bias", ranks)
        draft.add(f"{block}.ssm_a", 1, ranks, kind=F32)
        draft.add(f"{block}.ssm_d", 1, ranks, kind=F32)
        draft.add(f"{block}.ssm_out.weight", inner, 2048)
    return draft


def _lfm2_1b2() -> GgufDraft:
    attends = {2, 5, 8, 10, 12, 14}
    numbers = {
        "block_count": 16, "context_length": 128000, "embedding_length": 2048, "feed_forward_length": 8192, "attention.head_count": 32,
        "attention.head_count_kv": [8 if index in attends else 0 for index in range(16)], "attention.layer_norm_rms_epsilon": 1e-5,
        "shortconv.l_cache": 3,
    }  # fmt: skip
    draft = _base("lfm2", 65536, numbers)
    draft.add("token_embd.weight", 2048, 65536)
    draft.add("token_embd_norm.weight", 2048)
    for index in range(16):
        block = f"blk.{index}"
        if index in attends:
            _attention(draft, block, 2048, 32, 8, 64, extra=("attn_q_norm", "attn_k_norm"))
        else:
            draft.add(f"{block}.attn_norm.weight", 2048)
            draft.add(f"{block}.shortconv.conv.weight", 3, 2048, kind=F32)
            draft.add(f"{block}.shortconv.in_proj.weight", 2048, 6144)
            draft.add(f"{block}.shortconv.out_proj.weight", 2048, 2048)
        _feed_forward(draft, block, 2048, 8192)
    return draft


MODELS: Mapping[str, GgufDraft] = {
    "smollm2-135m": _smollm2_135m(),
    "llama-3.1-8b": _llama31_8b(),
    "qwen2.5-0.5b": _qwen25_05b(),
    "qwen3-0.6b": _qwen3_06b(),
    "qwen3-8b": _qwen3_8b(),
    "qwen3-30b-a3b": _qwen3_30b_a3b(),
    "gemma2-9b": _gemma2_9b(),
    "gemma3-4b": _gemma3_4b(),
    "gpt-oss-20b": _gpt_oss_20b(),
    "deepseek-v2-lite": _deepseek_v2_lite(),
    "mamba-130m": _mamba_130m(),
    "falcon-h1-1.5b": _falcon_h1_1b5(),
    "lfm2-1.2b": _lfm2_1b2(),
}
"""Real models by geometry; quantised uniformly, so their weights are near those of a Q4_K file and not those of any published one."""
