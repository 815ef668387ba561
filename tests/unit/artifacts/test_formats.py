"""Headers of weight files: what is read of them, and that nothing they say is believed (abuse cases F17 to F20)."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.formats.architectures import model_shape
from sbctl.artifacts.formats.bounded import DamagedHeaderError
from sbctl.artifacts.formats.content import check_file, content_of
from sbctl.artifacts.formats.gguf import ArrayInfo, parse_gguf, read_gguf
from sbctl.artifacts.formats.safetensors import SafetensorsHeader, read_safetensors
from sbctl.base.errors import ArtifactError, RefusedError
from tests.simulators.gguf_files import MODELS, GgufDraft, tiny_gguf

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "formats"


def every_type(order: str) -> GgufDraft:
    draft = GgufDraft(order=order)  # type: ignore[arg-type]
    for kind, (code, value) in enumerate(
        [("B", 255), ("b", -1), ("H", 65535), ("h", -2), ("I", 2**32 - 1), ("i", -3), ("f", 0.5), ("B", 1)]
    ):
        draft.keys[f"k{kind}"] = (kind, struct.pack(f"{order}{code}", value))
    for kind, (code, value) in {10: ("Q", 2**64 - 1), 11: ("q", -4), 12: ("d", 0.25)}.items():
        draft.keys[f"k{kind}"] = (kind, struct.pack(f"{order}{code}", value))
    draft.keys |= {
        "text": "häß",
        "numbers": [1, 2, 3],
        "truths": [True, False],
        "texts": ["a", "bc"],
        "long": "x" * 5000,
    }
    draft.add("t", 32, 2, kind=8)
    draft.add("u", 4, kind=0)
    return draft


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_value_type_is_read_in_both_byte_orders(order: str) -> None:
    header = parse_gguf(every_type(order).data())
    kept = [header.metadata[f"k{kind}"] for kind in (*range(8), 10, 11, 12)]
    assert kept == [255, -1, 65535, -2, 2**32 - 1, -3, 0.5, True, 2**64 - 1, -4, 0.25]
    assert header.metadata["text"] == "häß"
    assert header.metadata["numbers"] == (1, 2, 3)
    assert header.metadata["truths"] == (True, False)
    assert header.metadata["texts"] == ArrayInfo(2)
    assert len(str(header.metadata["long"])) == 1025
    assert [(tensor.name, tensor.size_bytes) for tensor in header.tensors] == [("t", 68), ("u", 16)]
    assert header.byte_order == ("little" if order == "<" else "big")


def test_a_model_of_20_GB_is_read_from_its_header_alone(tmp_path: Path) -> None:
    path = MODELS["gpt-oss-20b"].write(tmp_path / "model")
    before = time.process_time()
    header = read_gguf(path)
    assert time.process_time() - before < 5
    assert sum(tensor.size_bytes for tensor in header.tensors) > 20 << 30
    assert path.stat().st_blocks * 512 < 1 << 20


def _with(**changes: Any) -> GgufDraft:
    draft = GgufDraft({"general.architecture": "llama"}, **changes)
    draft.add("t", 4, kind=0)
    return draft


def _poked(at: int, data: bytes) -> bytes:
    raw = bytearray(_with().data())
    raw[at : at + len(data)] = data
    return bytes(raw)


def _keyed(kind: int, data: bytes) -> bytes:
    draft = _with()
    draft.keys["k"] = (kind, data)
    return draft.data()


def _tensors(*tensors: tuple[str, tuple[int, ...], int, int]) -> bytes:
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0))
    for name, dimensions, kind, offset in tensors:
        out += (
            struct.pack("<Q", len(name))
            + name.encode()
            + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        )
        out += struct.pack("<IQ", kind, offset)
    return bytes(out) + b"\0" * 256


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


HOSTILE_GGUF: dict[str, bytes] = {
    "empty": b"",
    "magic_only": b"GGUF",
    "bad_magic": b"GGML" + _with().data()[4:],
    "version_1": _poked(4, struct.pack("<I", 1)),
    "version_99": _poked(4, struct.pack("<I", 99)),
    "version_2_big_endian": _poked(4, struct.pack(">I", 2)),
    "tensors_2_63": _poked(8, _u64(1 << 63)),
    "keys_2_63": _poked(16, _u64(1 << 63)),
    "keys_more_than_bytes": _poked(16, _u64(60_000)),
    "key_2_60": _poked(24, _u64(1 << 60)),
    "key_empty": _poked(24, _u64(0)),
    "text_2_60": _keyed(8, _u64(1 << 60)),
    "array_2_40": _keyed(9, struct.pack("<IQ", 4, 1 << 40)),
    "array_of_texts_2_40": _keyed(9, struct.pack("<IQ", 8, 1 << 40)),
    "array_of_arrays": _keyed(9, struct.pack("<IQIQ", 9, 1, 9, 1)),
    "array_of_nothing": _keyed(9, struct.pack("<IQ", 77, 1)),
    "value_type_13": _keyed(13, b""),
    "truth_2": _keyed(7, b"\x02"),
    "alignment_0": GgufDraft({"general.alignment": 0}).data(),
    "alignment_3": GgufDraft({"general.alignment": 3}).data(),
    "alignment_text": GgufDraft({"general.alignment": "32"}).data(),
    "dimensions_10_6": _tensors(("t", (1,) * 5, 0, 0)),
    "dimensions_overflow": _tensors(("t", (1 << 40, 1 << 40), 0, 0)),
    "dimension_0": _tensors(("t", (0,), 0, 0)),
    "row_in_half_a_block": _tensors(("t", (33,), 8, 0)),
    "offset_unaligned": _tensors(("t", (4,), 0, 8)),
    "offset_past_the_end": _tensors(("t", (4,), 0, 1 << 62)),
    "tensor_past_the_end": _tensors(("t", (1 << 20,), 0, 0)),
    "tensors_overlap": _tensors(("t", (16,), 0, 0), ("u", (4,), 0, 32)),
    "tensor_twice": _tensors(("t", (4,), 0, 0), ("t", (4,), 0, 32)),
    "tensor_name_of_64": _tensors(("t" * 64, (4,), 0, 0)),
}


@pytest.mark.parametrize("name", HOSTILE_GGUF)
def test_F19_a_hostile_gguf_header_is_refused_at_once(name: str) -> None:
    before = time.process_time()
    with pytest.raises(DamagedHeaderError) as caught:
        parse_gguf(HOSTILE_GGUF[name], name)
    assert time.process_time() - before < 5
    assert caught.value.code == "artifact.header_damaged"
    assert caught.value.place == name
    assert isinstance(caught.value.detail["offset"], int)


def test_F19_a_repeated_key_is_refused() -> None:
    raw = bytearray(b"GGUF" + struct.pack("<IQQ", 3, 0, 2))
    raw += (_u64(1) + b"k" + struct.pack("<IB", 0, 1)) * 2
    with pytest.raises(DamagedHeaderError, match="twice"):
        parse_gguf(bytes(raw + b"\0" * 64))


def test_a_tensor_of_an_unknown_type_is_sized_by_its_room() -> None:
    header = parse_gguf(_tensors(("t", (7,), 250, 0), ("u", (4,), 0, 64)))
    assert [(tensor.name, tensor.size_bytes) for tensor in header.tensors] == [("t", 64), ("u", 16)]
    assert header.unknown_types == {250}


def _safetensors(document: Any, data: int, *, raw: bytes | None = None, length: int | None = None) -> bytes:
    text = json.dumps(document).encode() if raw is None else raw
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * data


def _tensor(start: int, stop: int, *, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


GOOD = {
    "__metadata__": {"format": "pt"},
    "b": _tensor(8, 16),
    "a": _tensor(0, 8),
    "none": _tensor(16, 16, shape=[0, 3]),
}
HOSTILE_SAFETENSORS: dict[str, bytes] = {
    "header_2_62": _safetensors(GOOD, 16, length=1 << 62),
    "header_beyond_the_file": _safetensors(GOOD, 16, length=4096),
    "header_of_nothing": _safetensors(GOOD, 16, length=0),
    "hole": _safetensors({"a": _tensor(0, 8), "b": _tensor(12, 16)}, 16),
    "overlap": _safetensors({"a": _tensor(0, 8), "b": _tensor(4, 12)}, 12),
    "rest": _safetensors(GOOD, 20),
    "short": _safetensors(GOOD, 12),
    "repeated_key": _safetensors(None, 8, raw=b'{"a":%s,"a":%s}' % ((json.dumps(_tensor(0, 8)).encode(),) * 2)),
    "shape_overflow": _safetensors({"a": _tensor(0, 8, shape=[1 << 40, 1 << 40])}, 8),
    "shape_too_large": _safetensors({"a": _tensor(0, 8, shape=[1000])}, 8),
    "negative": _safetensors({"a": _tensor(8, 0, shape=[2])}, 8),
    "truth_as_number": _safetensors({"a": _tensor(0, 4, shape=[True])}, 4),
    "type_unknown": _safetensors({"a": _tensor(0, 8, dtype="F33")}, 8),
    "type_list": _safetensors({"a": _tensor(0, 8, dtype=["F32"])}, 8),
    "metadata_numbers": _safetensors({"__metadata__": {"a": 1}}, 0),
    "list": _safetensors([1], 0),
    "leading_space": _safetensors(None, 0, raw=b" {}"),
    "deep": _safetensors(None, 0, raw=b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
}


def _header_of(data: bytes, folder: Path) -> SafetensorsHeader:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    return read_safetensors(path)


def test_safetensors_are_read_in_any_order(tmp_path: Path) -> None:
    header = _header_of(_safetensors(GOOD, 16, raw=json.dumps(GOOD).encode() + b"   "), tmp_path)
    assert header.tensors == {"b": 8, "a": 8, "none": 0}
    assert header.metadata == {"format": "pt"}


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_F20_a_hostile_safetensors_header_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedHeaderError):
        _header_of(HOSTILE_SAFETENSORS[name], tmp_path)


def test_F20_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbctl.artifacts.formats.safetensors.SAFETENSORS_TENSORS_MAX", 3)
    with pytest.raises(DamagedHeaderError, match="too many"):
        _header_of(_safetensors(GOOD, 16), tmp_path)


class _Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return print, ("x",)


def _zip(data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    return out.getvalue()


PICKLES = {
    "proto_4": pickle.dumps(_Evil(), 4),
    "proto_2": pickle.dumps(_Evil(), 2),
    "proto_0": pickle.dumps(_Evil(), 0),
    "proto_1": pickle.dumps(_Evil(), 1),
    "broken_stream": pickle.dumps(_Evil(), 0)[:-1],
    "torch_zip": _zip(pickle.dumps(_Evil(), 2)),
    "zip_in_zip": _zip(_zip(b"x")),
    "seven_zip": b"7z\xbc\xaf\x27\x1c" + b"\0" * 40,
    "numpy_objects": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', }",
    "joblib_gzip": b"\x1f\x8b\x08" + b"\0" * 20,
    "joblib_zlib": b"\x78\x9c" + b"\0" * 20,
    "tar": b"data.pkl".ljust(257, b"\0") + b"ustar\x0000" + b"\0" * 300,
}


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "pytorch_model.bin", "README.md", "config.json"])
@pytest.mark.parametrize("kind", PICKLES)
def test_F17_a_pickle_is_found_by_content_under_any_name(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(PICKLES[kind])
    for format_name in ("gguf", "safetensors"):
        with pytest.raises(RefusedError) as caught:
            check_file(path, name, format_name)
        assert caught.value.code == "artifact.unsafe_content"
        assert name in caught.value.message


UNSAFE: dict[str, tuple[str, bytes]] = {
    "auto_map": ("config.json", b'{"auto_map": {"AutoModel": "modeling_x.Y"}}'),
    "auto_map_inside": ("tokenizer_config.json", b'{"a": [{"auto_map": {"AutoTokenizer": ["x.Y", null]}}]}'),
    "trust": ("config.json", b'{"trust_remote_code": true}'),
    "pipelines": ("config.json", b'{"custom_pipelines": {"p": {"impl": "x.P"}}}'),
    "python": ("modeling_x.py", b"import os"),
    "library": ("kernel.so", b"\x7fELF"),
    "script": ("run.SH", b"#!/bin/sh"),
    "no_json": ("config.json", b"{"),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_F18_what_makes_an_engine_run_code_of_a_snapshot_is_refused(case: str, tmp_path: Path) -> None:
    name, data = UNSAFE[case]
    path = tmp_path / "blob"
    path.write_bytes(data)
    for format_name in ("gguf", "safetensors"):
        with pytest.raises(RefusedError, match=name.split(".")[0]):
            check_file(path, name, format_name)


@pytest.mark.parametrize(
    ("name", "format_name", "data", "content"),
    [
        ("model.gguf", "gguf", tiny_gguf(), "gguf"),
        ("mmproj.gguf", "gguf", tiny_gguf(layers=2), "gguf"),
        ("model.safetensors", "safetensors", _safetensors(GOOD, 16), "safetensors"),
        ("config.json", "safetensors", b'{"architectures": ["LlamaForCausalLM"], "auto_map": null}', "text"),
        ("merges.txt", "safetensors", "#version: 0.2\nĠ t\nĠ a\n".encode(), "text"),
        ("chat_template.jinja", "safetensors", b"{% for m in messages %}{{ m }}{% endfor %}", "text"),
        (
            "tokenizer.model",
            "safetensors",
            b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>\x15\x00",
            "sentencepiece",
        ),
        ("LICENSE", "gguf", b"Apache License\nVersion 2.0\n", "text"),
        ("README.md", "gguf", b"build it. a.\n", "text"),
        ("vocab.txt", "gguf", b"cat\ndog\nemu\n.\n", "text"),
        ("notes.txt", "gguf", b"N.", "text"),
        ("notes.txt", "gguf", b"", "text"),
    ],
)
def test_what_belongs_beside_weights_is_taken(
    name: str, format_name: str, data: bytes, content: str, tmp_path: Path
) -> None:
    path = tmp_path / "blob"
    path.write_bytes(data)
    assert content_of(path) == content
    check_file(path, name, format_name)


@pytest.mark.parametrize(
    ("name", "format_name", "data", "code"),
    [
        ("model.gguf", "gguf", b"demo weights\n", "artifact.wrong_format"),
        ("model.gguf", "gguf", _safetensors(GOOD, 16), "artifact.wrong_format"),
        ("model.safetensors", "safetensors", tiny_gguf(), "artifact.wrong_format"),
        ("model.bin", "safetensors", bytes(range(250, 256)) * 9, "artifact.wrong_format"),
        ("model.gguf", "gguf", HOSTILE_GGUF["array_2_40"], "artifact.header_damaged"),
        ("notes.txt", "safetensors", HOSTILE_GGUF["tensors_overlap"], "artifact.header_damaged"),
    ],
)
def test_weights_are_what_the_catalog_says_or_refused(
    name: str, format_name: str, data: bytes, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "blob"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        check_file(path, name, format_name)
    assert caught.value.code == code


def _corpus() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(CORPUS.iterdir())}


def test_the_kept_corpus_is_refused_or_read_and_never_anything_else(tmp_path: Path) -> None:
    kept = _corpus()
    assert len(kept) > 20
    for name, data in kept.items():
        _survives(name, data, tmp_path)


@pytest.mark.parametrize("seed", range(4))
def test_mutations_of_the_corpus_are_refused_or_read_within_bounds(seed: int, tmp_path: Path) -> None:
    """A fixed number of deterministic mutations: bytes flipped, numbers made huge, ends cut, pieces spliced."""
    chance = random.Random(seed)
    kept = list(_corpus().values())
    before = time.process_time()
    for _ in range(400):
        data = bytearray(chance.choice(kept))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0:
                    data[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    data[at : at + 8] = struct.pack("<Q", chance.choice((0, 1, 2**31, 2**32, 2**40, 2**63, 2**64 - 1)))
                case 2:
                    del data[at:]
                case _:
                    other = chance.choice(kept)
                    data[at:at] = other[: chance.randrange(64)]
        _survives("mutation", bytes(data), tmp_path)
    assert time.process_time() - before < 60


def _survives(name: str, data: bytes, folder: Path) -> None:
    with contextlib.suppress(DamagedHeaderError):
        model_shape([parse_gguf(data, name)])
    with contextlib.suppress(DamagedHeaderError):
        _header_of(data, folder)
