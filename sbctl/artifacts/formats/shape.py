"""A model as far as memory goes: what each layer weighs and what it keeps of every token or sequence. Small, and all that a planner needs.

Made from a GGUF header by `model_shape`, written into a catalog, told by a node of what lies in its cache. How an architecture uses its
numbers is in `architectures`; what a context of some size then takes is the engine's business (`engines.fit`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from sbctl.base.field_types import Block, Items
from sbctl.base.limits import JSON_INT_MAX

__all__ = ["Certainty", "LayerShape", "ModelShape", "least_certain"]

Certainty = Literal["exact", "upper_bound", "unknown"]
"""exact: what the engine takes; upper_bound: it takes no more; unknown: something of this model is not understood."""

_ORDER: Final[tuple[Certainty, ...]] = ("exact", "upper_bound", "unknown")
_Bytes = Annotated[int, Field(ge=0, le=JSON_INT_MAX)]
_Row = Annotated[int, Field(ge=0, le=1 << 32)]
_LAYERS_MAX: Final = 4096


def least_certain(*parts: Certainty) -> Certainty:
    """What may be said of a sum."""
    return max(parts, key=_ORDER.index)


class LayerShape(Block):
    """Equal layers in a row. Rows are counts of numbers, not bytes: their type is chosen when the model is served."""

    noun: ClassVar[str] = "a layer of a model"

    repeat: int = Field(default=1, ge=1, le=_LAYERS_MAX, description="How many such layers follow each other.")
    weight_bytes: _Bytes = Field(default=0, description="What the tensors of one take.")
    expert_bytes: _Bytes = Field(default=0, description="Of weight_bytes, what belongs to experts.")
    key_row: _Row = Field(default=0, description="Numbers kept of each token for keys; 0: it keeps none.")
    value_row: _Row = Field(default=0, description="Numbers kept of each token for values.")
    windowed: bool = Field(default=False, description="It keeps no more tokens than the model's window.")
    state_row: _Row = Field(
        default=0, description="32-bit numbers kept of each sequence, however long the sequence is."
    )


class ModelShape(Block):
    """One model's weights, layers in their order."""

    noun: ClassVar[str] = "the shape of a model"

    architecture: str = Field(min_length=1, max_length=64, description="As the engine calls it.")
    context_length: _Bytes = Field(default=0, description="Tokens that it was trained for; 0: not said.")
    embedding: int = Field(ge=1, le=1 << 24, description="Numbers of one token between layers.")
    vocabulary: int = Field(ge=0, le=1 << 28, description="Tokens that it knows.")
    attention_row: _Row = Field(default=0, description="Numbers of one token's queries in the widest layer.")
    heads: int = Field(default=0, ge=0, le=1 << 20, description="Heads of attention in the widest layer.")
    feed_forward: _Row = Field(
        default=0, description="Numbers of one token inside of the widest layer; of experts, all that work on it."
    )
    inner: _Row = Field(default=0, description="Numbers of one token inside of a layer that keeps a state.")
    experts: int = Field(default=0, ge=0, le=1 << 16, description="Experts of one layer.")
    experts_used: int = Field(default=0, ge=0, le=1 << 16, description="Experts that work on one token.")
    window: _Bytes = Field(default=0, description="Tokens that a windowed layer sees.")
    has_cache: bool = Field(default=True, description="Whether a context keeps anything; encoders keep nothing.")
    layers: Items[LayerShape] = Field(min_length=1, max_length=_LAYERS_MAX, description="Layers in their order.")
    input_bytes: _Bytes = Field(default=0, description="What stands before the first layer.")
    output_bytes: _Bytes = Field(default=0, description="What stands behind the last layer.")
    tied_bytes: _Bytes = Field(default=0, description="Of input_bytes, what also is the output.")
    certainty: Certainty = Field(default="exact", description="How sure weights and what is kept are.")
    reason: str = Field(default="", max_length=256, description="Why they are not exact.")

    @property
    def layer_count(self) -> int:
        return sum(layer.repeat for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """Of all tensors."""
        return self.input_bytes + self.output_bytes + sum(layer.repeat * layer.weight_bytes for layer in self.layers)

    @property
    def expert_bytes(self) -> int:
        """Of all experts."""
        return sum(layer.repeat * layer.expert_bytes for layer in self.layers)
