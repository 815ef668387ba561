"""What apply takes from a pack: the wheels that fit a host, weights in place; what is missing is said with what to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import InputError
from sbctl.pack.reader import open_pack
from sbctl.pack.supplies import PackSupplies
from tests.simulators.packs import FILES, digest_of, manifest_of, packed

WEIGHTS = FILES["tiny:q4/model.gguf"][1]
FACTS: dict[str, Any] = {
    "model": "tiny",
    "variant": "q4",
    "files": [{"path": "model.gguf", "sha256": digest_of("tiny:q4/model.gguf"), "size_bytes": len(WEIGHTS)}],
}
ENGINE = "engine-1.0-py3-none-any.whl"


def _ignore(_done: int, _total: int | None) -> None:
    """Nobody watches."""


def _supplies(tmp_path: Path, **changes: object) -> PackSupplies:
    (tmp_path / "made").mkdir()
    pack = open_pack(packed(tmp_path / "made", manifest_of(**changes)))
    return PackSupplies(pack, tmp_path / "cache", Path("sb.yml"))


@pytest.mark.parametrize("libc", ["glibc-2.28", "glibc-2.33", "glibc-2.34", "glibc-2.40"])
def test_a_host_gets_the_wheels_of_the_newest_library_that_it_has(tmp_path: Path, libc: str) -> None:
    supplies = _supplies(tmp_path)
    for _ in range(2):
        wheels = supplies.wheelhouse("x86_64", libc, "3.11.2", _ignore)
        assert {name: path.read_bytes() for name, path in wheels.items()} == {
            name: content for name, (role, content) in FILES.items() if role == "runtime"
        }


LACKING = {
    "machine": ("aarch64", "glibc-2.36", "3.11.2", "--arch aarch64 --libc glibc-2.36 --python 3.11"),
    "old library": ("x86_64", "glibc-2.17", "3.11.2", "--libc glibc-2.17"),
    "other library": ("x86_64", "musl-1.2", "3.11.2", "--libc musl-1.2"),
    "python": ("x86_64", "glibc-2.36", "3.14.0", "--python 3.14"),
}


@pytest.mark.parametrize("case", LACKING)
def test_a_host_without_wheels_is_told_how_to_pack_them(tmp_path: Path, case: str) -> None:
    arch, libc, python, options = LACKING[case]
    with pytest.raises(InputError) as refused:
        _supplies(tmp_path).wheelhouse(arch, libc, python, _ignore)
    assert refused.value.code == "pack.lacks"
    assert options in str(refused.value.next_step)
    assert "sbctl pack -f sb.yml" in str(refused.value.next_step)


def test_a_pack_of_another_sbctl_has_another_runtime(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it was made with sbctl 9\.9"):
        _supplies(tmp_path, sbctl_version="9.9").wheelhouse("x86_64", "glibc-2.36", "3.11.2", _ignore)


def test_an_engine_is_found_by_name_and_digest(tmp_path: Path) -> None:
    supplies = _supplies(tmp_path)
    path = supplies.engine_wheel("engine", "1.0", ENGINE, digest_of(ENGINE), _ignore)
    assert (path.name, path.read_bytes()) == (ENGINE, FILES[ENGINE][1])
    for name, digest in ((ENGINE, "0" * 64), ("other-1.0-py3-none-any.whl", digest_of(ENGINE))):
        with pytest.raises(InputError, match=r"engine 1\.0"):
            supplies.engine_wheel("engine", "1.0", name, digest, _ignore)
    assert supplies.engine_archive("https://elsewhere.example/x", ENGINE, digest_of(ENGINE), _ignore) == path
    with pytest.raises(InputError, match=r"llama\.tar\.gz"):
        supplies.engine_archive("https://elsewhere.example/x", "llama.tar.gz", "0" * 64, _ignore)


def test_weights_stay_where_they_are_and_no_copy_is_made(tmp_path: Path) -> None:
    supplies = _supplies(tmp_path)
    (source,) = supplies.artifact_files(FACTS, _ignore).values()
    with source.open("rb") as reader:
        assert reader.read() == WEIGHTS
    assert not (tmp_path / "cache").exists()


def test_weights_that_are_left_out_are_named(tmp_path: Path) -> None:
    entries = tuple(entry for entry in manifest_of().entries if entry.role != "weights")
    supplies = _supplies(tmp_path, entries=entries, artifacts=(), left_out=("weights",))
    with pytest.raises(InputError, match=r"tiny:q4 .*--exclude weights"):
        supplies.artifact_files(FACTS, _ignore)
    with pytest.raises(InputError, match="tiny:q4"):
        supplies.lacking((), {}, [FACTS])


def test_what_a_plan_will_need_is_looked_for_before_anything_changes(tmp_path: Path) -> None:
    supplies = _supplies(tmp_path)
    supplies.lacking([("x86_64", "glibc-2.36", "3.11.2")], {digest_of(ENGINE): "engine"}, [FACTS])
    with pytest.raises(InputError, match="an engine for nobody"):
        supplies.lacking((), {"0" * 64: "an engine for nobody"}, ())


def test_a_damaged_wheel_never_stands_in_the_cache(tmp_path: Path) -> None:
    supplies = _supplies(tmp_path)
    path = tmp_path / "made" / "site.sbpack"
    content = bytearray(path.read_bytes())
    content[content.index(b"alphaalpha") + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        supplies.wheelhouse("x86_64", "glibc-2.36", "3.11.2", _ignore)
    assert refused.value.code == "pack.damaged"
    assert [found.name for found in (tmp_path / "cache").rglob("*") if found.is_file() and "alpha" in str(found)] == []
    assert list((tmp_path / "cache").rglob(".sbctl-tmp-*")) == []


def test_damaged_weights_are_refused_before_a_byte_is_sent(tmp_path: Path) -> None:
    supplies = _supplies(tmp_path)
    path = tmp_path / "made" / "site.sbpack"
    content = bytearray(path.read_bytes())
    content[content.index(b"weightsweights") + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        supplies.artifact_files(FACTS, _ignore)
    assert refused.value.code == "pack.damaged"
