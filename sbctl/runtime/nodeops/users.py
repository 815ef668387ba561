"""The two system accounts of a host and who owns what there.

    sbctl          the runtime: owns its state and the model cache, reads its configuration
    sbctl-engine   the engines: owns nothing, reads weights and programs, which everybody may read

    /etc/sbctl           root:sbctl   directories 02750, files 0640       (engines get no further than the door); `secrets` are root's
    /var/lib/sbctl       sbctl:sbctl  the top 0700
    the model cache      sbctl:sbctl  the top 0755
    /opt/sbctl           root

Accounts that an administrator made beforehand are used when they are harmless; `remove_users` removes only those made here, which their
comment tells. Changing owners never follows a link, and never touches a file with a second name in a tree that `sbctl` could already write:
the other name might be somebody else's file.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.errors import HostError, RefusedError
from sbctl.base.fs import ensure_directory
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.programs import run_program

__all__ = [
    "ENGINE_USER",
    "RUNTIME_USER",
    "Accounts",
    "acting_as_owner",
    "ensure_users",
    "find_users",
    "hand_over",
    "own_cache",
    "own_directories",
    "remove_users",
    "take_back_cache",
]

RUNTIME_USER: Final = "sbctl"
ENGINE_USER: Final = "sbctl-engine"
_COMMENTS: Final = {RUNTIME_USER: "sbctl runtime", ENGINE_USER: "sbctl engines"}
_NO_LOGIN: Final = ("/usr/sbin/nologin", "/sbin/nologin", "/usr/bin/nologin", "/bin/false", "/usr/bin/false")
_DEADLINE_S: Final = 60.0
_ROOTS_OWN: Final = frozenset({"secrets", "enrollment", "store", "activation", "activation.lock", "marker.lock"})
"""In the configuration directory, for root alone: systemd hands secrets to the runtime as credentials."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Accounts:
    """Numbers of the two accounts, and of the runtime's group."""

    runtime_uid: int
    runtime_gid: int
    engine_uid: int


def ensure_users() -> Accounts:
    """Make what is missing, by systemd-sysusers where it is, else by useradd. Done again it changes nothing.

    Raises RefusedError `host.account_conflict` for an account of that name which is no harmless system account, HostError
    `host.account_failed` when one cannot be made.
    """
    for name in (RUNTIME_USER, ENGINE_USER):
        if _account(name) is None:
            _refuse_foreign_group(name)
            _make(name)
    return _required()


def find_users() -> Accounts | None:
    """Both accounts; None when one is missing. Raises RefusedError `host.account_conflict`."""
    return None if any(_account(name) is None for name in (RUNTIME_USER, ENGINE_USER)) else _required()


def remove_users() -> None:
    """Remove the accounts that were made here, with their groups; others stay. Raises HostError `host.account_failed`."""
    for name in (ENGINE_USER, RUNTIME_USER):
        account = _account(name)
        if account is None or account.pw_gecos != _COMMENTS[name]:
            continue
        done = run_program(("userdel", name), deadline_s=_DEADLINE_S)
        if done.returncode:
            raise _failed(name, "removed", done.tail())
        # userdel takes the group along only where login.defs says so.
        if _group(name) is not None:
            run_program(("groupdel", name), deadline_s=_DEADLINE_S)


def own_directories(paths: NodePaths, cache: Path, accounts: Accounts) -> None:
    """Give the directories of one host to their owners, also what an installation that ran as root has left there.

    Only what exists is touched; done again it changes nothing. Raises HostError `host.ownership_failed`.
    """
    try:
        _own(paths.etc, 0, accounts.runtime_gid, modes=(0o2750, 0o640), leave=_ROOTS_OWN)
        _own(paths.state, accounts.runtime_uid, accounts.runtime_gid, top=0o700)
        _own(cache, accounts.runtime_uid, accounts.runtime_gid, top=0o755)
    except OSError as error:
        raise _ownership_failed(error, paths.state) from error


