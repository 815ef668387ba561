"""How much memory one llama.cpp process takes: arithmetic over a `ModelShape` and how it is launched. Pure.

Three parts, as the engine itself counts them. *Weights* are what the tensors take. The *context* is what is kept of tokens and sequences:
per layer `row × cells × slots` in the type of the cache, where cells are the context of one slot in whole 256s, and those of a layer with a
window no more than the window and one batch. What a context computes in (*compute*) is an upper bound, since the engine reuses buffers by
rules of its own. Around it stands the process: program, vocabulary, and checkpoints of contexts that cannot be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sbctl.artifacts.formats.ggml_types import row_bytes
from sbctl.artifacts.formats.shape import Certainty, LayerShape, ModelShape, least_certain
from sbctl.base.limits import MIB

__all__ = ["CONTEXT_CHECKPOINTS", "LaunchShape", "MemoryNeed", "need_of", "with_margin"]

CONTEXT_CHECKPOINTS: Final = 4
"""Kept of each slot, of a context that cannot be rolled back (windows, states). The engine's own 32 would be gigabytes that nobody planned."""
_CELLS_STEP: Final = 256
_PROCESS_BYTES: Final = 64 * MIB
_TOKEN_BYTES: Final = 512
"""Of a vocabulary in the process, for each token: its text, its place in tables, its merges."""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What of a launch decides about memory, as the flags of llama-server mean it.

    `context_length` is of one slot. `unified`: the slots share one cache, instead of each having its own. `device_layers`: so many of the
    last layers lie on a device, the output among them (`--n-gpu-layers`). `logit_rows`: tokens whose logits a batch may ask for; None: one
    of each slot. `checkpoints`: of each slot, of a context that cannot be rolled back (`--ctx-checkpoints`).
    """

    context_length: int
    slots: int = 1
    key_type: str = "f16"
    value_type: str = "f16"
    ubatch: int = 512
    unified: bool = False
    full_window: bool = False
    flash_attention: bool = True
    device_layers: int = 0
    logit_rows: int | None = None
    checkpoints: int = 0

    @property
    def cells(self) -> int:
        """Tokens that one stream of the cache holds."""
        total = _padded(self.context_length * self.slots)
        return total if self.unified else _padded(total // self.slots)

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.slots

    def window_cells(self, window: int) -> int:
        """The same, of a layer that only keeps a window."""
        if self.full_window:
            return self.cells
        return _padded(min(self.cells, window * (self.slots if self.unified else 1) + self.ubatch))


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of one process. The device's part is 0 without offloading. `certainty` is of the whole, `reason` why it is not exact."""

    weights: int
    context: int
    compute: int
    process: int
    checkpoints: int = 0
    device_weights: int = 0
    device_context: int = 0
    device_compute: int = 0
    certainty: Certainty = "upper_bound"
    reason: str = ""
    on_device: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Weights and context of each layer that lies on devices, in their order; the output last."""

    @property
    def host_bytes(self) -> int:
        return self.weights + self.context + self.compute + self.process + self.checkpoints

    @property
    def device_bytes(self) -> int:
        return self.device_weights + self.device_context + self.device_compute

    @property
    def total_bytes(self) -> int:
        return self.host_bytes + self.device_bytes

    def largest_part(self, devices: int) -> int:
        """Of one of several devices, at most. Layers go to them in their order, as many to each as to the next, the output counting as one;
        rows of matrices may be split more evenly. What a batch is computed in is needed on each."""
        weights, context = [0] * devices, [0] * devices
        for index, (weight_bytes, kept_bytes) in enumerate(self.on_device):
            device = index * devices // len(self.on_device)
            weights[device] += weight_bytes
            context[device] += kept_bytes
        return max(weights) + max(context) + self.device_compute


def with_margin(need_bytes: int, safety_margin: float) -> int:
    """A need with the part that is left free on top, as SBproxy rounds it."""
    return need_bytes + int(need_bytes * safety_margin)


def need_of(shape: ModelShape, launch: LaunchShape) -> MemoryNeed:
    """What a process takes. Never less for more context, slots or a wider type."""
    on_device = launch.device_layers > 0
    below = max(0, shape.layer_count + 1 - launch.device_layers)
    """Layers that stay on the host; the output counts as one behind them."""
    host_weights, host_context, device_weights, device_context = shape.input_bytes, 0, 0, 0
    checkpoint = 0
    on_devices: list[tuple[int, int]] = []
    for index, layer in enumerate(_each(shape)):
        kept = _kept_bytes(shape, layer, launch)
        checkpoint += _checkpoint_bytes(shape, layer, launch)
        if index < below:
            host_weights += layer.weight_bytes
            host_context += kept
        else:
            device_weights += layer.weight_bytes
            device_context += kept
            on_devices.append((layer.weight_bytes, kept))
    if on_device:
        device_weights += shape.output_bytes + shape.tied_bytes
        on_devices.append((shape.output_bytes + shape.tied_bytes, 0))
    else:
        host_weights += shape.output_bytes
    compute = _compute_bytes(shape, launch)
    return MemoryNeed(
        weights=host_weights,
        context=host_context + _output_bytes(shape, launch),
        compute=compute,
        process=_PROCESS_BYTES + shape.vocabulary * _TOKEN_BYTES,
        checkpoints=checkpoint * launch.checkpoints * launch.slots,
        device_weights=device_weights,
        device_context=device_context,
        device_compute=compute if on_device else 0,
        certainty=least_certain("upper_bound", shape.certainty),
        reason=shape.reason,
        on_device=tuple(on_devices),
    )


def _padded(tokens: int) -> int:
    return -(-tokens // _CELLS_STEP) * _CELLS_STEP


def _each(shape: ModelShape) -> Iterator[LayerShape]:
    for layer in shape.layers:
        for _ in range(layer.repeat):
            yield layer


def _kept_bytes(shape: ModelShape, layer: LayerShape, launch: LaunchShape) -> int:
    if not shape.has_cache:
        return 0
    cells = launch.window_cells(shape.window) if layer.windowed else launch.cells
    row = row_bytes(launch.key_type, layer.key_row) + row_bytes(launch.value_type, layer.value_row)
    return row * cells * launch.streams + layer.state_row * 4 * launch.slots


def _checkpoint_bytes(shape: ModelShape, layer: LayerShape, launch: LaunchShape) -> int:
    """One checkpoint of one slot: what cannot be had back by forgetting the newest tokens."""
    if not shape.has_cache or not (layer.windowed or layer.state_row):
        return 0
    row = row_bytes(launch.key_type, layer.key_row) + row_bytes(launch.value_type, layer.value_row)
    return (row * min(launch.window_cells(shape.window), launch.cells) if layer.windowed else 0) + layer.state_row * 4


def _output_bytes(shape: ModelShape, launch: LaunchShape) -> int:
    return launch.slots * 4 * (shape.vocabulary + shape.embedding)


def _compute_bytes(shape: ModelShape, launch: LaunchShape) -> int:
    """Of one batch: masks (and scores without flash attention), what stands between matrices, logits."""
    tokens = launch.ubatch
    attends = any(layer.key_row for layer in shape.layers)
    windowed = any(layer.windowed for layer in shape.layers)
    cells = launch.cells if attends or not shape.has_cache else 0
    masks = tokens * (cells + (launch.window_cells(shape.window) if windowed else 0)) * 6
    scores = 0 if launch.flash_attention else tokens * cells * shape.heads * 8
    state = max((layer.state_row for layer in shape.layers), default=0) * 4 * launch.slots
    widest = max(
        3 * shape.attention_row, 3 * shape.feed_forward + 2 * shape.experts_used * shape.embedding, 8 * shape.inner
    )
    between = tokens * 4 * (6 * shape.embedding + widest)
    rows = launch.slots if launch.logit_rows is None else launch.logit_rows
    return masks + scores + 2 * state + between + rows * 4 * shape.vocabulary
