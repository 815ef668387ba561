"""Memory of one llama.cpp process: what the engine itself said of the same geometry, and what must never go the wrong way."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.artifacts.formats.architectures import model_shape, read_shape
from sbctl.artifacts.formats.ggml_types import CACHE_TYPES, tensor_bytes
from sbctl.artifacts.formats.gguf import GgufHeader, GgufTensor, parse_gguf
from sbctl.artifacts.formats.shape import ModelShape
from sbctl.base.limits import MIB
from sbctl.engines.fit import LaunchShape, need_of, with_margin
from tests.simulators.bert_files import bert_gguf
from tests.simulators.gguf_files import MODELS, GgufDraft


@cache
def shape(name: str) -> ModelShape:
    found = model_shape([header_of(MODELS[name])])
    assert found is not None
    return found


def header_of(draft: GgufDraft) -> GgufHeader:
    """As a file with all its data would be read."""
    empty = replace(draft, tensors=[])
    read = parse_gguf(empty.data())
    tensors = tuple(
        GgufTensor(name, dimensions, kind, 0, tensor_bytes(kind, dimensions) or 0)
        for name, dimensions, kind in draft.tensors
    )
    return replace(read, tensors=tensors)


ENGINE_SAYS = [
    ("smollm2-135m", 4096, 1, "f16", 90, 18.83),
    ("smollm2-135m", 8192, 4, "q8_0", 382, 23.42),
    ("smollm2-135m", 32768, 1, "f16", 720, 46.83),
    ("llama-3.1-8b", 4096, 1, "f16", 512, 128.51),
    ("llama-3.1-8b", 8192, 4, "q8_0", 2176, 134.06),
    ("llama-3.1-8b", 32768, 1, "f16", 4096, 156.51),
    ("qwen2.5-0.5b", 8192, 4, "q8_0", 204, 47.62),
    ("qwen2.5-0.5b", 32768, 1, "f16", 384, 69.85),
    ("qwen3-0.6b", 8192, 4, "q8_0", 1904, 38.42),
    ("qwen3-8b", 32768, 1, "f16", 4608, 144.6),
    ("qwen3-30b-a3b", 8192, 4, "q8_0", 1632, 98.42),
    ("gemma2-9b", 4096, 1, "f16", 1344, 128.01),
    ("gemma2-9b", 8192, 4, "q8_0", 4462, 135.97),
    ("gemma2-9b", 32768, 1, "f16", 6132, 156.51),
    ("gemma3-4b", 4096, 1, "f16", 254, 91.53),
    ("gemma3-4b", 8192, 4, "q8_0", 709, 99.06),
    ("gemma3-4b", 32768, 1, "f16", 814, 119.53),
    ("gpt-oss-20b", 4096, 1, "f16", 114, 101.17),
    ("gpt-oss-20b", 8192, 4, "q8_0", 446, 107.53),
    ("gpt-oss-20b", 32768, 1, "f16", 786, 129.17),
    ("deepseek-v2-lite", 8192, 4, "q8_0", 516, 93.7),
    ("deepseek-v2-lite", 32768, 1, "f16", 972, 116.53),
    ("mamba-130m", 4096, 1, "f16", 2, 22.81),
    ("mamba-130m", 8192, 4, "q8_0", 10, 23.72),
    ("lfm2-1.2b", 8192, 4, "q8_0", 204, 77.05),
    ("lfm2-1.2b", 32768, 1, "f16", 384, 100.27),
]
"""Model, context of a slot, slots, type of the cache, MiB of context and of compute with output, as xllamacpp 2026.10.11549 reported them
without allocating (`--fit on`, whole MiB of context)."""


@pytest.mark.parametrize(("name", "context", "slots", "kind", "context_mib", "compute_mib"), ENGINE_SAYS)
def test_fault_38_the_context_is_what_the_engine_allocates_and_compute_is_never_less(
    name: str, context: int, slots: int, kind: str, context_mib: int, compute_mib: float
) -> None:
    model = shape(name)
    need = need_of(model, LaunchShape(context, slots, kind, kind))
    output = slots * 4 * (model.vocabulary + model.embedding)
    assert int((need.context - output) / MIB) == context_mib
    assert compute_mib * MIB <= need.compute + output < compute_mib * MIB * 2.6
    assert model.certainty == "exact"
    assert need.certainty == "upper_bound"


RESIDENT = [(512, 1, "f16", 164_800), (4096, 2, "f16", 337_648), (8192, 4, "f16", 890_680), (8192, 4, "q8_0", 545_180)]
"""Context of a slot, slots, type, KiB that a process with SmolLM2-135M-Instruct.Q4_1 (96,576,768 bytes of tensors) had at most, after a
warm-up, of which 81 MiB are the same at every context."""


@pytest.mark.parametrize(("context", "slots", "kind", "resident_kib"), RESIDENT)
def test_a_real_process_stays_below_the_estimate_and_within_a_third_of_it(
    context: int, slots: int, kind: str, resident_kib: int
) -> None:
    real = shape("smollm2-135m").model_copy(
        update={
            "layers": (shape("smollm2-135m").layers[0].model_copy(update={"weight_bytes": 2_216_448}),),
            "input_bytes": 30_081_024,
        }
    )
    need = need_of(real, LaunchShape(context, slots, kind, kind))
    assert resident_kib * 1024 <= need.host_bytes <= resident_kib * 1024 * 1.33


def test_the_arithmetic_of_the_reference_holds() -> None:
    """A recorded example of SBproxy: Qwen3-0.6B with one slot of 40,960 tokens, and its margin of a tenth."""
    need = need_of(shape("qwen3-0.6b"), LaunchShape(40_960))
    assert need.context - 4 * (151_936 + 1024) == 4_697_620_480
    assert with_margin(1_074_528_256 + 4_697_620_480 + 865_822_310, 0.10) == 7_301_768_150


@pytest.mark.parametrize(
    ("context", "slots", "unified", "cells", "streams"),
    [
        (4096, 1, False, 4096, 1),
        (100, 3, False, 256, 3),
        (257, 3, False, 512, 3),
        (4096, 4, True, 16384, 1),
        (1000, 4, True, 4096, 1),
        (1, 1, False, 256, 1),
    ],
)
def test_cells_are_counted_as_llama_cpp_does(context: int, slots: int, unified: bool, cells: int, streams: int) -> None:
    launch = LaunchShape(context, slots, unified=unified)
    assert (launch.cells, launch.streams) == (cells, streams)


def test_a_window_keeps_itself_and_one_batch() -> None:
    assert LaunchShape(32_768).window_cells(128) == 768
    assert LaunchShape(512).window_cells(128) == 512
    assert LaunchShape(32_768, 4, unified=True).window_cells(128) == 1024
    assert LaunchShape(32_768, full_window=True).window_cells(128) == 32_768


def test_layers_on_a_device_leave_the_host() -> None:
    model = shape("qwen3-8b")
    whole = need_of(model, LaunchShape(8192))
    parts = [need_of(model, LaunchShape(8192, device_layers=count)) for count in range(1, model.layer_count + 2)]
    assert all(part.weights + part.device_weights == whole.weights for part in parts)
    assert parts[-1].device_context == whole.context - 4 * (model.vocabulary + model.embedding)
    assert parts[-1].weights == model.input_bytes
    assert [part.device_weights for part in parts] == sorted(part.device_weights for part in parts)


def test_the_table_of_tokens_lies_on_the_device_a_second_time_where_it_is_the_output() -> None:
    model = shape("qwen3-0.6b")
    need = need_of(model, LaunchShape(8192, device_layers=99))
    assert need.weights + need.device_weights == model.weight_bytes + model.tied_bytes


def test_experts_are_told_apart() -> None:
    model = shape("qwen3-30b-a3b")
    assert 0.9 < model.expert_bytes / model.weight_bytes < 1
    assert shape("qwen3-8b").expert_bytes == 0


LAUNCHES = st.builds(
    LaunchShape,
    context_length=st.integers(1, 200_000),
    slots=st.integers(1, 16),
    key_type=st.sampled_from(sorted(CACHE_TYPES)),
    value_type=st.sampled_from(sorted(CACHE_TYPES)),
    ubatch=st.sampled_from((64, 512, 2048)),
    unified=st.booleans(),
    full_window=st.booleans(),
    flash_attention=st.booleans(),
    device_layers=st.integers(0, 64),
    checkpoints=st.sampled_from((0, 8, 32)),
)


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(sorted(MODELS)), launch=LAUNCHES, more=st.integers(1, 100_000))
def test_more_never_needs_less(name: str, launch: LaunchShape, more: int) -> None:
    model = shape(name)
    need = need_of(model, launch)
    wider = [
        replace(launch, context_length=launch.context_length + more),
        replace(launch, slots=launch.slots + 1),
        replace(launch, key_type="f32"),
        replace(launch, value_type="f32"),
        replace(launch, ubatch=launch.ubatch * 2),
        replace(launch, full_window=True),
        replace(launch, flash_attention=False),
        replace(launch, checkpoints=launch.checkpoints + 1),
    ]
    for other in wider:
        assert need_of(model, other).total_bytes >= need.total_bytes, other
    assert min(need.weights, need.context, need.compute, need.process, need.device_bytes) >= 0
    assert need.total_bytes == need.host_bytes + need.device_bytes


UNSURE = [
    ("brandnew", {"attention.head_count": 4}, "upper_bound"),
    ("brandnew", {"attention.head_count": 4, "ssm.inner_size": 8}, "unknown"),
    ("deepseek4", {"attention.head_count": 4, "attention.compress_ratios": [4, 128]}, "unknown"),
    ("t5", {"attention.head_count": 4, "decoder_block_count": 2}, "unknown"),
    ("glm-dsa", {"attention.head_count": 4, "attention.indexer.key_length": 64}, "upper_bound"),
    ("qwen3moe", {"attention.head_count": 4, "nextn_predict_layers": 1}, "upper_bound"),
    ("llama", {"attention.head_count": 4}, "exact"),
    ("bert", {"attention.head_count": 4}, "exact"),
]


@pytest.mark.parametrize(("architecture", "numbers", "certainty"), UNSURE)
def test_what_is_not_understood_is_said(architecture: str, numbers: dict[str, object], certainty: str) -> None:
    keys = {
        f"{architecture}.{name}": value for name, value in {"block_count": 2, "embedding_length": 64, **numbers}.items()
    }
    model = model_shape([parse_gguf(GgufDraft({"general.architecture": architecture, **keys}).data())])
    assert model is not None
    assert model.certainty == certainty
    assert bool(model.reason) == (certainty != "exact")
    assert (need_of(model, LaunchShape(1024)).certainty == "unknown") == (certainty == "unknown")


KEPT = [
    ("gemma3n", {"block_count": 30, "attention.sliding_window": 512}, (20, 16)),
    ("gemma4", {"block_count": 4, "attention.sliding_window": 512, "attention.shared_kv_layers": 1,
                "attention.sliding_window_pattern": [True, True, False, True]}, (3, 2)),
    ("llama4", {"block_count": 8}, (8, 6)),
    ("llama4", {"block_count": 8, "attention.sliding_window": 0}, (8, 0)),
    ("smallthinker", {"block_count": 8, "attention.sliding_window": 64}, (8, 6)),
    ("qwen3next", {"block_count": 8, "ssm.inner_size": 64, "ssm.state_size": 4}, (2, 0)),
    ("falcon-h1", {"block_count": 4, "ssm.inner_size": 64, "ssm.state_size": 4}, (4, 0)),
    ("rwkv7", {"block_count": 4, "wkv.head_size": 8}, (0, 0)),
    ("jamba", {"block_count": 4, "attention.head_count_kv": [0, 0, 2, 0], "ssm.inner_size": 64, "ssm.state_size": 4}, (1, 0)),
    ("nemotron_h", {"block_count": 3, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 64, 0], "ssm.inner_size": 64,
                    "ssm.state_size": 4}, (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "numbers", "expected"), KEPT)
def test_each_architecture_keeps_what_its_layers_say(
    architecture: str, numbers: dict[str, object], expected: tuple[int, int]
) -> None:
    keys = {
        f"{architecture}.{name}": value
        for name, value in {"embedding_length": 64, "attention.head_count": 4, **numbers}.items()
    }
    model = model_shape([parse_gguf(GgufDraft({"general.architecture": architecture, **keys}).data())])
    assert model is not None
    attending = sum(layer.repeat for layer in model.layers if layer.key_row)
    windowed = sum(layer.repeat for layer in model.layers if layer.windowed)
    assert (attending, windowed) == expected
    keeps_state = sum(layer.repeat for layer in model.layers if layer.state_row)
    states = {"qwen3next": 6, "falcon-h1": 4, "rwkv7": 4, "jamba": 3, "nemotron_h": 1}
    assert keeps_state == states.get(architecture, 0)


@pytest.mark.parametrize(
    "keys", [{}, {"general.architecture": "llama"}, {"general.architecture": "llama", "llama.block_count": 1 << 30}]
)
def test_a_header_without_a_model_has_no_shape(keys: dict[str, object]) -> None:
    assert model_shape([parse_gguf(GgufDraft(dict(keys)).data())]) is None


def test_fault_67_a_model_without_a_cache_is_charged_none(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    path.write_bytes(bert_gguf(ranks=False))
    shape = read_shape([path])
    assert shape is not None
    need = need_of(shape, LaunchShape(512, slots=4, ubatch=512))
    assert need.context < 64 * 1024, "what four slots give back, and no row of a cache"
    assert need.weights < path.stat().st_size


@given(name=st.sampled_from(sorted(MODELS)), devices=st.integers(1, 12))
def test_a_part_of_a_split_model_is_never_less_than_its_share_and_all_parts_hold_it(name: str, devices: int) -> None:
    need = need_of(shape(name), LaunchShape(4096, slots=2, device_layers=1 << 20))
    part = need.largest_part(devices)
    assert sum(weights + kept for weights, kept in need.on_device) == need.device_weights + need.device_context
    assert part * devices >= need.device_bytes
    assert need.device_compute <= part <= need.device_bytes
    assert need.largest_part(1) == need.device_bytes


def test_layers_go_to_devices_as_the_engine_deals_them_out() -> None:
    """31 layers and the output on two devices: the first 16, and the other 15 with the output."""
    need = need_of(shape("qwen3-0.6b"), LaunchShape(4096, device_layers=1 << 20))
    count = len(need.on_device)
    dealt = [[each for index, each in enumerate(need.on_device) if int(index / count * 2) == half] for half in (0, 1)]
    most = max(sum(w for w, _ in half) for half in dealt) + max(sum(k for _, k in half) for half in dealt)
    assert need.largest_part(2) == most + need.device_compute
