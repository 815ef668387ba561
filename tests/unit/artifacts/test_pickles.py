"""Pickles that a catalog allows: checkpoints as PyTorch writes them pass, and nothing that could do more than build tensors."""

from __future__ import annotations

import collections
import io
import pickle
import sys
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbctl.artifacts.formats.content import check_file
from sbctl.artifacts.formats.pickles import check_tensors_only
from sbctl.base.errors import ArtifactError, RefusedError, SbctlError

MAGIC = 0x1950A86A20F9469CFC6C


@pytest.fixture(scope="module", autouse=True)
def torch() -> Iterator[None]:
    """What a writer imports, without PyTorch."""
    made = types.ModuleType("torch")
    utils = types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage"):
        setattr(made, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2(*_arguments: Any) -> None: ...

    def _load_from_bytes(*_arguments: Any) -> None: ...

    for function, module in ((_rebuild_tensor_v2, utils), (_load_from_bytes, utils)):
        function.__module__, function.__qualname__ = "torch._utils", function.__name__
        setattr(module, function.__name__, function)
    sys.modules.update({"torch": made, "torch._utils": utils})
    yield
    del sys.modules["torch"], sys.modules["torch._utils"]


class Storage:
    def __init__(self, key: str) -> None:
        self.key = key


class Tensor:
    def __init__(self, key: str) -> None:
        self.key = key

    def __reduce__(self) -> Any:
        utils = sys.modules["torch._utils"]
        return utils._rebuild_tensor_v2, (Storage(self.key), 0, (2, 2), (2, 1), False, collections.OrderedDict())


class Calls:
    """Whatever it is asked to be."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.given = (function, arguments)

    def __reduce__(self) -> Any:
        return self.given


class Writer(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Storage):
            return ("storage", sys.modules["torch"].FloatStorage, obj.key, "cpu", 4)
        return None


def dumped(value: Any, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    Writer(buffer, protocol=protocol).dump(value)
    return buffer.getvalue()


def state(**more: Any) -> Any:
    found = collections.OrderedDict({f"layer.{number}.weight": Tensor(str(number)) for number in range(3)})
    found["again"] = found["layer.0.weight"]
    found._metadata = collections.OrderedDict(version=1)  # type: ignore[attr-defined]
    return {"state_dict": found, "epoch": 3, "lr": [0.1, (1, 2), None, True, "text", b"raw"], **more}


def archive(
    pickled: bytes, *, top: str = "model", names: tuple[str, ...] = (), method: int = zipfile.ZIP_STORED
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr(f"{top}/data.pkl", pickled)
        for number in range(3):
            file.writestr(f"{top}/data/{number}", b"\0" * 16)
        for name in (f"{top}/version", f"{top}/byteorder", f"{top}/.data/serialization_id", *names):
            file.writestr(name, b"3\n")
    return buffer.getvalue()


def row(third: Any = None, value: Any = None, *, magic: int = MAGIC) -> bytes:
    facts = {"protocol_version": 1001, "little_endian": True} if third is None else third
    parts = [pickle.dumps(magic, 2), pickle.dumps(1001, 2), dumped(facts)]
    return b"".join([*parts, dumped(state() if value is None else value), pickle.dumps(["0", "1"], 2), b"\x80\x02raw"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_checkpoints_pass_in_both_forms(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    for data in (archive(dumped(state(), protocol)), archive(dumped([], protocol), top="archive"), row()):
        path.write_bytes(data)
        check_file(path, "pytorch_model.bin", "pickle")


def _system(*arguments: Any) -> Any:
    import os

    return Calls(os.system, *arguments)


def hostile() -> dict[str, bytes]:
    import builtins
    import operator
    import subprocess

    utils = sys.modules["torch._utils"]
    long = b"\x80\x02" + b"]" + b"q\x00h\x00a" * 20_001 + b"."
    evil = dumped({"w": Tensor("0"), "x": _system("id")})
    ordered = b"ccollections\nOrderedDict\n"
    return {
        "a call in an archive": archive(evil),
        "a call in a row": row(value={"x": _system("id")}),
        "a call among the writer's facts": row(third={"x": _system("id")}),
        "a call before the magic": b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00idtR0" + pickle.dumps(MAGIC, 2)[2:] + row()[15:],
        "another magic": row(magic=MAGIC + 1),
        "eval": archive(dumped(Calls(builtins.eval, "1"))),
        "getattr": archive(dumped(Calls(builtins.getattr, "a", "b"))),
        "popen": archive(dumped(Calls(subprocess.Popen, ["id"]))),
        "attrgetter": archive(dumped(Calls(operator.attrgetter, "a"))),
        "a checkpoint in a checkpoint": archive(dumped(Calls(utils._load_from_bytes, b""))),
        "a plain pickle": pickle.dumps({"w": [1.0]}, 2),
        "an object": archive(dumped(types.SimpleNamespace(a=1), 2)),
        "an old instance": archive(b"\x80\x02(cos\nsystem\nX\x02\x00\x00\x00ido."),
        "INST": archive(b"\x80\x02(X\x02\x00\x00\x00idios\nsystem\n."),
        "a name put together": archive(b"\x80\x04]\x8c\x06system\x93."),
        "a name from the memo": archive(b"\x80\x04\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93\x8c\x02id\x85R."),
        "a name in a name": archive(b"\x80\x04\x8c\x05torch\x8c\x10_utils.os.system\x93."),
        "a call of a storage's type": archive(b"\x80\x02ctorch\nFloatStorage\n)R."),
        "a call of what was made": archive(b"\x80\x02" + ordered + b")R)R."),
        "a state for a builder": archive(b"\x80\x02" + ordered + b"}b."),
        "an extension": archive(b"\x80\x02\x82\x01."),
        "a buffer from outside": archive(b"\x80\x05\x97."),
        "a name for a loader": archive(b"\x80\x02Pfile\n."),
        "no end": archive(dumped(state())[:-1]),
        "more behind the end": archive(dumped(state()) + evil),
        "nothing on the stack": archive(b"\x80\x02R."),
        "a length that lies": archive(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."),
        "without end or sense": archive(long),
        "code beside it": archive(dumped(state()), names=("model/code/__torch__.py",)),
        "another folder": archive(dumped(state()), names=("other/x",)),
        "a path that climbs": archive(dumped(state()), names=("model/data/../../x",)),
        "two pickles": archive(dumped(state()), names=("model/constants.pkl",)),
        "deflated": archive(dumped(state()), method=zipfile.ZIP_DEFLATED),
        "no pickle": archive(dumped(state())).replace(b"data.pkl", b"data.bin"),
        "cut": archive(dumped(state()))[:-30],
        "gzip": b"\x1f\x8b\x08\x00" + bytes(64),
        "a tar": bytes(257) + b"ustar" + bytes(300),
        "a directory that lies": archive(dumped(state()))[:-10] + b"\xf0\xff\xff\xff" + archive(dumped(state()))[-6:],
    }  # fmt: skip


def test_F17_an_allowed_pickle_that_does_more_than_build_tensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.artifacts.formats.pickles._OPCODES_MAX", 20_000)
    path = tmp_path / "pytorch_model.bin"
    taken = []
    for said, data in hostile().items():
        path.write_bytes(data)
        try:
            check_file(path, "pytorch_model.bin", "pickle")
        except RefusedError as error:
            assert error.code == "artifact.unsafe_content", said
            assert "allow_pickle lets through only what builds tensors" in (error.next_step or ""), said
        else:
            taken.append(said)
    assert not taken


@pytest.mark.parametrize("data", [b"", b"text", b"\x00" * 64, b"(lp0\nI1\na.", b"\x89PNG\r\n"])
def test_what_hides_under_a_weight_s_name_where_pickles_are_allowed_is_no_checkpoint(
    tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(data)
    with pytest.raises((ArtifactError, RefusedError)):
        check_file(path, "w.pt", "pickle")


def test_the_import_that_is_refused_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    path.write_bytes(archive(dumped({"x": _system("id")})))
    with pytest.raises(RefusedError, match=r"imports (posix|nt)\.system, which builds no tensor"):
        check_tensors_only(path, "w.pt")


@example(cut=2, put=b"c\\o\nx\n", form="row")
@given(cut=st.integers(0, 2000), put=st.binary(max_size=8), form=st.sampled_from(["row", "archive"]))
def test_whatever_is_changed_in_a_checkpoint_it_is_judged_and_nothing_else_happens(
    tmp_path_factory: pytest.TempPathFactory, cut: int, put: bytes, form: str
) -> None:
    data = row() if form == "row" else archive(dumped(state()))
    path = tmp_path_factory.getbasetemp() / "changed.bin"
    path.write_bytes(data[: cut % len(data)] + put + data[cut % len(data) + len(put) :])
    try:
        check_tensors_only(path, "w.bin")
    except SbctlError as error:
        assert error.code == "artifact.unsafe_content"
