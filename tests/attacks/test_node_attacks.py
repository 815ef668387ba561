"""Abuse of the machine that serves (docs/threats.md, H5 and F26): what others may read, and what an engine is given."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = pytest.mark.integration

CANARY = "canary-77aa"
OPEN_TO_READ = {"marker.json"}


@pytest.fixture(scope="module", params=[0o000, 0o077])
def applied(request: pytest.FixtureRequest) -> Iterator[OperatorWorld]:
    before = os.umask(request.param)
    try:
        with new_world() as world:
            world.env = {"HF_TOKEN": CANARY, "LLAMA_ARG_HOST": "0.0.0.0", "LD_PRELOAD_X": CANARY}
            world.sbctl("apply", "--yes", expect=0)
            yield world
    finally:
        os.umask(before)


def entries(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            yield path, status


def test_H5_nothing_is_writable_by_others_whatever_the_umask(applied: OperatorWorld) -> None:
    roots = [applied.prefix, applied.fleet / ".sbctl", applied.home / ".config"]
    found = [str(path) for root in roots for path, status in entries(root) if status.st_mode & 0o022]
    assert found == []


def test_H5_state_keys_and_secrets_are_for_their_owner_only(applied: OperatorWorld) -> None:
    paths = applied.paths
    private = [paths.etc, paths.state, applied.fleet / ".sbctl", applied.home / ".config" / "sbctl" / "keys"]
    found = [
        str(path)
        for root in private
        for path, status in entries(root)
        if path != root
        and not stat.S_ISDIR(status.st_mode)
        and status.st_mode & 0o077
        and path.name not in OPEN_TO_READ
    ]
    assert found == []


def test_F26_runtime_and_engine_inherit_nothing(applied: OperatorWorld) -> None:
    processes = [*applied.running("main supervise"), *applied.running("main serve"), applied.engine]
    assert len(processes) == 3
    password = (applied.paths.secrets / "admin_password").read_text()
    for process in processes:
        given = f"{process.environ()} {process.cmdline()}"
        assert CANARY not in given
        assert password not in given
        assert "LLAMA_ARG" not in given
        assert os.readlink(f"/proc/{process.pid}/fd/0") == "/dev/null"
    kept = [
        os.readlink(f"/proc/{applied.engine.pid}/fd/{name}") for name in os.listdir(f"/proc/{applied.engine.pid}/fd")
    ]
    assert not [target for target in kept if target.startswith(str(applied.paths.state))]
