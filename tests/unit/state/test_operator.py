"""Who, from which commit, in which job; and never an error."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from pathlib import Path

import pytest

from sbctl.state import operator
from sbctl.state.operator import ci_url, commit_of, lock_info, run_info, who
from tests.simulators.fleet import ManualClock

COMMIT = "3f2a91c0" * 5
OTHER = "0123abcd" * 5


@pytest.mark.parametrize(
    ("environ", "user"),
    [
        ({"USER": "ops"}, "ops"),
        ({"LOGNAME": "ops"}, "ops"),
        ({"USER": "root", "SUDO_USER": "ops"}, "ops"),
        ({"USER": "runner", "GITHUB_ACTOR": "octocat"}, "octocat"),
        ({"USER": "root", "GITLAB_USER_LOGIN": "tanuki"}, "tanuki"),
        ({"USER": "a\x1b[31mb"}, "a\\x1b[31mb"),
    ],
)
def test_the_operator_is_user_at_host(environ: dict[str, str], user: str) -> None:
    assert who(environ) == f"{user}@{socket.gethostname()}"


def test_without_environment_the_account_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert who({}).split("@")[0] == pwd.getpwuid(os.getuid()).pw_name

    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(operator.pwd, "getpwuid", unknown)
    assert who({}).split("@")[0] == str(os.getuid())


GITHUB = {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "7"}


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, ""),
        (GITHUB, "https://github.example/o/r/actions/runs/7"),
        ({"GITHUB_SERVER_URL": "https://github.example"}, ""),
        ({"CI_JOB_URL": "https://gitlab.example/g/p/-/jobs/9"}, "https://gitlab.example/g/p/-/jobs/9"),
        ({"BUILD_URL": "http://jenkins.example/job/1/"}, "http://jenkins.example/job/1/"),
        ({"CI_JOB_URL": "https://user:secret@gitlab.example/j?token=secret#secret"}, "https://gitlab.example/j"),
        ({"CI_JOB_URL": "javascript:alert(1)"}, ""),
        ({"CI_JOB_URL": "https://[broken"}, ""),
        ({"CI_JOB_URL": "not a url"}, ""),
        ({"CI_JOB_URL": "https://x.example/" + "a" * 600}, ""),
    ],
)
def test_the_ci_job(environ: dict[str, str], url: str) -> None:
    assert ci_url(environ) == url


def repository(root: Path, head: str, **files: str) -> Path:
    git = root / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, content in files.items():
        path = git / name.replace("__", "/").replace("_", "-", 1 if name == "packed_refs" else 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


PACKED = f"# pack-refs with: peeled\n{OTHER} refs/heads/other\n{COMMIT} refs/heads/main\n^{OTHER}\n"


@pytest.mark.parametrize(
    ("head", "files", "commit"),
    [
        (f"{COMMIT}\n", {}, COMMIT),
        ("ref: refs/heads/main\n", {"refs__heads__main": f"{COMMIT}\n"}, COMMIT),
        ("ref: refs/heads/main\n", {"packed_refs": PACKED}, COMMIT),
        ("ref: refs/heads/main\n", {"refs__heads__main": f"{COMMIT}\n", "packed_refs": PACKED.replace(COMMIT, OTHER)}, COMMIT),
        ("ref: refs/heads/unborn\n", {}, ""),
        ("ref: refs/heads/main\n", {"refs__heads__main": "ref: refs/heads/loop\n"}, ""),
        ("ref: refs/../../../etc/passwd\n", {}, ""),
        ("ref: ../secret\n", {}, ""),
        ("nonsense", {}, ""),
        ("", {}, ""),
    ],
)  # fmt: skip
def test_the_commit_comes_from_gits_own_files(tmp_path: Path, head: str, files: dict[str, str], commit: str) -> None:
    root = repository(tmp_path / "repo", head, **files)
    (root / "deep" / "er").mkdir(parents=True)
    assert commit_of(root / "deep" / "er", {}) == commit


def test_a_worktree_points_to_its_repository(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", f"{OTHER}\n", packed_refs=PACKED)
    place = root / ".git" / "worktrees" / "w"
    place.mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "commondir").write_text("../..\n")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {place}\n")
    assert commit_of(tree, {}) == COMMIT
    (tree / ".git").write_text("nonsense\n")
    assert commit_of(tree, {}) == ""


@pytest.mark.parametrize(
    ("environ", "commit"),
    [
        ({"GITHUB_SHA": COMMIT}, COMMIT),
        ({"CI_COMMIT_SHA": COMMIT.upper()}, COMMIT),
        ({"GITHUB_SHA": "$(rm -rf)"}, ""),
        ({}, ""),
    ],
)
def test_outside_a_repository_ci_is_asked(tmp_path: Path, environ: dict[str, str], commit: str) -> None:
    assert commit_of(tmp_path, environ) == commit


def test_a_repository_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    root = repository(tmp_path / "repo", "x")
    (root / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert commit_of(root, {"GITHUB_SHA": COMMIT}) == COMMIT
    (root / ".git" / "HEAD").unlink()
    (root / ".git" / "HEAD").mkdir()
    assert commit_of(root, {}) == ""


def test_it_agrees_with_git(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example", "-c", "init.defaultBranch=main")
        argv = ["git", *identity, "-C", str(tmp_path), *arguments]
        return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    assert commit_of(tmp_path, {}) == git("rev-parse", "HEAD")
    git("pack-refs", "--all")
    assert commit_of(tmp_path, {}) == git("rev-parse", "HEAD")


def test_what_runs_and_locks_say(tmp_path: Path) -> None:
    environ = {"USER": "ops", "GITHUB_SHA": COMMIT, **GITHUB}
    info = run_info("apply", environ, tmp_path)
    assert (info.command, info.operator, info.commit) == ("apply", who(environ), COMMIT)
    assert info.ci_url.endswith("/runs/7")
    assert info.tool_version
    clock = ManualClock()
    held = lock_info("apply", environ, clock)
    assert (held.who, held.pid, held.command, held.since) == (who(environ), os.getpid(), "apply", clock.now())
