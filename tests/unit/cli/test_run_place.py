from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from sbctl.base.flock import held
from sbctl.cli.run_place import private_directory, remove_abandoned
from sbctl.node.paths import OWNER_LOCK


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _left(temp: Path, name: str = "sbctl-run-left") -> Path:
    """What a killed run leaves."""
    directory = temp / name
    (directory / "node" / "state").mkdir(parents=True)
    (directory / "sb.yml").write_text("{}")
    (directory / "node" / OWNER_LOCK).touch()
    return directory


def test_the_directory_of_a_run_is_held_while_it_lives_and_gone_afterwards(temp: Path) -> None:
    with private_directory() as directory:
        (directory / "sb.yml").write_text("{}")
        with held(directory / "node" / OWNER_LOCK) as free:
            assert not free
        remove_abandoned(temp)
        assert directory.is_dir()
    assert list(temp.iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_the_next_and_named(
    temp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = _left(temp)
    with private_directory():
        assert not left.exists()
    assert str(left) in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["sb.yml", f"node/{OWNER_LOCK}"])
def test_what_may_be_just_beginning_is_left_alone(temp: Path, missing: str) -> None:
    begun = _left(temp)
    (begun / missing).unlink()
    remove_abandoned(temp)
    assert begun.is_dir()


def test_a_link_is_not_followed(temp: Path) -> None:
    target = _left(temp, "elsewhere")
    (temp / "sbctl-run-link").symlink_to(target)
    remove_abandoned(temp)
    assert (target / "sb.yml").is_file()


def test_a_runtime_that_does_not_end_keeps_its_directory(
    temp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sbctl.cli.run_place._STOP_DEADLINE_S", 0.0)
    left = _left(temp)
    with held(left / "node" / "state" / "serve.lock"):
        remove_abandoned(temp)
    assert left.is_dir()
    assert "does not end" in capsys.readouterr().err
