"""Finding engines: ours by their record, foreign ones by what they say, none that only looks like one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from sbctl.base.errors import EngineError
from sbctl.engines import detect
from sbctl.engines.detect import find_engine, find_llama_server, installed_wheels, probe_llama_server
from sbctl.engines.llama_cpp import launch_spec
from sbctl.engines.model import EngineAddress
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_for, wheel_pin
from tests.simulators import fake_llama_server


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
        model_path=Path("/m"),
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
    assert [found.version for found in installed_wheels(tmp_path)] == ["1.0"]
    assert installed_wheels(tmp_path / "none") == ()


def test_availability_says_what_to_do(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_SYSTEM_DIRECTORIES", ())
    engines = tmp_path / "engines"
    record(engines, "1.0")

    def state(launch: str, version: str | None = None, path: str | None = None, search: str = "") -> str:
        found = find_engine(launch=launch, version=version, path=path, engines=engines, search_path=search)  # type: ignore[arg-type]
        assert (found.build is not None) == (found.state == "available")
        assert found.state == "available" or (found.reason and found.remedy)
        return found.state

    assert state("wheel", "1.0") == "available"
    assert state("wheel", LLAMA_CPP_WHEEL_DEFAULT) == "acquirable"
    assert state("wheel", "0.0") == "blocked"
    assert state("binary") == "blocked"
    assert state("binary", path=str(fake)) == "available"
    assert state("binary", search=str(fake.parent)) == "available"
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
