"""The header of a GGUF file (ggml, "GGUF"): metadata and where tensors lie, versions 2 and 3, version 3 in both byte orders.

Nothing that the file says is believed before it was compared with what is left of the file. Arrays of numbers are passed over in one step,
arrays of strings length by length, and neither is kept unless it is short: what is wanted of a model is a few dozen numbers. As the engine
does, nested arrays, repeated keys and names, more than four dimensions and tensors outside the file are refused.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from sbctl.artifacts.formats.bounded import HeaderBytes
from sbctl.artifacts.formats.ggml_types import tensor_bytes
from sbctl.base.limits import GGUF_HEADER_MAX_BYTES, GGUF_KEYS_MAX, GGUF_STRINGS_MAX, GGUF_TENSORS_MAX

__all__ = ["GGUF_MAGIC", "ArrayInfo", "GgufHeader", "GgufTensor", "Value", "parse_gguf", "read_gguf"]

GGUF_MAGIC: Final = b"GGUF"

_KEY_MAX_BYTES: Final = 65_535
_NAME_MAX_BYTES: Final = 63
"""Of a tensor: ggml's 64 with the final NUL."""
_DIMENSIONS_MAX: Final = 4
_KEPT_TEXT_BYTES: Final = 1024
_KEPT_ELEMENTS: Final = 1024
_ALIGNMENT_DEFAULT: Final = 32
_ALIGNMENT_MAX: Final = 1 << 20
_ELEMENTS_MAX: Final = 1 << 63
_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
"""Number of a value type → how `struct` reads it."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array that was passed over: too long, or of strings."""

    count: int


Value = int | float | bool | str | tuple[int | float | bool, ...] | ArrayInfo
"""A text longer than 1 KiB ends in an ellipsis."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`dimensions` innermost first. `size_bytes` is what its type says, and of a type that is not known the room until the next tensor."""

    name: str
    dimensions: tuple[int, ...]
    type_number: int
    offset: int
    """From the beginning of the data."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    version: int
    byte_order: Literal["little", "big"]
    metadata: Mapping[str, Value]
    tensors: tuple[GgufTensor, ...]
    data_offset: int
    file_bytes: int
    unknown_types: frozenset[int] = frozenset()
    """Tensor types that this version does not know."""


def read_gguf(path: Path) -> GgufHeader:
    """Raises DamagedHeaderError `artifact.header_damaged`, OSError."""
    source = HeaderBytes.open(path, max_bytes=GGUF_HEADER_MAX_BYTES)
    try:
        return _Reader(source).read()
    finally:
        source.close()


def parse_gguf(data: bytes | BinaryIO, place: str = "<bytes>") -> GgufHeader:
    """As `read_gguf`, of bytes in memory or an open file."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    return _Reader(HeaderBytes(file, place, max_bytes=GGUF_HEADER_MAX_BYTES)).read()


