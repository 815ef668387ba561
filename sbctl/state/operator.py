"""Who runs this, from which commit, in which CI job: for history and lock messages. Gathering never fails; what is not known is empty."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sbctl import __version__
from sbctl.base.clock import Clock
from sbctl.base.display import display_safe
from sbctl.base.errors import SbctlError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import MIB
from sbctl.state.model import LockInfo, RunInfo

__all__ = ["ci_url", "commit_of", "lock_info", "run_info", "who"]

_ACTORS: Final = ("GITHUB_ACTOR", "GITLAB_USER_LOGIN", "BUILDKITE_BUILD_CREATOR", "SUDO_USER", "USER", "LOGNAME")
_JOB_URLS: Final = ("CI_JOB_URL", "CI_PIPELINE_URL", "BUILD_URL", "CIRCLE_BUILD_URL", "BUILDKITE_BUILD_URL")
_COMMITS: Final = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "CIRCLE_SHA1", "BUILDKITE_COMMIT")
_COMMIT_RE: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FIELD_MAX_CHARS: Final = 256


def run_info(command: str, environ: Mapping[str, str], directory: Path) -> RunInfo:
    """What a run's line of history says. `directory` is that of sb.yml."""
    return RunInfo(
        command=command,
        operator=who(environ),
        commit=commit_of(directory, environ),
        ci_url=ci_url(environ),
        tool_version=__version__,
    )


def lock_info(command: str, environ: Mapping[str, str], clock: Clock) -> LockInfo:
    """What the one who waits for our lock is told."""
    return LockInfo(who(environ), os.getpid(), command, clock.now())


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def who(environ: Mapping[str, str]) -> str:
    """`user@host`: the CI's actor, the user behind sudo, or the account."""
    user = _first(environ, _ACTORS)
    if not user:
        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return display_safe(f"{user}@{socket.gethostname()}", max_chars=_FIELD_MAX_CHARS)


def ci_url(environ: Mapping[str, str]) -> str:
    """The page of the running CI job, without user, query or fragment, where tokens could be; empty outside CI."""
    text = _first(environ, _JOB_URLS)
    server, repository, run = (environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    if server and repository and run:
        text = f"{server}/{repository}/actions/runs/{run}"
    if not text:
        return ""
    from yarl import URL

    try:
        url = URL(text).with_user(None).with_query(None).with_fragment(None)
    except ValueError:
        return ""
    if url.scheme not in ("http", "https") or len(str(url)) > 2 * _FIELD_MAX_CHARS:
        return ""
    return display_safe(str(url), max_chars=2 * _FIELD_MAX_CHARS)


def commit_of(directory: Path, environ: Mapping[str, str]) -> str:
    """The commit checked out where `directory` is, read from git's own files; else what CI says; else empty."""
    with contextlib.suppress(SbctlError, OSError, ValueError):
        for git in _git_directories(directory):
            commit = _head_commit(git)
            if commit:
                return commit
    named = _first(environ, _COMMITS).lower()
    return named if _COMMIT_RE.fullmatch(named) else ""


def _text(path: Path) -> str:
    return read_bounded(path, max_bytes=4 * MIB).decode("utf-8", errors="strict").strip()


def _git_directories(directory: Path) -> Iterator[Path]:
    """The `.git` of the nearest repository; in a worktree or submodule a file points to it."""
    absolute = directory.absolute()
    for parent in (absolute, *absolute.parents):
        git = parent / ".git"
        if git.is_dir():
            yield git
            return
        if git.is_file():
            pointer = _text(git)
            if pointer.startswith("gitdir: "):
                yield parent / pointer.removeprefix("gitdir: ")
            return


def _head_commit(git: Path) -> str:
    head = _text(git / "HEAD")
    if not head.startswith("ref: "):
        return head if _COMMIT_RE.fullmatch(head) else ""
    reference = head.removeprefix("ref: ")
    if not reference.startswith("refs/") or ".." in reference:
        return ""
    common = git / "commondir"
    shared = git / _text(common) if common.is_file() else git
    for place in (git, shared):
        if (place / reference).is_file():
            commit = _text(place / reference)
            return commit if _COMMIT_RE.fullmatch(commit) else ""
    return _packed_commit(shared / "packed-refs", reference)


def _packed_commit(path: Path, reference: str) -> str:
    if path.is_file():
        for line in _text(path).splitlines():
            commit, _, name = line.partition(" ")
            if name == reference and _COMMIT_RE.fullmatch(commit):
                return commit
    return ""
