"""The two accounts: made once, refused when they are somebody else's; and whose the files of a host are afterwards."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import HostError, RefusedError, SbctlError
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops import users
from sbctl.runtime.nodeops.programs import Finished
from sbctl.runtime.nodeops.users import (
    Accounts,
    acting_as_owner,
    ensure_users,
    find_users,
    own_cache,
    own_directories,
    remove_users,
    take_back_cache,
)

ACCOUNTS = Accounts(4711, 4712, 4713)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


class Database:
    """/etc/passwd and /etc/group, and the programs that change them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sysusers: bool = True) -> None:
        self.accounts: dict[str, pwd.struct_passwd] = {}
        self.groups: dict[str, grp.struct_group] = {}
        self.commands: list[Sequence[str]] = []
        self._sysusers = sysusers
        monkeypatch.setattr(users.pwd, "getpwnam", self.accounts.__getitem__)
        monkeypatch.setattr(users.grp, "getgrnam", self.groups.__getitem__)
        monkeypatch.setattr(users, "run_program", self._run)

    def add(
        self,
        name: str,
        uid: int = 990,
        *,
        shell: str = "/usr/sbin/nologin",
        comment: str = "",
        group: str | None = None,
    ) -> None:
        self.accounts[name] = pwd.struct_passwd((name, "x", uid, uid, comment, "/", shell))
        self.groups[group or name] = grp.struct_group((group or name, "x", uid, []))

    def _run(self, argv: Sequence[str], **_more: Any) -> Finished:
        self.commands.append(argv)
        match argv:
            case ("systemd-sysusers", "--inline", line):
                if not self._sysusers:
                    raise HostError("host.program_missing", "it is not there")
                name = line.split()[1]
                self.add(name, 990 + len(self.accounts), comment=line.split('"')[1])
            case ("useradd", *rest):
                self.add(rest[-1], 990 + len(self.accounts), comment=rest[-2])
            case ("userdel", name):
                del self.accounts[name]
            case ("groupdel", name):
                del self.groups[name]
        return Finished(0, "")


@pytest.mark.parametrize("sysusers", [True, False])
def test_accounts_are_made_once_and_removed_whole(monkeypatch: pytest.MonkeyPatch, sysusers: bool) -> None:
    database = Database(monkeypatch, sysusers=sysusers)
    assert find_users() is None
    made = ensure_users()
    count = len(database.commands)
    assert ensure_users() == find_users() == made
    assert len(database.commands) == count
    remove_users()
    assert (database.accounts, database.groups) == ({}, {})
    remove_users()


def test_an_account_that_an_administrator_made_is_used_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(monkeypatch)
    database.add("sbctl", 801, comment="made by hand")
    assert ensure_users().runtime_uid == 801
    remove_users()
    assert set(database.accounts) == {"sbctl"}


CONFLICTS: dict[str, tuple[Callable[[Database], None], str]] = {
    "root by another name": (lambda database: database.add("sbctl", 0), "root's rights"),
    "somebody who can log in": (lambda database: database.add("sbctl", 1000, shell="/bin/bash"), "log in"),
    "a shell by default": (lambda database: database.add("sbctl-engine", 1000, shell=""), "log in"),
    "no group of its own": (lambda database: database.add("sbctl", 990, group="users"), "group"),
    "a shared group": (
        lambda database: (
            database.add("sbctl", 990),
            database.groups.update(sbctl=grp.struct_group(("sbctl", "x", 990, ["eve"]))),
        )[0],
        "eve",
    ),
    "a group with members, no account": (
        lambda database: database.groups.update(sbctl=grp.struct_group(("sbctl", "x", 900, ["eve"]))),
        "members",
    ),
    "one account for both": (
        lambda database: (database.add("sbctl", 990), database.add("sbctl-engine", 990))[0],
        "same as sbctl",
    ),
}


@pytest.mark.parametrize(("there", "word"), CONFLICTS.values(), ids=CONFLICTS)
def test_an_account_of_somebody_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, there: Callable[[Database], None], word: str
) -> None:
    there(Database(monkeypatch))
    with pytest.raises(RefusedError, match=word) as caught:
        ensure_users()
    assert caught.value.code == "host.account_conflict"


def test_an_account_that_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Database(monkeypatch)
    monkeypatch.setattr(users, "run_program", lambda *_args, **_more: Finished(1, "cannot lock /etc/passwd"))
    with pytest.raises(SbctlError, match="cannot lock") as caught:
        ensure_users()
    assert caught.value.code == "host.account_failed"


