"""Sizes of ggml's number formats: elements and bytes of one block (ggml, `ggml_type`). One table for weights and for the cache of a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["CACHE_TYPES", "row_bytes", "tensor_bytes"]

_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4),  # f32
    1: (1, 2),  # f16
    2: (32, 18),  # q4_0
    3: (32, 20),  # q4_1
    6: (32, 22),  # q5_0
    7: (32, 24),  # q5_1
    8: (32, 34),  # q8_0
    9: (32, 36),  # q8_1
    10: (256, 84),  # q2_k
    11: (256, 110),  # q3_k
    12: (256, 144),  # q4_k
    13: (256, 176),  # q5_k
    14: (256, 210),  # q6_k
    15: (256, 292),  # q8_k
    16: (256, 66),  # iq2_xxs
    17: (256, 74),  # iq2_xs
    18: (256, 98),  # iq3_xxs
    19: (256, 50),  # iq1_s
    20: (32, 18),  # iq4_nl
    21: (256, 110),  # iq3_s
    22: (256, 82),  # iq2_s
    23: (256, 136),  # iq4_xs
    24: (1, 1),  # i8
    25: (1, 2),  # i16
    26: (1, 4),  # i32
    27: (1, 8),  # i64
    28: (1, 8),  # f64
    29: (256, 56),  # iq1_m
    30: (1, 2),  # bf16
    34: (256, 54),  # tq1_0
    35: (256, 66),  # tq2_0
    39: (32, 17),  # mxfp4
}
"""Number of a type → elements of a block, bytes of a block."""

CACHE_TYPES: Final[Mapping[str, int]] = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "iq4_nl": 20, "q5_0": 6, "q5_1": 7
}  # fmt: skip
"""What `--cache-type-k` and `--cache-type-v` take."""


def tensor_bytes(type_number: int, dimensions: Sequence[int]) -> int | None:
    """Bytes of a tensor, innermost dimension first; None for a type that is not in the table, -1 where a row is no whole number of blocks."""
    block = _BLOCKS.get(type_number)
    if block is None:
        return None
    elements, size = block
    row = dimensions[0] if dimensions else 1
    if row % elements:
        return -1
    total = row // elements * size
    for dimension in dimensions[1:]:
        total *= dimension
    return total


def row_bytes(cache_type: str, elements: int) -> int:
    """Bytes of one row of the cache. A row that is no whole number of blocks counts as the next longer one."""
    per_block, size = _BLOCKS[CACHE_TYPES[cache_type]]
    return -(-elements // per_block) * size
