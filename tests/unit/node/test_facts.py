"""Facts are what stands on the disk; a marker that cannot be read is an error and never a free host."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from sbctl.node.facts import FactsError, gather, installed_versions, read_marker
from sbctl.node.paths import STANDALONE_RECORD, NodePaths, node_paths
from sbctl.node.snapshot import NodeSnapshot


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = node_paths(os.getuid(), {"SBCTL_NODE_PREFIX": str(tmp_path)})
    for directory in (found.etc, found.opt):
        directory.mkdir()
    return found


def _environment(paths: NodePaths) -> dict[str, str]:
    return {
        "SBCTL_NODE_PREFIX": str(paths.etc.parent),
        "PATH": os.environ["PATH"],
        "HOME": "/root",
        "SECRET_TOKEN": "hunter2",
    }


def _install(paths: NodePaths, version: str) -> None:
    program = paths.version(version) / "bin" / "sbctl-runtime"
    program.parent.mkdir(parents=True)
    program.touch()


def test_facts_of_this_machine_are_a_valid_snapshot(paths: NodePaths) -> None:
    told = gather(_environment(paths), os.getuid())
    snapshot = NodeSnapshot.model_validate_json(json.dumps({**told, "bootstrapped": False}))
    assert snapshot.host.arch == os.uname().machine
    assert snapshot.host.memory_total_bytes > snapshot.host.memory_available_bytes > 0
    assert snapshot.host.uid == os.getuid()
    assert snapshot.host.init == "none"
    assert snapshot.host.libc.startswith(("glibc-", "musl-"))
    assert snapshot.paths is not None
    assert snapshot.paths.staging == str(paths.staging)
    assert snapshot.disk.state_free_bytes
    assert snapshot.marker is None


def test_the_interpreter_that_asks_is_among_the_pythons_each_once_by_its_real_path(paths: NodePaths) -> None:
    pythons = gather(_environment(paths), os.getuid(), [sys.executable, "/no/such/python"])["host"]["pythons"]
    listed = [python["path"] for python in pythons]
    assert os.path.realpath(sys._base_executable) in listed
    assert len(listed) == len(set(listed))
    assert all(os.path.realpath(path) == path for path in listed)


def test_a_runtime_saves_looking_for_other_interpreters_where_nobody_asks(paths: NodePaths, tmp_path: Path) -> None:
    other = tmp_path / "python3.12"
    other.write_text("#!/bin/sh\necho 3 12 0 /no/such/python3.12\n")
    other.chmod(0o755)

    def listed(**more: bool) -> list[str]:
        found = gather(_environment(paths), os.getuid(), [str(other)], **more)["host"]["pythons"]
        return [python["path"] for python in found]

    assert "/no/such/python3.12" in listed(pythons_if_installed=False)
    _install(paths, "0.1.0")
    assert listed(pythons_if_installed=False) == [os.path.realpath(sys._base_executable)]
    assert "/no/such/python3.12" in listed()


def test_an_interpreter_is_asked_once_until_it_changes(paths: NodePaths, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    other = tmp_path / "python3.13"
    for version, times in ((0, 1), (10, 2)):
        other.write_text(f"#!/bin/sh\necho >> {asked}\necho 3 13 {version} {other}\n")
        other.chmod(0o755)
        for _ in range(2):
            pythons = gather(_environment(paths), os.getuid(), [str(other)])["host"]["pythons"]
            assert {"path": str(other), "version": f"3.13.{version}"} in pythons
        assert len(asked.read_text()) == times


@pytest.mark.parametrize(
    "said",
    ["", "3.12", "3 12 0", "3 12 0 relative/python", "3 12 0 /python\nwarning", "three 12 0 /python", "3 7 9 /python"],
)
def test_a_program_that_says_something_else_is_no_interpreter(paths: NodePaths, tmp_path: Path, said: str) -> None:
    other = tmp_path / "python3.12"
    other.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    other.chmod(0o755)
    pythons = gather(_environment(paths), os.getuid(), [str(other)])["host"]["pythons"]
    assert pythons == gather(_environment(paths), os.getuid())["host"]["pythons"]


def test_only_named_variables_are_told(paths: NodePaths) -> None:
    told = gather({**_environment(paths), "XDG_STATE_HOME": "/s"}, os.getuid())["environment"]
    assert set(told) == {"PATH", "HOME", "XDG_STATE_HOME"}


def test_versions_are_those_with_a_program_and_current_is_one_of_them(paths: NodePaths) -> None:
    for version in ("0.2.0", "0.1.0"):
        _install(paths, version)
    (paths.opt / "0.3.0").mkdir()
    (paths.opt / "engines").mkdir()
    _install(paths, ".sbctl-tmp-1234")
    paths.current.symlink_to("0.2.0")
    assert installed_versions(paths) == ["0.1.0", "0.2.0"]
    assert gather(_environment(paths), os.getuid())["runtime"] == {
        "installed_versions": ["0.1.0", "0.2.0"],
        "current_version": "0.2.0",
        "standalone_pythons": [],
        "standalone_used": {},
    }


def test_a_standalone_python_is_the_fleets_and_none_of_the_hosts_own(paths: NodePaths) -> None:
    digest = "ab" * 32
    program = paths.pythons / digest[:12] / "bin/python3.12"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 3 12 7 " + str(program) + "\n")
    program.chmod(0o755)
    (program.parent.parent / STANDALONE_RECORD).write_text(digest + "\n")
    (paths.pythons / "half").mkdir()
    _install(paths, "0.1.0")
    (paths.version("0.1.0") / "bin/python").symlink_to(program)
    told = gather(_environment(paths), os.getuid(), [str(program)])
    assert told["runtime"]["standalone_pythons"] == [digest]
    assert told["runtime"]["standalone_used"] == {"0.1.0": digest}
    assert str(program) not in [python["path"] for python in told["host"]["pythons"]]


@pytest.mark.parametrize("value", ["0.9.9", "../0.1.0", "engines"])
def test_a_current_that_names_no_installed_version_is_none(paths: NodePaths, value: str) -> None:
    _install(paths, "0.1.0")
    paths.current.symlink_to(value)
    assert gather(_environment(paths), os.getuid())["runtime"]["current_version"] is None


def test_the_marker_tells_the_owner(paths: NodePaths) -> None:
    paths.marker.write_text('{"lineage": "l-1", "host": "gpu-a", "later": 1}')
    assert read_marker(paths) == {"lineage": "l-1", "host": "gpu-a"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"lineage": "l"}',
        b'{"lineage": "", "host": "h"}',
        b'{"lineage": 1, "host": "h"}',
        b"\xff",
        b"[" * 60000,
    ],
)
def test_a_damaged_marker_is_an_error_never_a_free_host(paths: NodePaths, content: bytes) -> None:
    paths.marker.write_bytes(content)
    with pytest.raises(FactsError) as caught:
        read_marker(paths)
    assert caught.value.code == "host.marker_damaged"
    assert caught.value.place == str(paths.marker)


@pytest.mark.parametrize("kind", ["symlink", "directory", "fifo"])
def test_a_marker_that_is_no_file_is_an_error(paths: NodePaths, kind: str) -> None:
    match kind:
        case "symlink":
            paths.marker.symlink_to("/etc/hostname")
        case "directory":
            paths.marker.mkdir()
        case _:
            os.mkfifo(paths.marker)
    with pytest.raises(FactsError):
        read_marker(paths)
