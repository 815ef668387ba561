"""examples/ci-gate as CI systems run it: fresh checkouts, secrets as variables, no terminal, nothing kept between jobs but what is passed on.

A small runner takes the scripts out of the very files, for GitHub and GitLab. The fleet is this machine with the fake engine, its state on
a server as the example names it; `gh` and `curl` are programs that note what they were asked.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.simulators.operator_world import ROOT, SBCTL, OperatorWorld, new_world
from tests.simulators.state_server import StateServer, serving

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

GATE = ROOT / "examples" / "ci-gate"
PASSWORD, PHRASE = "let me in", "correct horse battery staple"
_NOTE = '#!/bin/sh\nprintf "%s\\n" "$@" >> "$NOTED"\n'


def read_yaml(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return loaded


class Fleet:
    """A repository of a fleet: `main` as it is applied, `change` as somebody asks for it. Each job has a checkout and a home of its own."""

    def __init__(self, world: OperatorWorld, server: StateServer, example: Path) -> None:
        self.world, self.server = world, server
        state = read_yaml(example / "sb.yml")["fleet"]["state"]
        for name in ("address", "lock_address", "unlock_address"):
            if name in state:
                state[name] = server.url("/state" + ("/lock" if "lock" in name else ""))
        world.config["fleet"] = {"name": "prod", "state": state}
        world.env = {"STATE_PASSWORD": PASSWORD, "STATE_PASSPHRASE": PHRASE}
        self.jobs = 0
        self.noted = world.root / "noted"
        self.programs = world.root / "programs"
        self.programs.mkdir()
        for name in ("gh", "curl"):
            (self.programs / name).write_text(_NOTE)
            (self.programs / name).chmod(0o755)
        world.save()
        self.git("init", "-q", "-b", "main")
        (world.fleet / ".gitignore").write_text(".sbctl/\n")
        self.commit("the fleet")

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        own = ["-c", "user.name=amy", "-c", "user.email=amy@corp", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *own, *arguments], cwd=cwd or self.world.fleet, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, why: str) -> None:
        self.world.save()
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", why)

    def begin(self, branch: str) -> None:
        """From what `main` has."""
        self.git("switch", "-q", "main")
        self.world.config = json.loads(self.world.file.read_text())
        self.git("switch", "-q", "-c", branch)

    def ci_key(self) -> str:
        """What README says: a key for CI, listed by somebody who is."""
        self.world.sbctl("apply", "--yes", expect=0)
        pem = self.world.root / "ci.pem"
        said = self.world.sbctl("key", "add", "ci", "--generate", env={"SBCTL_SIGNING_KEY_FILE": str(pem)}, expect=0)
        self.world.sbctl(*said.out.split()[1:], expect=0)
        self.world.sbctl("apply", "--yes", expect=0)
        self.world.sbctl("plan", expect=0)
        return pem.read_text()

    def checkout(self, branch: str) -> Job:
        self.jobs += 1
        home = self.world.root / f"job{self.jobs}"
        home.mkdir()
        self.git("clone", "-q", "--branch", branch, str(self.world.fleet), str(home / "work"), cwd=home)
        return Job(self, home)


class Job:
    """One job on a runner that knows nothing."""

    def __init__(self, fleet: Fleet, home: Path) -> None:
        self.fleet, self.home, self.work = fleet, home, home / "work"
        self.said = ""

    def script(self, text: str, variables: Mapping[str, str]) -> int:
        """Run as both systems do: bash, an error ends it."""
        environ = {
            **self.fleet.world.environ(),
            "PATH": f"{self.fleet.programs}:{Path(SBCTL).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "CI": "true",
            "NOTED": str(self.fleet.noted),
            **variables,
        }
        for name in ("STATE_PASSWORD", "STATE_PASSPHRASE"):
            if name not in variables:
                environ.pop(name, None)
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.work,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=240,
            check=False,
        )
        self.said += done.stdout.decode()
        return done.returncode


class GitHub:
    """As much of its runner as the example needs. A file that is uploaded stays with the run."""

    def __init__(self, fleet: Fleet, secrets: Mapping[str, str]) -> None:
        self.fleet, self.secrets = fleet, secrets
        self.jobs = read_yaml(GATE / "workflow.yml")["jobs"]
        self.stored = fleet.world.root / "stored"
        self.stored.mkdir()

    def run(self, name: str, branch: str) -> tuple[int, Job]:
        job = self.fleet.checkout(branch)
        known = {
            "RUNNER_TEMP": str(job.home),
            "GITHUB_BASE_REF": "main",
            "GITHUB_OUTPUT": str(job.home / "outputs"),
            "GITHUB_ENV": str(job.home / "environ"),
            "GITHUB_STEP_SUMMARY": str(job.home / "summary"),
            "GITHUB_WORKSPACE": str(job.work),
        } | self._filled(self.jobs[name].get("env", {}))
        code = 0
        for step in self.jobs[name]["steps"]:
            if code and step.get("if") != "always()":
                continue
            if "upload" in step.get("uses", ""):
                shutil.copy(job.work / step["with"]["path"], self.stored / step["with"]["name"])
            elif "download" in step.get("uses", ""):
                stored = {"plan": "next.plan"}[step["with"]["name"]]
                shutil.copy(self.stored / step["with"]["name"], job.work / stored)
            elif "run" in step:
                added = Path(known["GITHUB_ENV"])
                given = dict(line.split("=", 1) for line in added.read_text().splitlines()) if added.exists() else {}
                script = self._filled({"run": step["run"]})["run"]
                code = job.script(script, known | given | self._filled(step.get("env", {}))) or code
        return code, job

    def _filled(self, texts: Mapping[str, str]) -> dict[str, str]:
        def value(match: re.Match[str]) -> str:
            kind, _, name = match[1].partition(".")
            return self.secrets[name] if kind == "secrets" else {"token": "t", "event.number": "17"}[name]

        return {name: re.sub(r"\$\{\{ ([\w.]+) \}\}", value, text) for name, text in texts.items()}


class GitLab:
    """As much of its runner as the example needs."""

    def __init__(self, fleet: Fleet, variables: Mapping[str, str]) -> None:
        self.fleet, self.variables = fleet, variables
        self.jobs = read_yaml(GATE / "gitlab" / ".gitlab-ci.yml")
        self.stored = fleet.world.root / "stored"
        self.stored.mkdir()

    def run(self, name: str, branch: str) -> tuple[int, Job]:
        job = self.fleet.checkout(branch)
        one = self.jobs[name]
        known = dict(self.variables) | {
            "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
            "CI_API_V4_URL": "https://gitlab.corp/api/v4",
            "CI_PROJECT_ID": "42",
            "CI_MERGE_REQUEST_IID": "17",
        }
        for variable, text in one.get("variables", {}).items():
            known[variable] = known[text.removeprefix("$")]
        for path in self.stored.iterdir():
            shutil.copy(path, job.work)
        code = job.script("\n".join(one["script"]), known)
        job.script("\n".join(one.get("after_script", [])), known)
        for stored in one.get("artifacts", {}).get("paths", []):
            shutil.copy(job.work / stored, self.stored)
        return code, job


@pytest.fixture(scope="module", params=["github", "gitlab"])
def gate(request: pytest.FixtureRequest, session_world: OperatorWorld) -> Iterator[tuple[GitHub | GitLab, Fleet]]:
    """One that is applied; each test begins a branch of its own from `main`."""
    gitlab = request.param == "gitlab"
    user = "gitlab-ci-token" if gitlab else "fleet"
    with new_world() as world, serving(gitlab=gitlab, user=user, password=PASSWORD) as server:
        world.has_the_programs_of(session_world)
        fleet = Fleet(world, server, GATE / "gitlab" if gitlab else GATE)
        secrets = {"SBCTL_SIGNING_KEY": fleet.ci_key(), "STATE_PASSPHRASE": PHRASE, "FLEET_SSH_KEY": "a key"}
        if gitlab:
            file = world.root / "ssh_key"
            file.write_text("a key")
            secrets |= {"FLEET_SSH_KEY": str(file), "CI_JOB_TOKEN": PASSWORD, "GITLAB_TOKEN": "t"}
            yield GitLab(fleet, secrets), fleet
        else:
            yield GitHub(fleet, {**secrets, "STATE_PASSWORD": PASSWORD}), fleet


def test_a_change_is_reviewed_planned_approved_and_applied(gate: tuple[GitHub | GitLab, Fleet]) -> None:
    runner, fleet = gate
    fleet.begin("change")
    fleet.world.deployments["chat"]["max_concurrency"] = 3
    fleet.commit("three at once")
    asked = len(fleet.server.asked)
    code, job = runner.run("review", "change")
    assert code == 0, job.said
    assert len(fleet.server.asked) == asked, "a review touches no state"
    assert "1 to change" in (job.work / "plan.md").read_text()
    assert "17" in fleet.noted.read_text()
    assert 'tests="' in (job.work / "report.xml").read_text()

    fleet.git("switch", "-q", "main")
    fleet.git("merge", "-q", "change")
    code, job = runner.run("plan", "main")
    assert code == 0, job.said
    assert not list(job.home.rglob("operator.key"))
    code, job = runner.run("apply", "main")
    assert code == 0, job.said
    fleet.world.sbctl("plan", save=False, expect=0)
    history = json.loads(fleet.world.sbctl("state", "history", "--format", "json", save=False, expect=0).out)
    assert history["runs"][0]["commit"] == fleet.git("rev-parse", "HEAD")
    assert fleet.server.place().holder is None

    # The plan of yesterday is refused, not carried out a second time.
    code, job = runner.run("apply", "main")
    assert code == 5, job.said
    for secret in (PASSWORD, PHRASE, "PRIVATE KEY"):
        assert secret not in job.said


def test_a_change_that_users_notice_and_a_typo_stop_at_the_gate(gate: tuple[GitHub | GitLab, Fleet]) -> None:
    runner, fleet = gate
    fleet.begin("another")
    fleet.noted.unlink(missing_ok=True)
    fleet.world.config["proxy"]["http_bind_port"] += 1
    fleet.commit("another port")
    code, job = runner.run("review", "another")
    assert code == 4, job.said
    assert "--max-blast-radius restart" in job.said, "the way to allow it"
    assert "17" in fleet.noted.read_text(), "the comment comes first, so that a reader sees why"
    fleet.world.deployments["chat"]["max_concurency"] = 3
    fleet.commit("a typo")
    code, job = runner.run("review", "another")
    assert code == 3
    assert "config.unknown_field" in job.said
