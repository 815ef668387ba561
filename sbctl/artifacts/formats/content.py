"""What a file is, by what it holds: an allowlist per kind of artifact, and a veto on everything that may run code when it is loaded.

No name decides. A file of weights is GGUF or safetensors with a header that holds; a file beside weights is text or one of the few binary
tokenizers. Pickle, in the clear, packed or in an archive, is refused unless the catalog allows it, and then lets through only what builds
tensors (`pickles`); Python code and settings that make a
loader run code from the snapshot always are.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from sbctl.artifacts.formats.gguf import GGUF_MAGIC, read_gguf
from sbctl.artifacts.formats.pickles import check_tensors_only
from sbctl.artifacts.formats.safetensors import read_safetensors
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError, RefusedError
from sbctl.base.limits import MODEL_JSON_MAX_BYTES, SAFETENSORS_HEADER_MAX_BYTES

__all__ = ["Content", "check_file", "content_of"]

Content = Literal["gguf", "safetensors", "pickle", "archive", "text", "sentencepiece", "unknown"]

_HEAD_BYTES: Final = 4096
_PROTOCOL_MAX: Final = 5
_CALLS: Final = frozenset({"INST", "REDUCE", "OBJ", "NEWOBJ", "BUILD", "STOP"})
_NAMES: Final = re.compile(r"[A-Za-z_][\w.]* [A-Za-z_][\w.]*")
_ARCHIVES: Final = (
    b"PK\x03\x04", b"PK\x05\x06", b"7z\xbc\xaf\x27\x1c", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd",
    b"Rar!", b"\x04\x22\x4d\x18", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x93NUMPY", b"\x89HDF\r\n",
)  # fmt: skip
"""Zip (a torch checkpoint is one), 7z, gzip, bzip2, xz, zstd, rar, lz4, zlib (joblib), NumPy's arrays (which may hold objects), HDF5."""
_TAR_AT: Final = 257
_SENTENCEPIECE: Final = re.compile(rb"\A\n[\x05-\x7f]\n[\x01-\x20]<?[\x20-\x7e]")
_WEIGHT_NAMES: Final = re.compile(
    r"\.(gguf|safetensors|bin|pt|pth|ckpt|pkl|pickle|npy|npz|h5|joblib|onnx|msgpack)\Z", re.IGNORECASE
)
_PYTHON: Final = re.compile(r"\.(py|pyc|pyo|pyd|pyx|so|dll|dylib|sh)\Z", re.IGNORECASE)
_LOADED_SAFELY: Final = frozenset({"archive", "safetensors", "gguf"})
"""What may stand where a pickle is allowed: it was looked into. An unknown thing may be a pickle that hides."""
_RUNS_CODE: Final = frozenset({"auto_map", "trust_remote_code", "custom_pipelines"})


