"""A host that lacks a shared library gets the pinned one beside its engine, and only then."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sbctl.base.digests import sha256_bytes, sha256_file
from sbctl.base.errors import ArtifactError
from sbctl.engines.model import LIBRARIES_NAME
from sbctl.engines.pins import library_pins
from sbctl.node.messages import EngineInstall, LibraryFile, WheelFile
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.engine_ops import add_libraries

MISSED = "ImportError: libgomp.so.1: cannot open shared object file: No such file or directory"
LIBRARY = b"\x7fELF a library"


@pytest.fixture
def params(context: NodeContext, tmp_path: Path) -> EngineInstall:
    wheel = tmp_path / "pykdtree-1-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("libs/libgomp.so", LIBRARY)
    digest = sha256_file(wheel)
    context.paths.blobs.mkdir(parents=True)
    (context.paths.blobs / digest).write_bytes(wheel.read_bytes())
    library = LibraryFile(
        name="libgomp.so.1",
        project="pykdtree",
        version="1",
        wheel=WheelFile(filename=wheel.name, sha256=digest),
        member="libs/libgomp.so",
        sha256=sha256_bytes(LIBRARY),
    )
    return EngineInstall(
        engine="llama_cpp",
        launch="wheel",
        project="xllamacpp",
        version="1",
        wheel=WheelFile(filename="xllamacpp-1-cp310-abi3-linux_x86_64.whl", sha256="a" * 64),
        libraries=(library,),
        python="/usr/bin/python3",
        delivery="push",
    )


def _added(context: NodeContext, params: EngineInstall, tmp_path: Path, failure: str) -> Path:
    environment, staged = tmp_path / "environment", tmp_path / "staged"
    environment.mkdir()
    staged.mkdir()
    add_libraries(context, params, environment, staged, failure)
    return environment / LIBRARIES_NAME / "libgomp.so.1"


def test_the_library_that_the_loader_missed_is_installed(
    context: NodeContext, params: EngineInstall, tmp_path: Path
) -> None:
    assert _added(context, params, tmp_path, MISSED).read_bytes() == LIBRARY


def test_another_failure_installs_nothing(context: NodeContext, params: EngineInstall, tmp_path: Path) -> None:
    assert not _added(context, params, tmp_path, "SyntaxError: invalid syntax").exists()


def test_a_library_with_other_bytes_is_refused(context: NodeContext, params: EngineInstall, tmp_path: Path) -> None:
    other = params.libraries[0].model_copy(update={"sha256": "b" * 64})
    with pytest.raises(ArtifactError) as caught:
        _added(context, params.model_copy(update={"libraries": (other,)}), tmp_path, MISSED)
    assert caught.value.code == "artifact.digest_mismatch"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_every_architecture_with_a_wheel_has_its_library(arch: str) -> None:
    assert [pin.name for pin in library_pins(arch)] == ["libgomp.so.1"]
    assert library_pins("riscv64") == ()
