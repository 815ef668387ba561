"""A model as far as memory goes: what each layer weighs and what it keeps of every token or sequence. Small, and all that a planner needs.

Made from a GGUF header by `model_shape`, written into a catalog, told by a node of what lies in its cache. How an architecture uses its
numbers is in `architectures`; what a context of some size then takes is the engine's business (`engines.fit`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.base.limits import JSON_INT_MAX

__all__ = ["Certainty", "LayerShape", "ModelShape", "least_certain"]

Certainty = Literal["exact", "upper_bound", "unknown"]
"""exact: what the engine takes; upper_bound: it takes no more; unknown: something of this model is not understood."""

_ORDER: tuple[Certainty, ...] = ("exact", "upper_bound", "unknown")


def least_certain(*parts: Certainty) -> Certainty:
    """What may be said of a sum."""
    return max(parts, key=_ORDER.index)


class LayerShape(BaseModel):
    """`repeat` equal layers in a row. Rows are counts of numbers, not bytes: their type is chosen when the model is served."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    repeat: int = Field(default=1, ge=1, le=4096)
    weight_bytes: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    expert_bytes: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    """Of `weight_bytes`, what belongs to experts."""
    key_row: int = Field(default=0, ge=0, le=1 << 32)
    """Numbers kept of each token for keys; 0: it keeps none."""
    value_row: int = Field(default=0, ge=0, le=1 << 32)
    windowed: bool = False
    """It only keeps tokens of the model's window."""
    state_row: int = Field(default=0, ge=0, le=1 << 32)
    """32-bit numbers kept of each sequence, however long it is."""


class ModelShape(BaseModel):
    """One model's weights. `layers` in order; `input_bytes` and `output_bytes` are what stands before and behind them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    architecture: str = Field(max_length=64)
    context_length: int = Field(ge=0, le=JSON_INT_MAX)
    """Tokens that it was trained for; 0: not said."""
    embedding: int = Field(ge=1, le=1 << 24)
    vocabulary: int = Field(ge=0, le=1 << 28)
    attention_row: int = Field(default=0, ge=0, le=1 << 32)
    """Numbers of one token's queries in the widest layer."""
    heads: int = Field(default=0, ge=0, le=1 << 20)
    feed_forward: int = Field(default=0, ge=0, le=1 << 32)
    """Numbers of one token between the matrices of the widest layer; of experts, all that work on one token."""
    inner: int = Field(default=0, ge=0, le=1 << 32)
    """Numbers of one token inside of a layer that keeps a state."""
    experts: int = Field(default=0, ge=0, le=1 << 16)
    experts_used: int = Field(default=0, ge=0, le=1 << 16)
    window: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    has_cache: bool = True
    """Whether a context keeps anything; encoders keep nothing."""
    layers: tuple[LayerShape, ...] = Field(max_length=4096)
    input_bytes: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    output_bytes: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    tied_bytes: int = Field(default=0, ge=0, le=JSON_INT_MAX)
    """Of `input_bytes`, what also serves as output; a device that holds the output holds it a second time."""
    certainty: Certainty = "exact"
    """Of the weights and of what is kept."""
    reason: str = Field(default="", max_length=256)
    """Why it is not exact."""

    @property
    def layer_count(self) -> int:
        return sum(layer.repeat for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        return self.input_bytes + self.output_bytes + sum(layer.repeat * layer.weight_bytes for layer in self.layers)

    @property
    def expert_bytes(self) -> int:
        return sum(layer.repeat * layer.expert_bytes for layer in self.layers)