def content_of(path: Path) -> Content:
    """By its first bytes alone; for a pickle without a protocol also by the sense of its opcodes. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(GGUF_MAGIC):
        return "gguf"
    if head.startswith(_ARCHIVES) or head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        return "archive"
    if _is_safetensors(head):
        return "safetensors"
    if _is_pickle(head):
        return "pickle"
    if _SENTENCEPIECE.match(head) and b"\x00" in head:
        return "sentencepiece"
    return "text" if _is_text(head) else "unknown"


def check_file(path: Path, name: str, format_name: str) -> None:
    """Whether a file may stand in a snapshot of `format_name` under `name`. A catalog has the format `pickle` only where it allows it.

    Raises RefusedError `artifact.unsafe_content`, ArtifactError `artifact.header_damaged` or `artifact.wrong_format`, OSError.
    """
    if _PYTHON.search(name):
        raise _refused(name, "is program code", "list only weights, tokenizer and settings in the catalog")
    content = content_of(path)
    allowed = format_name == "pickle"
    if content in ("pickle", "archive") and allowed:
        check_tensors_only(path, name)
    elif content in ("pickle", "archive"):
        what = (
            "a pickle, which can run any code when it is loaded"
            if content == "pickle"
            else "an archive, which may hold a pickle"
        )
        raise _refused(
            name,
            f"is {what}, whatever its name says",
            "choose a GGUF or safetensors variant, or leave the file out; only a variant of format pickle, whose entry says allow_pickle, may have one",
        )
    if content == "gguf":
        read_gguf(path)
    elif content == "safetensors":
        read_safetensors(path)
    wanted = _wanted(name, format_name)
    if wanted is not None and content != wanted and not (allowed and wanted == "pickle" and content in _LOADED_SAFELY):
        raise ArtifactError(
            "artifact.wrong_format",
            f"{display_safe(name)} is listed as {wanted} and holds {'something else' if content == 'unknown' else content}",
            place=name,
            next_step="correct the entry of the catalog, or get the file from another source",
        )
    if content == "text" and name.lower().endswith(".json"):
        _check_json(path, name)


def _wanted(name: str, format_name: str) -> Content | None:
    """What a file must be. In a snapshot of GGUF everything is; elsewhere the name of a weight file is a claim that is held against it."""
    if format_name == "gguf":
        return "gguf" if name.lower().endswith(".gguf") else None
    if format_name in ("safetensors", "pickle") and _WEIGHT_NAMES.search(name):
        return "safetensors" if format_name == "safetensors" else "pickle"
    return None


def _check_json(path: Path, name: str) -> None:
    """Nothing in it may make a loader import code of the snapshot."""
    if path.stat().st_size > MODEL_JSON_MAX_BYTES:
        raise _refused(name, "is larger than settings are", "leave the file out of the catalog's list")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise _refused(name, "is no JSON", "leave the file out of the catalog's list") from None
    found = next(
        (key for key, value in _members(document) if key in _RUNS_CODE and value not in (None, False, {}, [])), None
    )
    if found is not None:
        raise _refused(
            name,
            f"says {found}, which makes an engine run code out of the snapshot",
            "choose a model that needs no code of its own",
        )


def _members(document: Any) -> Iterator[tuple[str, Any]]:
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield from one.items()
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _refused(name: str, sentence: str, next_step: str) -> RefusedError:
    return RefusedError("artifact.unsafe_content", f"{display_safe(name)} {sentence}", place=name, next_step=next_step)


def _is_safetensors(head: bytes) -> bool:
    length = int.from_bytes(head[:8], "little")
    return len(head) > 9 and 2 <= length <= SAFETENSORS_HEADER_MAX_BYTES and head[8:9] == b"{"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return not any(ord(char) < 32 and char not in "\t\n\r\f\x1b" for char in text)


def _is_pickle(head: bytes) -> bool:
    """Protocol 2 and newer begin with 0x80 and a small number. Older ones are told by running their opcodes on a stack of nothing: text
    fails at once, a pickle comes to a call of something that it named.
    """
    if len(head) >= 2 and head[0] == 0x80 and head[1] <= _PROTOCOL_MAX:
        return True
    stack: list[bool] = []
    named = False
    try:
        for opcode, argument, _position in pickletools.genops(io.BytesIO(head)):
            _move(stack, opcode)
            if opcode.name in ("GLOBAL", "INST"):
                if _NAMES.fullmatch(str(argument)) is None:
                    return False
                named = True
            if named and opcode.name in _CALLS:
                return True
    except Exception:  # noqa: BLE001 - whatever the bytes do to the reader of opcodes, no loader gets further
        return False
    return named


def _move(stack: list[bool], opcode: pickletools.OpcodeInfo) -> None:
    """True on the stack is a mark. Raises IndexError, ValueError for what a loader could not do."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        del stack[len(stack) - 1 - stack[::-1].index(True) :]
        before = before[: before.index(pickletools.markobject)]
    for _ in before:
        if stack.pop():
            raise ValueError("a mark is no value")
    stack.extend(one is pickletools.markobject for one in opcode.stack_after)