class _Reader:
    def __init__(self, source: HeaderBytes) -> None:
        self._source = source
        self._order = "<"
        self._strings_left = GGUF_STRINGS_MAX
        self._count_struct = struct.Struct("<Q")

    def read(self) -> GgufHeader:
        source = self._source
        if source.take(min(4, source.remaining)) != GGUF_MAGIC:
            raise source.damaged("this is no GGUF file")
        version = self._version()
        tensor_count = self._count("tensors", GGUF_TENSORS_MAX, least_bytes=24)
        key_count = self._count("keys", GGUF_KEYS_MAX, least_bytes=13)
        metadata: dict[str, Value] = {}
        for _ in range(key_count):
            key = self._name("key", _KEY_MAX_BYTES)
            if key in metadata:
                raise source.damaged(f'the key "{key[:64]}" is there twice')
            metadata[key] = self._value(self._number("I"))
        alignment = self._alignment(metadata)
        raw = self._tensors(tensor_count)
        data_offset = source.position + (-source.position) % alignment
        if raw and data_offset > source.size:
            raise source.damaged("the file ends before its tensors")
        tensors, unknown = self._sized(raw, data_offset, alignment)
        return GgufHeader(
            version=version,
            byte_order="little" if self._order == "<" else "big",
            metadata=metadata,
            tensors=tensors,
            data_offset=data_offset,
            file_bytes=source.size,
            unknown_types=unknown,
        )

    def _version(self) -> int:
        raw = self._source.take(4)
        version = int.from_bytes(raw, "little")
        if version & 0xFFFF == 0:
            self._order = ">"
            self._count_struct = struct.Struct(">Q")
            version = int.from_bytes(raw, "big")
        if version not in ((2, 3) if self._order == "<" else (3,)):
            raise self._source.damaged(f"GGUF version {version} in this byte order is none that is read")
        return version

    def _number(self, code: str) -> int:
        layout = struct.Struct(self._order + code)
        value: int = layout.unpack(self._source.take(layout.size))[0]
        return value

    def _length(self) -> int:
        value: int = self._count_struct.unpack(self._source.take(8))[0]
        return value

    def _count(self, what: str, most: int, *, least_bytes: int) -> int:
        count = self._length()
        if count > most or count * least_bytes > self._source.remaining:
            raise self._source.damaged(f"{count} {what} are announced, more than there can be")
        return count

    def _name(self, what: str, most: int) -> str:
        length = self._length()
        if not 0 < length <= most:
            raise self._source.damaged(f"the name of a {what} has {length} bytes")
        try:
            return self._source.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self._source.damaged(f"the name of a {what} is not UTF-8") from None

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _NUMBERS:
            raise self._source.damaged(f"a value has type {kind}, which there is not")
        value = self._number(_NUMBERS[kind])
        return self._bool(value) if kind == _BOOL else value

    def _bool(self, value: int) -> bool:
        if value not in (0, 1):
            raise self._source.damaged(f"a truth value is {value}")
        return bool(value)

    def _text(self) -> str:
        length = self._length()
        kept = self._source.take(min(length, _KEPT_TEXT_BYTES)) if length <= self._source.remaining else b""
        self._source.skip(length - len(kept))
        return kept.decode("utf-8", errors="replace") + ("…" if length > len(kept) else "")

    def _array(self) -> Value:
        kind = self._number("I")
        if kind == _STRING:
            return self._strings(self._count("texts", self._strings_left, least_bytes=8))
        if kind not in _NUMBERS:
            raise self._source.damaged(
                "an array of arrays" if kind == _ARRAY else f"an array of type {kind}, which there is not"
            )
        layout = struct.Struct(self._order + _NUMBERS[kind])
        count = self._count("elements", _ELEMENTS_MAX, least_bytes=layout.size)
        if count > _KEPT_ELEMENTS:
            self._source.skip(count * layout.size)
            return ArrayInfo(count)
        numbers = struct.unpack(f"{self._order}{count}{_NUMBERS[kind]}", self._source.take(count * layout.size))
        return tuple(self._bool(number) for number in numbers) if kind == _BOOL else numbers

    def _strings(self, count: int) -> ArrayInfo:
        self._strings_left -= count
        source, unpack = self._source, self._count_struct.unpack
        for _ in range(count):
            source.skip(unpack(source.take(8))[0])
        return ArrayInfo(count)

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", _ALIGNMENT_DEFAULT)
        if type(value) is not int or not 0 < value <= _ALIGNMENT_MAX or value & (value - 1):
            raise self._source.damaged(f"general.alignment is {value!r:.40}, not a power of two up to {_ALIGNMENT_MAX}")
        return value

    def _tensors(self, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        found: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._name("tensor", _NAME_MAX_BYTES)
            if name in found:
                raise self._source.damaged(f'the tensor "{name}" is there twice')
            rank = self._number("I")
            if rank > _DIMENSIONS_MAX:
                raise self._source.damaged(f'the tensor "{name}" has {rank} dimensions')
            dimensions = tuple(self._length() for _ in range(rank))
            elements = 1
            for dimension in dimensions:
                elements *= dimension
            if not 0 < elements < _ELEMENTS_MAX:
                raise self._source.damaged(f'the tensor "{name}" cannot have the shape {dimensions}')
            found[name] = (name, dimensions, self._number("I"), self._length())
        return list(found.values())

    def _sized(
        self, raw: list[tuple[str, tuple[int, ...], int, int]], data_offset: int, alignment: int
    ) -> tuple[tuple[GgufTensor, ...], frozenset[int]]:
        """Each with its size; none outside the file, none over another."""
        room = self._source.size - data_offset
        ordered = sorted(raw, key=lambda tensor: tensor[3])
        tensors: list[GgufTensor] = []
        unknown: set[int] = set()
        for (name, dimensions, kind, offset), after in zip(
            ordered, [*(tensor[3] for tensor in ordered[1:]), room][: len(ordered)], strict=True
        ):
            size = tensor_bytes(kind, dimensions)
            if size is None:
                unknown.add(kind)
                size = after - offset
            if size < 0:
                raise self._source.damaged(f'the tensor "{name}" has rows that are no whole number of blocks')
            if offset % alignment or offset + size > after or offset + size > room:
                raise self._source.damaged(f'the tensor "{name}" lies over another one or outside of the file')
            tensors.append(GgufTensor(name, dimensions, kind, offset, size))
        return tuple(tensors), frozenset(unknown)