def _node(root: Path) -> tuple[NodePaths, Path]:
    paths = NodePaths(root / "etc", root / "state", root / "cache", root / "opt")
    for directory in (paths.secrets, paths.engine_records, paths.models / "blobs", paths.models / "snapshots" / "a"):
        directory.mkdir(parents=True)
    for file in (
        paths.runtime_config,
        paths.secrets / "admin_password",
        paths.database,
        paths.engine_records / "x.json",
    ):
        file.write_text("x")
        file.chmod(0o600)
    blob = paths.models / "blobs" / "b"
    blob.write_text("x")
    blob.chmod(0o444)
    os.link(blob, paths.models / "snapshots" / "a" / "m.gguf")
    return paths, paths.models


def _seen(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, status.st_mode & 0o7777


@as_root
def test_an_installation_that_ran_as_root_is_handed_over(tmp_path: Path) -> None:
    paths, cache = _node(tmp_path)
    for _ in range(2):
        own_directories(paths, cache, ACCOUNTS)
        assert _seen(paths.etc) == (0, 4712, 0o2750)
        assert _seen(paths.runtime_config) == (0, 4712, 0o640)
        assert _seen(paths.state) == (4711, 4712, 0o700)
        assert _seen(paths.database) == _seen(paths.engine_records / "x.json") == (4711, 4712, 0o600)
        assert _seen(cache) == (4711, 4712, 0o755)
        assert _seen(cache / "snapshots" / "a" / "m.gguf") == (4711, 4712, 0o444)


@as_root
def test_owners_are_changed_through_no_link_and_for_no_second_name(tmp_path: Path) -> None:
    paths, cache = _node(tmp_path)
    own_directories(paths, cache, ACCOUNTS)
    outside = tmp_path / "shadow"
    outside.write_text("secret")
    outside.chmod(0o600)
    (paths.state / "link").symlink_to(outside)
    (paths.state / "directory").symlink_to(tmp_path)
    os.link(outside, paths.state / "second-name")
    os.mkfifo(paths.state / "fifo")
    own_directories(paths, cache, ACCOUNTS)
    assert _seen(outside) == (0, 0, 0o600)
    assert _seen(paths.state / "link")[0] == 0
    assert _seen(tmp_path)[0] == 0


@as_root
def test_work_in_somebodys_directory_is_done_as_they(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 4711, 4712)
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    with acting_as_owner(theirs):
        assert (os.geteuid(), os.getegid(), os.getgroups()) == (4711, 4712, [4712])
        with pytest.raises(PermissionError):
            secret.read_text()
    assert (os.geteuid(), os.getegid()) == (0, 0)
    with acting_as_owner(tmp_path / "not there"):
        assert os.geteuid() == 0


@as_root
def test_a_cache_that_somebody_removed_is_the_runtimes_again(tmp_path: Path) -> None:
    paths, cache = _node(tmp_path)
    own_cache(cache, paths.state)
    assert _seen(cache)[:2] == (0, 0)
    own_directories(paths, cache, ACCOUNTS)
    shutil.rmtree(cache)
    own_cache(cache, paths.state)
    assert _seen(cache) == (4711, 4712, 0o755)


@as_root
def test_kept_weights_are_roots_and_hold_nothing_that_an_account_of_that_number_could_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, cache = _node(tmp_path)
    own_directories(paths, cache, ACCOUNTS)
    monkeypatch.setattr(users, "find_users", lambda: ACCOUNTS)
    planted = cache / "blobs" / "planted"
    planted.write_text("x")
    os.chown(planted, 4711, 4712)
    planted.chmod(0o6777)
    outside = tmp_path / "shadow"
    outside.write_text("secret")
    os.link(outside, cache / "blobs" / "second-name")
    (cache / "blobs" / "link").symlink_to(outside)
    (cache / "blobs" / "directory").symlink_to(tmp_path)
    for _ in range(2):
        take_back_cache(cache)
        assert {(path.lstat().st_uid, path.lstat().st_gid) for path in (cache, *cache.rglob("*"))} == {(0, 0)}
        assert _seen(planted) == (0, 0, 0o755)
        assert sorted(os.listdir(cache / "blobs")) == ["b", "planted"]
        assert (cache / "snapshots" / "a" / "m.gguf").stat().st_nlink == 2
    assert outside.read_text() == "secret"
    own_directories(paths, cache, ACCOUNTS)
    assert _seen(cache / "snapshots" / "a" / "m.gguf") == (4711, 4712, 0o444)
    take_back_cache(tmp_path / "not there")


def test_nothing_is_done_where_nothing_is(tmp_path: Path) -> None:
    paths = NodePaths(tmp_path / "etc", tmp_path / "state", tmp_path / "cache", tmp_path / "opt")
    own_directories(paths, paths.models, ACCOUNTS)
    assert list(tmp_path.iterdir()) == []
