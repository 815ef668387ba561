"""A pickle that a catalog allows: read opcode by opcode, never run, and refused unless all that it can do is to build tensors.

Two forms are known, those of PyTorch: an archive whose one `data.pkl` names tensors beside it, and the older row of five pickles before the raw
bytes. What a loader would import is held against a list; only what is on it may be called, and only what was called on the list's word may be
filled in. Names that are put together at run time, objects of classes, extensions and buffers from outside are refused whatever they name.
"""

from __future__ import annotations

import errno
import os
import pickletools
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from sbctl.base.display import display_safe
from sbctl.base.errors import RefusedError
from sbctl.base.limits import MIB

__all__ = ["check_tensors_only"]

_OPCODES_MAX: Final = 2_000_000
_BYTES_MAX: Final = 64 * MIB
_DIRECTORY_MAX_BYTES: Final = 64 * MIB
_ENTRIES_MAX: Final = 200_000
_MAGIC: Final = 0x1950A86A20F9469CFC6C
"""The first of the five pickles of the older form."""
_ROW: Final = 5

_DAMAGED: Final = (
    ValueError, IndexError, KeyError, EOFError, OverflowError, RuntimeError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What the readers of archives and opcodes raise for bytes that no writer made; NotImplementedError is a RuntimeError."""

_TYPES: Final = (
    "Double", "Float", "Half", "Long", "Int", "Short", "Char", "Byte", "Bool", "BFloat16", "ComplexDouble", "ComplexFloat",
    "QUInt8", "QInt8", "QInt32", "Untyped",
)  # fmt: skip
_DTYPES: Final = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "quint8", "qint8", "qint32", "uint16", "uint32", "uint64",
)  # fmt: skip
_CALLED: Final = frozenset(
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter",
        "torch Size",
        "torch device",
        "_codecs encode",
    }
)
"""Builds a value of its arguments and does nothing else, whatever the arguments are."""
_NAMED: Final = frozenset(
    {f"torch {kind}Storage" for kind in _TYPES}
    | {f"torch.storage {kind}Storage" for kind in ("Untyped", "Typed")}
    | {f"torch {name}" for name in _DTYPES}
)
"""Only ever handed on, as the kind of a storage."""
_FILLED: Final = frozenset({"collections OrderedDict"})
_REFUSED: Final = frozenset(
    {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)
_TEXTS: Final = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_ASIDE: Final = ("version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id")


class _Global(str):
    """On the stack: what a name was imported as."""

    __slots__ = ()


class _Made(str):
    """On the stack: what a call of that global gave."""

    __slots__ = ()


_MARK: Final = object()
_OTHER: Final = object()


def check_tensors_only(path: Path, name: str) -> None:
    """Raises RefusedError `artifact.unsafe_content` for anything but a checkpoint that only builds tensors; OSError."""
    with path.open("rb") as file:
        try:
            head = file.read(4)
            file.seek(0)
            if head == b"PK\x03\x04":
                _check_archive(file, name)
            elif head[:1] == b"\x80":
                _check_row(file, name)
            else:
                raise _refused(name, "is packed in a way that PyTorch's checkpoints are not")
        except (*_DAMAGED, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise  # the disk's, not the file's, which may send a reader before its beginning
            raise _refused(name, "is a damaged checkpoint, or made to mislead") from error


def _check_archive(file: BinaryIO, name: str) -> None:
    _bound_directory(file, name)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) > _ENTRIES_MAX or len({entry.filename for entry in entries}) != len(entries):
            raise _refused(name, "has entries of one name twice, or too many of them")
        pickled = [entry for entry in entries if entry.filename.endswith(".pkl")]
        if len(pickled) != 1 or pickled[0].filename.count("/") != 1 or not pickled[0].filename.endswith("/data.pkl"):
            raise _refused(name, "is no checkpoint: it has not exactly one data.pkl")
        top = pickled[0].filename[: -len("data.pkl")]
        for entry in entries:
            inside = entry.filename.removeprefix(top)
            known = inside == "data.pkl" or inside in _ASIDE or inside.removeprefix("data/").isalnum()
            if not entry.filename.startswith(top) or not known:
                raise _refused(name, f"has {display_safe(entry.filename, max_chars=64)} in it, which no checkpoint has")
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise _refused(name, "is compressed or encrypted, which checkpoints are not")
        if pickled[0].file_size > _BYTES_MAX:
            raise _refused(name, "names more than any model has")
        with archive.open(pickled[0]) as data:
            left = _scan(_Bounded(data, _BYTES_MAX), name)
            if left.read(1):
                raise _refused(name, "goes on behind its pickle")


def _bound_directory(file: BinaryIO, name: str) -> None:
    """Before it is read into memory as a whole."""
    size = os.fstat(file.fileno()).st_size if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else 0
    file.seek(max(0, size - 66_000))
    tail = file.read(66_000)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise _refused(name, "is an archive without its end")
    (length,) = struct.unpack_from("<I", tail, at + 12)
    if length == 0xFFFFFFFF:
        wide = tail.rfind(b"PK\x06\x06", 0, at)
        (length,) = struct.unpack_from("<Q", tail, wide + 40) if wide >= 0 else (1 << 62,)
    if length > _DIRECTORY_MAX_BYTES:
        raise _refused(name, "has a list of entries that is larger than any checkpoint's")
    file.seek(0)


def _check_row(file: BinaryIO, name: str) -> None:
    """Magic number, protocol, facts of the writer's machine, the object, the keys of its storages."""
    bounded = _Bounded(file, _BYTES_MAX)
    if [(code.name, argument) for code, argument in _opcodes(bounded, name)][1:] != [("LONG1", _MAGIC), ("STOP", None)]:
        raise _refused(name, "is a pickle, but no checkpoint of PyTorch")
    for _ in range(_ROW - 1):
        bounded = _scan(bounded, name)


class _Bounded:
    """A file of which no more than so many bytes are read, whatever length it claims of itself."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self._file = file
        self._left = left

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise EOFError("more than is read of a checkpoint")
        self._left -= count
        return self._file.read(count)

    def readline(self) -> bytes:
        """Names of what is imported, and texts of the oldest form; no checkpoint escapes anything in them."""
        data = self._file.readline(min(self._left, MIB))
        self._left -= len(data)
        if b"\\" in data:
            raise ValueError("an escape in a line of text")
        return data


def _scan(source: _Bounded, name: str) -> _Bounded:
    """One pickle, to its end."""
    machine = _Machine(name)
    for opcode, argument in _opcodes(source, name):
        machine.step(opcode, argument)
    return source


def _opcodes(source: _Bounded, name: str) -> Iterator[tuple[pickletools.OpcodeInfo, object]]:
    for count, (opcode, argument, _at) in enumerate(pickletools.genops(cast("BinaryIO", source))):
        if count > _OPCODES_MAX:
            raise _refused(name, "does more than any checkpoint does")
        yield opcode, argument


class _Machine:
    """The stack of a loader, with what is known of each thing on it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        if opcode.name in _REFUSED:
            raise _refused(self._name, f"makes objects ({opcode.name}), where tensors need none")
        match opcode.name:
            case "GLOBAL":
                self._stack.append(self._import(str(argument)))
            case "STACK_GLOBAL":
                attribute, module = self._stack.pop(), self._stack.pop()
                if type(attribute) is not str or type(module) is not str:
                    raise _refused(self._name, "imports a name that is put together only when it is loaded")
                self._stack.append(self._import(f"{module} {attribute}"))
            case "REDUCE":
                self._stack.pop()
                self._call()
            case "BUILD":
                self._stack.pop()
                if not (isinstance(self._stack[-1], _Made) and self._stack[-1] in _FILLED):
                    raise _refused(self._name, "fills in the state of what is no table")
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[int(str(argument))] = self._stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = self._stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[int(str(argument))])
            case "DUP":
                self._stack.append(self._stack[-1])
            case _:
                self._move(opcode, argument)

    def _import(self, named: str) -> _Global:
        if named not in _CALLED and named not in _NAMED:
            shown = display_safe(named.replace(" ", "."), max_chars=96)
            raise _refused(self._name, f"imports {shown}, which builds no tensor and may run code")
        return _Global(named)

    def _call(self) -> None:
        called = self._stack.pop()
        if not (isinstance(called, _Global) and called in _CALLED):
            raise _refused(self._name, "calls what is no builder of tensors")
        self._stack.append(_Made(called))

    def _move(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        kept: list[object] = []
        for wanted in reversed(opcode.stack_before):
            if wanted is pickletools.stackslice:
                while self._stack[-1] is not _MARK:
                    self._stack.pop()
            elif (wanted is pickletools.markobject) is not (self._stack[-1] is _MARK):
                raise ValueError("a mark is no value")
            else:
                kept.append(self._stack.pop())
        fills = opcode.name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS")
        for given in opcode.stack_after:
            if given is pickletools.markobject:
                self._stack.append(_MARK)
            elif fills:
                self._stack.append(kept[-1])
            else:
                self._stack.append(str(argument) if opcode.name in _TEXTS else _OTHER)


def _refused(name: str, sentence: str) -> RefusedError:
    return RefusedError(
        "artifact.unsafe_content",
        f"{display_safe(name)} {sentence}",
        place=name,
        next_step="choose a GGUF or safetensors variant; allow_pickle lets through only what builds tensors and nothing else",
    )
