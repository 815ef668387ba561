"""Finding engines: ours by their record, foreign ones by what they say, none that only looks like one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import EngineError
from sbctl.engines import detect
from sbctl.engines.detect import find_engine, find_llama_server, installed_engines, probe_llama_server
from sbctl.engines.driver import EngineSite, EngineWish
from sbctl.engines.model import EngineAddress
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_for, wheel_pin
from sbctl.engines.release_pins import Machine
from tests.simulators import fake_llama_server
from tests.simulators.llama_launches import launch_spec


def program(directory: Path, script: str) -> Path:
    path = directory / "llama-server"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    shutil.copy(fake_llama_server.__file__, path)
    path.chmod(0o755)
    return path


def test_a_llama_server_says_its_version_and_flags(fake: Path) -> None:
    build = probe_llama_server(fake)
    assert build.version == "b9905"
    assert build.known_flags is not None
    assert {"--model", "--cache-ram", "--no-kv-unified"} <= build.known_flags
    spec = launch_spec(
        build,
        weights=Path("/m"),
        address=EngineAddress(port=1),
        alias="a",
        context_length=1,
        slots=1,
        physical_cores=1,
        environ={},
    )
    fake_llama_server.parse(list(spec.argv[1:]))


@pytest.mark.parametrize(
    "script", ["print('hello')", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "print('x' * 10_000_000)"]
)
def test_a_program_that_answers_otherwise_is_no_engine(tmp_path: Path, script: str) -> None:
    with pytest.raises(EngineError) as caught:
        probe_llama_server(program(tmp_path, script))
    assert caught.value.code == "engine.probe_failed"
    assert len(caught.value.message) < 600


def test_of_a_program_that_is_no_engine_only_the_first_line_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        probe_llama_server(program(tmp_path, "print('false 9.1\\nCopyright')"))
    assert caught.value.message.endswith("as llama-server does: false 9.1")


def test_a_program_that_says_nothing_is_left_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "_PROBE_DEADLINE_S", 0.2)
    with pytest.raises(EngineError, match="no answer"):
        probe_llama_server(program(tmp_path, "import time; time.sleep(60)"))


def test_a_foreign_program_sees_none_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "secret")
    with pytest.raises(EngineError) as caught:
        probe_llama_server(program(tmp_path, "import os; print(sorted(os.environ))"))
    assert "CANARY" not in caught.value.message


def test_only_absolute_directories_of_a_path_are_searched(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_SYSTEM_DIRECTORIES", ())
    monkeypatch.chdir(fake.parent)
    assert find_llama_server(f".::{fake.parent.name}") is None
    assert find_llama_server(f"/nonexistent:{fake.parent}") == fake
    fake.chmod(0o644)
    assert find_llama_server(str(fake.parent)) is None


def record(engines: Path, name: str, **changes: object) -> None:
    home = engines / "llama_cpp" / name
    home.mkdir(parents=True)
    document = {
        "schema_version": 1,
        "engine": "llama_cpp",
        "launch": "wheel",
        "version": name,
        "wheel": "x.whl",
        "sha256": "1" * 64,
        "launcher_sha256": "2" * 64,
        "python": "/usr/bin/python3",
        **changes,
    }
    (home / "engine.json").write_text(json.dumps(document))


def test_only_whole_installations_count(tmp_path: Path) -> None:
    record(tmp_path, "1.0")
    record(tmp_path, "2.0", version="3.0")
    record(tmp_path, "4.0", extra=1)
    (tmp_path / "llama_cpp" / "5.0").mkdir()
    (tmp_path / "llama_cpp" / "5.0" / "engine.json").write_text("{")
    assert [found.version for found in installed_engines(tmp_path)] == ["1.0"]
    assert installed_engines(tmp_path / "none") == ()


@pytest.mark.flow
def test_availability_says_what_to_do(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_SYSTEM_DIRECTORIES", ())
    engines = tmp_path / "engines"
    record(engines, "1.0")

    def state(launch: str, version: str | None = None, *, arch: str = "x86_64", search: str = "", **wish: Any) -> str:
        site = EngineSite(engines, search, Machine("Linux", arch, "glibc-2.36"))
        found = find_engine(EngineWish(launch, version, **wish), site)
        assert (found.build is not None) == (found.state == "available")
        assert found.state == "available" or (found.reason and found.remedy)
        return found.state

    assert state("wheel", "1.0") == "available"
    assert state("wheel", LLAMA_CPP_WHEEL_DEFAULT) == "acquirable"
    assert state("wheel", LLAMA_CPP_WHEEL_DEFAULT, arch="s390x") == "incompatible"
    assert state("wheel", "0.0") == "blocked"
    assert state("binary") == "acquirable"
    assert state("binary", arch="s390x") == "blocked"
    assert state("binary", "b9905", arch="s390x") == "incompatible"
    assert state("binary", "b1") == "blocked"
    assert state("binary", "b1", sha256="1" * 64) == "acquirable"
    assert state("binary", path=str(fake)) == "available"
    assert state("binary", "9905", path=str(fake)) == "available"
    assert state("binary", "b1", path=str(fake)) == "blocked"
    assert state("binary", search=str(fake.parent)) == "available"
    for lacking, found in (((), "acquirable"), (("cmake",), "blocked")):
        monkeypatch.setattr("sbctl.engines.detect.missing_tools", lambda lacking=lacking: lacking)
        assert state("binary", "b9905", acceleration="cuda", search=str(fake.parent)) == found
    assert state("binary", path="llama-server") == "blocked"
    assert state("binary", path=str(program(tmp_path / "engines", "print(1)"))) == "blocked"


def test_pins_know_their_hosts() -> None:
    pin = wheel_pin(LLAMA_CPP_WHEEL_DEFAULT, "x86_64", "glibc-2.36")
    assert pin == wheel_for("x86_64", "glibc-2.36")
    assert wheel_for("x86_64", "musl-1.2") is None
    for version, arch, code in (
        ("0", "x86_64", "engine.not_pinned"),
        (LLAMA_CPP_WHEEL_DEFAULT, "s390x", "engine.incompatible"),
    ):
        with pytest.raises(EngineError) as caught:
            wheel_pin(version, arch, "glibc-2.36")
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("acceleration", "listed", "state"),
    [
        ("cuda", ["CUDA0: NVIDIA L4 (23034 MiB, 22500 MiB free)", "CUDA1: NVIDIA L4 (1 MiB, 1 MiB free)"], "available"),
        ("vulkan", ["Vulkan0: NVIDIA L4 (23034 MiB, 22500 MiB free)"], "available"),
        ("vulkan", ["CUDA0: NVIDIA L4 (1 MiB, 1 MiB free)"], "blocked"),
        ("cuda", [], "blocked"),
        ("cpu", [], "available"),
    ],
)
def test_a_program_of_the_users_is_made_for_devices_when_it_lists_one(
    tmp_path: Path, fake: Path, acceleration: Any, listed: list[str], state: str
) -> None:
    lister = tmp_path / "lister"
    said = "\n".join(["Available devices:", *(f"  {each}" for each in listed)])
    lister.write_text(
        f"#!/bin/sh\n[ \"$1\" = --list-devices ] && exec printf '%s\\n' '{said}'\n"
        f'[ "$1" = --help ] && echo --list-devices\nexec {fake} "$@"\n'
    )
    lister.chmod(0o755)
    wish = EngineWish("binary", path=str(lister), acceleration=acceleration)
    found = find_engine(wish, EngineSite(tmp_path, "", Machine("Linux", "x86_64", "glibc-2.36")))
    assert found.state == state
    if found.build is not None:
        assert found.build.acceleration == acceleration
    else:
        assert "--list-devices" in found.remedy