@contextlib.contextmanager
def acting_as_owner(directory: Path) -> Iterator[None]:
    """For the length of the block this process, when it is root, is the account that owns `directory`, with no right of root's.

    What it makes there belongs to that account, and what it reads there cannot reach further. Nothing changes for anybody else.
    """
    owner = _owner_of(directory)
    if os.geteuid() != 0 or owner is None or owner.st_uid == 0:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def own_cache(cache: Path, like: Path) -> None:
    """As root: the model cache is there and belongs to the account that owns `like`, also when somebody removed it.

    Raises HostError `host.ownership_failed`, SbctlError `disk.*`.
    """
    owner = _owner_of(like)
    if os.geteuid() != 0 or owner is None or owner.st_uid == 0:
        return
    ensure_directory(cache, mode=0o755)
    try:
        _own(cache, owner.st_uid, owner.st_gid, top=0o755)
    except OSError as error:
        raise _ownership_failed(error, cache) from error


def take_back_cache(cache: Path) -> None:
    """Before the accounts are removed: what `sbctl` has in the model cache becomes root's, as the weights of a host that is given up may stay.

    An account that gets the same number later finds nothing of its own here, and nothing that it could write or that runs as root.
    Raises HostError `host.ownership_failed`, RefusedError `host.account_conflict`.
    """
    accounts = find_users()
    if accounts is None:
        return
    if not cache.is_dir() or cache.is_symlink():
        return
    try:
        _take_back(cache, accounts.runtime_uid)
    except OSError as error:
        raise _ownership_failed(error, cache) from error


def hand_over(file: Path, directory: Path) -> None:
    """As root: give a file with one name to the account that owns `directory`, so that it may be linked there. Links are left alone."""
    owner = _owner_of(directory)
    if os.geteuid() != 0 or owner is None or owner.st_uid == 0:
        return
    with contextlib.suppress(OSError):
        fd = os.open(file, _FILE)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                os.fchown(fd, owner.st_uid, owner.st_gid)
        finally:
            os.close(fd)


def _owner_of(directory: Path) -> os.stat_result | None:
    try:
        return os.lstat(directory)
    except OSError:
        return None


# Accounts


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _group(name: str) -> grp.struct_group | None:
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def _conflict(account: pwd.struct_passwd, group: grp.struct_group | None) -> str | None:
    """Why an account cannot be used, in a phrase; None when it can."""
    if account.pw_uid == 0 or account.pw_gid == 0:
        return "has root's rights"
    if account.pw_shell not in _NO_LOGIN:
        return f"can log in (its shell is {account.pw_shell or 'the default'})"
    if group is None or group.gr_gid != account.pw_gid:
        return "has no group of its own name"
    if group.gr_mem:
        return f"shares its group with {', '.join(group.gr_mem[:3])}"
    return None


def _required() -> Accounts:
    found = {}
    for name in (RUNTIME_USER, ENGINE_USER):
        account = _account(name)
        if account is None:
            raise _failed(name, "made", "it is not in the user database afterwards")
        problem = _conflict(account, _group(name))
        if problem is not None:
            raise _conflicting(name, problem)
        found[name] = account
    runtime, engine = found[RUNTIME_USER], found[ENGINE_USER]
    if runtime.pw_uid == engine.pw_uid or runtime.pw_gid == engine.pw_gid:
        raise _conflicting(ENGINE_USER, f"is the same as {RUNTIME_USER}, so that engines could read its secrets")
    return Accounts(runtime.pw_uid, runtime.pw_gid, engine.pw_uid)


def _refuse_foreign_group(name: str) -> None:
    """Before an account is made: a group of its name with members would give them its files."""
    group = _group(name)
    if group is not None and (group.gr_mem or group.gr_gid == 0):
        raise _conflicting(name, "is the name of a group that others are members of")


def _make(name: str) -> None:
    try:
        line = f'u {name} - "{_COMMENTS[name]}" /'
        done = run_program(("systemd-sysusers", "--inline", line), deadline_s=_DEADLINE_S)
    except HostError as error:
        if error.code != "host.program_missing":
            raise
        group = ("--gid", name) if _group(name) is not None else ("--user-group",)
        argv = ("useradd", "--system", *group, "--no-create-home", "--home-dir", "/", "--shell", _NO_LOGIN[0])
        done = run_program((*argv, "--comment", _COMMENTS[name], name), deadline_s=_DEADLINE_S)
    if done.returncode or _account(name) is None:
        raise _failed(name, "made", done.tail())


