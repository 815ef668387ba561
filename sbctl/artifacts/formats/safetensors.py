"""The header of a safetensors file: 8 bytes of length, JSON, then tensors that cover the rest exactly (safetensors, "Format").

Our own checks, since the usual reader takes a repeated key and loads half a framework: the length against the file, the JSON by the strict
reader (no repeated key), each range against shape and type, all ranges together without hole, overlap or rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.formats.bounded import HeaderBytes
from sbctl.base import strict_json
from sbctl.base.errors import InputError
from sbctl.base.limits import SAFETENSORS_HEADER_MAX_BYTES, SAFETENSORS_TENSORS_MAX

__all__ = ["SafetensorsHeader", "read_safetensors"]

_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_METADATA: Final = "__metadata__"
_DIMENSIONS_MAX: Final = 16
_BITS_MAX: Final = 1 << 66
_KEYS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """Tensor → bytes it takes; `metadata` is what the writer added."""

    tensors: Mapping[str, int]
    metadata: Mapping[str, str]


def read_safetensors(path: Path) -> SafetensorsHeader:
    """Raises DamagedHeaderError `artifact.header_damaged`, OSError."""
    source = HeaderBytes.open(path, max_bytes=SAFETENSORS_HEADER_MAX_BYTES + 8)
    try:
        return _read(source)
    finally:
        source.close()


def _read(source: HeaderBytes) -> SafetensorsHeader:
    length = int.from_bytes(source.take(8), "little")
    if not 2 <= length <= SAFETENSORS_HEADER_MAX_BYTES:
        raise source.damaged(f"a header of {length} bytes is announced")
    text = source.take(length)
    if not text.startswith(b"{"):
        raise source.damaged("the header does not begin with {")
    try:
        document = strict_json.loads(text.rstrip(b" "), max_bytes=SAFETENSORS_HEADER_MAX_BYTES, max_depth=4)
    except InputError as error:
        raise source.damaged(f"the header is not strict JSON ({error.message})") from None
    if not isinstance(document, dict) or len(document) > SAFETENSORS_TENSORS_MAX:
        raise source.damaged("the header lists no tensors, or too many")
    metadata = document.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise source.damaged(f"{_METADATA} is no map of texts")
    ranges = [(*_range(source, name, told), name) for name, told in document.items()]
    end = 0
    for start, stop, name in sorted(ranges):
        if start != end:
            raise source.damaged(f'there is a hole or an overlap before the tensor "{name[:64]}"')
        end = stop
    if end != source.remaining:
        raise source.damaged(f"the tensors take {end} bytes and the file has {source.remaining}")
    return SafetensorsHeader({name: stop - start for start, stop, name in ranges}, metadata)


def _range(source: HeaderBytes, name: str, told: Any) -> tuple[int, int]:
    what = f'the tensor "{name[:64]}"'
    if not isinstance(told, dict) or told.keys() != _KEYS:
        raise source.damaged(f"{what} does not say dtype, shape and data_offsets")
    shape, offsets = told["shape"], told["data_offsets"]
    if not (_is_numbers(shape, _DIMENSIONS_MAX) and _is_numbers(offsets, 2) and len(offsets) == 2):
        raise source.damaged(f"{what} has a shape or offsets that are no whole numbers")
    bits = _BITS.get(told["dtype"]) if isinstance(told["dtype"], str) else None
    if bits is None:
        raise source.damaged(f"{what} has a type that there is not")
    for dimension in shape:
        bits *= dimension
        if bits > _BITS_MAX:
            raise source.damaged(f"{what} cannot have this shape")
    start, stop = offsets
    if bits % 8 or stop - start != bits // 8:
        raise source.damaged(f"{what} has {stop - start} bytes, and its shape says otherwise")
    return start, stop


def _is_numbers(value: Any, most: int) -> bool:
    return isinstance(value, list) and len(value) <= most and all(type(one) is int and one >= 0 for one in value)