def _conflicting(name: str, problem: str) -> RefusedError:
    return RefusedError(
        "host.account_conflict",
        f'the account "{name}" on this host {problem}',
        place=f"account {name}",
        next_step="remove or rename it, or make it a system account of its own without a login shell",
    )


def _failed(name: str, what: str, said: str) -> HostError:
    return HostError(
        "host.account_failed",
        f'the account "{name}" could not be {what}: {said or "the program said nothing"}',
        place=f"account {name}",
        next_step="look at /etc/passwd and its locks on this host, then run the command again",
        retryable=True,
    )


# Owners


def _ownership_failed(error: OSError, place: Path) -> HostError:
    return HostError(
        "host.ownership_failed",
        f"a file could not be given to its account: {error.strerror}",
        place=str(error.filename or place),
        next_step="look at this file and its directory, then run sbctl apply again",
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """What a tree gets. `was_roots`: nobody but root could write in it so far, so every name in it is one of ours."""

    uid: int
    gid: int
    modes: tuple[int, int] | None
    was_roots: bool


def _own(
    root: Path,
    uid: int,
    gid: int,
    *,
    top: int | None = None,
    modes: tuple[int, int] | None = None,
    leave: frozenset[str] = frozenset(),
) -> None:
    try:
        fd = os.open(root, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        change = _Change(uid, gid, modes, was_roots=os.fstat(fd).st_uid == 0)
        # From the leaves up, so that an interrupted change still knows the tree as root's.
        _own_below(fd, change, leave)
        _own_one(fd, change, modes[0] if modes is not None else top)
    finally:
        os.close(fd)


def _own_below(fd: int, change: _Change, leave: frozenset[str] = frozenset()) -> None:
    for name in sorted(os.listdir(fd)):
        if name in leave:
            continue
        kind = _kind(fd, name)
        if kind is None or not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            continue
        is_directory = stat.S_ISDIR(kind)
        # Gone or replaced by a link since the look: whoever did that did it as an owner of this directory.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            below = os.open(name, _DIRECTORY if is_directory else _FILE, dir_fd=fd)
            try:
                if is_directory:
                    _own_below(below, change)
                mode = None if change.modes is None else change.modes[0 if is_directory else 1]
                _own_one(below, change, mode)
            finally:
                os.close(below)


def _kind(fd: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _own_one(fd: int, change: _Change, mode: int | None) -> None:
    status = os.fstat(fd)
    is_second_name = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    if is_second_name and not change.was_roots:
        return
    if (status.st_uid, status.st_gid) != (change.uid, change.gid):
        os.fchown(fd, change.uid, change.gid)
    if mode is not None and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(fd, mode)


def _take_back(root: Path, uid: int) -> None:
    """A tree, from that account to root. What the account put there as a second name of somebody else's file goes, as do links: the next
    installation gives the whole tree to the account again."""
    names: Counter[int] = Counter()
    for _, directories, files, fd in os.fwalk(root):
        names.update(os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino for name in (*directories, *files))
    for _, directories, files, fd in os.fwalk(root, topdown=False):
        for name in (*directories, *files):
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid == uid:
                file = os.open(name, _FILE, dir_fd=fd)
                try:
                    _give_to_root(file)
                finally:
                    os.close(file)
            elif not stat.S_ISDIR(status.st_mode) and (
                not stat.S_ISREG(status.st_mode) or status.st_nlink > names[status.st_ino]
            ):
                os.unlink(name, dir_fd=fd)
        if os.fstat(fd).st_uid == uid:
            _give_to_root(fd)


def _give_to_root(fd: int) -> None:
    """Without set-id bits, and nobody else may write."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    os.fchown(fd, 0, 0)
    os.fchmod(fd, mode & 0o755)
