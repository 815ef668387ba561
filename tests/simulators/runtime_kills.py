"""A node whose daemon is killed at the n-th boundary of an operation, and what must hold whenever it was (docs/threats.md, F13, F24).

    bring ► arm n ► operation, killed ► start again ► nothing acknowledged lost, nothing orphaned, nothing half published ► operation again

Operations are methods of `RuntimeKills`: each changes something, raises when the daemon dies under it, and can be repeated. What a caller was
told before the kill is kept in `told` and must be true of the next daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.artifacts.model import ArtifactFacts
from sbctl.runtime.audit import verify_audit
from sbctl.runtime.processes import TOKEN_VARIABLE
from sbctl.trust.bundle import BundleContent, DeploymentMember
from tests.simulators.runtime_world import (
    Operator,
    RuntimeProcess,
    content,
    engine_program,
    member,
    prepare_node,
    weights,
)

__all__ = ["OPERATIONS", "Operation", "RuntimeKills", "runtime_kills"]

Operation = Literal[
    "start", "warm", "rolling", "recreate", "remove", "cold", "put", "pull", "delete", "load", "evict", "stop", "clear"
]
OPERATIONS: Final[dict[Operation, int]] = {
    "start": 28, "warm": 40, "rolling": 48, "recreate": 52, "remove": 29, "cold": 23,
    "put": 60, "pull": 60, "delete": 18, "load": 30, "evict": 22, "stop": 28, "clear": 12,
}  # fmt: skip
"""With how many boundaries each has at least."""

_DEPLOYMENTS: Final = "/admin/model-host/deployments"
_LOST: Final = (OSError, http.client.HTTPException, ValueError, IndexError)
"""What a caller sees of a daemon that was killed while it answered."""
_AFTERMATH_S: Final = 0.4


def until(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, f"it did not come: {what}"
        time.sleep(0.03)


@dataclass
class Told:
    """What callers know for certain."""

    revision: int = 0
    """Of the newest bundle that was answered with a result."""
    cleared: bool = False
    deployments_revision: int | None = None
    stopped: set[str] = field(default_factory=set)
    jobs: dict[str, str] = field(default_factory=dict)
    """Id → the state that was seen last."""
    fetched: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """Artifacts that are in the cache, and those that are not."""
    audit: tuple[int, str] | None = None


class RuntimeKills:
    """One node. `owned` says that the admin API owns its deployments."""

    def __init__(self, prefix: Path, *, owned: bool) -> None:
        self.prefix = prefix
        self.owned = owned
        self.operator = Operator()
        authority = {"authority": "admin_managed"} if owned else {}
        self.paths = prepare_node(
            prefix, self.operator, admin_enabled=True, admin_rate_limit_per_minute=100_000, **authority
        )
        self.program = engine_program(prefix, fork_child=True, fork_session=True)
        self.facts = [weights(prefix, "tiny")]
        self.story: list[str] = []
        self.told = Told()
        self.asked: dict[int, tuple[BundleContent, str]] = {}
        """Revision → content and envelope, answered or not."""
        self.put: dict[str, Any] = {}
        self.deployments: dict[str, DeploymentMember] = {}
        self.kills = 0
        self._runtime: RuntimeProcess | None = None

    # The daemon

    @property
    def runtime(self) -> RuntimeProcess:
        assert self._runtime is not None
        return self._runtime

    def start(self) -> None:
        self._runtime = RuntimeProcess(self.prefix, program="tests.simulators.runtime_victim")

    def end(self) -> None:
        """Nothing of it is left."""
        if self._runtime is not None and self._runtime.process.poll() is None:
            self._runtime.process.kill()
            self._runtime.process.wait()
        for pid in self.engine_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def engine_processes(self) -> list[int]:
        """Whatever runs in this node's directory with an engine's token, whoever it belongs to."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{name}/cwd").readlink().is_relative_to(self.prefix):
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                    if f"{TOKEN_VARIABLE}=".encode() in environ:
                        found.append(int(name))
        return found

    # One round

    def round(self, operation: Operation, number: int) -> bool:
        """The operation with a daemon that dies at this boundary, then what must hold. False: it has fewer boundaries."""
        began_s = time.monotonic()
        self.bring(operation)
        if operation == "start":
            self.runtime.stop(signal.SIGKILL)
        (self.prefix / "boundaries").unlink(missing_ok=True)
        (self.prefix / "kill_at").write_text(str(number))
        with contextlib.suppress(*_LOST):
            getattr(self, f"do_{operation}")()
        killed = self._was_killed()
        passed = (self.prefix / "boundaries").read_text().splitlines()
        self.story.append(
            f"{operation} killed at {number}: {passed[-1:]}" if killed else f"{operation} ended after {len(passed)}"
        )
        (self.prefix / "kill_at").unlink()
        self.runtime.stop(signal.SIGKILL)
        self.start()
        try:
            self.judge()
            if operation != "start":
                getattr(self, f"do_{operation}")()
                self.judge()
        except BaseException as error:
            log = self.runtime.log.read_text()[-3000:]
            raise AssertionError(f"{error!r} at\n" + "\n".join([*self.story[-4:], *passed, log])) from error
        self.kills += killed
        self.story[-1] += f", agreed after {time.monotonic() - began_s:.1f} s"
        return killed

    def _was_killed(self) -> bool:
        """By its own hand, in the operation or in what it left to do."""
        with contextlib.suppress(Exception):
            self.runtime.process.wait(_AFTERMATH_S)
        return self.runtime.process.poll() == -signal.SIGKILL

    # Operations

    def bring(self, operation: Operation) -> None:
        """To where it begins."""
        if self._runtime is None or self._runtime.process.poll() is not None:
            self.start()
            self.runtime.await_healthy(60)
        base = {"q": self._member()}
        beside = {**base, "w": self._member()}
        cold = {**base, "c": self._member(warm=False, pull="on_demand", artifact=self.facts[-1])}
        if operation == "remove":
            self._apply(beside)
        elif operation in ("load", "evict", "pull"):
            if operation == "pull":
                self.facts.append(weights(self.prefix, f"fetched{len(self.facts)}"))
                cold["c"] = self._member(warm=False, pull="on_demand", artifact=self.facts[-1])
            self._apply(cold)
            self._job("load" if operation == "evict" else "evict")
        elif operation == "put":
            self._replace({"q": {}})
        elif operation == "delete":
            if self.deployments != base or self.told.cleared:
                self._apply(base)
            self._fetch_beside()
        elif self.deployments != base or self.told.cleared or self.told.stopped:
            self._apply(base)

    def _fetch_beside(self) -> None:
        """Weights that no deployment has come to this cache by another process, as by `sbctl models pull`."""
        facts = weights(self.prefix, f"beside{len(self.facts)}")
        self.facts.append(facts)
        CacheCalls(ArtifactCache(self.paths.models), {}).pull(facts, asyncio.run, progress=lambda _done, _total: None)
        self.told.fetched.add(facts.artifact)

    def _member(self, *, artifact: ArtifactFacts | None = None, **changes: Any) -> DeploymentMember:
        return member(artifact or self.facts[0], self.program, **changes)

    def _apply(self, deployments: dict[str, DeploymentMember]) -> None:
        """The next bundle, or the same again when it was not answered. Raises when the daemon dies."""
        desired = content(deployments)
        bundle = self.runtime.status()["bundle"]
        at = None if bundle is None else int(bundle["revision"])
        newest = max(self.asked, default=0)
        if newest and self.asked[newest][0] == desired and newest > self.told.revision:
            revision = newest
        else:
            revision = newest + 1
            self.asked[revision] = (desired, self.operator.bundle(desired, revision))
        self.deployments = deployments
        # Who asks for a model again, asks for its weights.
        self.told.deleted -= {name for each in deployments.values() for name in each.artifacts}
        outcome = self.runtime.apply(self.asked[revision][1], at)
        assert outcome.get("result", {}).get("revision") == revision, outcome
        self.told.revision, self.told.cleared = revision, False
        if not self.owned:
            self.told.stopped.clear()

    def do_start(self) -> None:
        self.start()
        until(lambda: self.runtime.process.poll() is not None or self._healthy(), "a start")

    def _healthy(self) -> bool:
        with contextlib.suppress(*_LOST):
            return bool(self.runtime.status()["healthy"])
        return False

    def do_warm(self) -> None:
        self._apply({"q": self._member(), "w": self._member()})

    def do_cold(self) -> None:
        self._apply({"q": self._member(), "c": self._member(warm=False, pull="on_demand")})

    def do_rolling(self) -> None:
        self._apply({"q": self._member(max_concurrency=3)})

    def do_recreate(self) -> None:
        self._apply({"q": self._member(max_concurrency=3, rollout="recreate")})

    def do_remove(self) -> None:
        self._apply({"q": self._member()})

    def do_clear(self) -> None:
        self.told.cleared = self.runtime.call("DELETE", "/control/v1/bundle")[0] == 200

    def do_stop(self) -> None:
        status, answer = self.runtime.act("q", "stop")
        assert status == 200, answer
        self.told.stopped.add("q")

    def do_put(self) -> None:
        self._replace({"q": {"max_concurrency": 3}, "r": {}})

    def _replace(self, wanted: dict[str, dict[str, Any]]) -> None:
        status, shown = self.runtime.admin("GET", _DEPLOYMENTS)
        assert status == 200, shown
        model = {"model": "tiny", "variant": "q4", "warm": True, "max_concurrency": 2}
        self.put = {name: {**model, **changes} for name, changes in wanted.items()}
        body = {"expected_revision": shown["revision"], "deployments": self.put}
        status, answer = self.runtime.admin("PUT", _DEPLOYMENTS, body)
        assert status == 200, answer
        self.told.deployments_revision = answer["revision"]

    def do_load(self) -> None:
        self._job("load")

    def do_evict(self) -> None:
        self._job("evict")

    def do_pull(self) -> None:
        self._job("pull")
        self.told.fetched.add(self.facts[-1].artifact)

    def do_delete(self) -> None:
        """What is gone already is gone."""
        artifact = self.facts[-1].artifact
        self.told.fetched.discard(artifact)
        status, answer = self.runtime.admin("DELETE", f"/admin/model-host/artifacts/{artifact}")
        assert status in (200, 404), answer
        self.told.deleted.add(artifact)

    def _job(self, action: str) -> None:
        """To its end, which must be a good one."""
        status, answer = self.runtime.admin("POST", f"/admin/model-host/{action}", {"deployment": "c"})
        assert status == 202, answer
        job, row = answer["job_id"], {"state": "queued"}
        self.told.jobs[job] = "queued"
        end_s = time.monotonic() + 60
        while row["state"] not in ("ready", "failed"):
            assert time.monotonic() < end_s, row
            time.sleep(0.03)
            status, answer = self.runtime.admin("GET", f"/admin/model-host/jobs/{job}")
            assert status == 200, answer
            row = answer["job"]
        self.told.jobs[job] = row["state"]
        assert row["state"] == "ready", row

    # What must hold

    def judge(self) -> None:
        """Of the daemon that runs now."""
        status = self.runtime.await_healthy(60)
        self._judge_bundle(status["bundle"])
        self._judge_database()
        self._judge_jobs()
        self._judge_snapshots()
        until(self._settled, "what should run, and no other process", 60)
        for row in self.runtime.status()["deployments"]:
            if row["stopped_by"] == "operator":
                continue
            if any(replica["state"] == "ready" for replica in row["replicas"]):
                assert self.runtime.ask(model=f"{row['deployment']}-model")[0] in (200, 404), row

    def _judge_bundle(self, bundle: dict[str, Any] | None) -> None:
        told, newest = self.told, max(self.asked, default=0)
        if bundle is None:
            # Cleared, told or not, or killed before the first bundle was accepted.
            assert told.cleared or told.revision == 0 or "clear" in self.story[-1], "an accepted bundle is gone"
            assert not self.paths.bundle.exists()
            return
        assert not told.cleared, "a bundle that was cleared is back"
        assert told.revision <= bundle["revision"] <= newest, (told.revision, bundle)
        assert self.paths.bundle.read_text() == self.asked[bundle["revision"]][1]
        if told.deployments_revision is not None:
            assert bundle["deployments_revision"] >= told.deployments_revision

    def _judge_database(self) -> None:
        with contextlib.closing(sqlite3.connect(f"{self.paths.database.as_uri()}?mode=ro", uri=True)) as db:
            fence = db.execute("SELECT revision FROM fence").fetchone()
            stopped = {row[0] for row in db.execute("SELECT deployment FROM stopped")}
        assert (0 if fence is None else fence[0]) >= self.told.revision, "the fence went back"
        if not self.told.cleared:
            assert self.told.stopped <= stopped, "an operator's stop is forgotten"
        found = verify_audit(self.paths.database, expected=self.told.audit)
        assert found.broken_at is None, found.why
        self.told.audit = (found.entries, found.head)

    def _judge_jobs(self) -> None:
        if not self.told.jobs:
            return
        rows = {row["id"]: row["state"] for row in self.runtime.admin("GET", "/admin/model-host/jobs")[1]["jobs"]}
        for job, seen in self.told.jobs.items():
            assert job in rows, "a job that was acknowledged is gone"
            assert rows[job] == seen or seen not in ("ready", "failed"), (rows[job], seen)
            assert rows[job] in ("ready", "failed"), rows[job]
            self.told.jobs[job] = rows[job]

    def _judge_snapshots(self) -> None:
        """Everything that is published has its bytes, and what was told as fetched is published."""
        snapshots = self.paths.models / "snapshots"
        for facts in self.facts:
            folder = snapshots / facts.artifact
            assert not (facts.artifact in self.told.deleted and folder.exists()), "weights that were removed are back"
            if not folder.exists():
                assert facts.artifact not in self.told.fetched, "weights that were fetched are gone"
                continue
            for file in facts.files:
                assert hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256, folder

    def _settled(self) -> bool:
        """Every warm replica is ready, and exactly the engines of ready replicas run, each with its child and its record."""
        rows = self.runtime.status()["deployments"]
        leaders = {replica["pid"] for row in rows for replica in row["replicas"]} - {None}
        warm = [row for row in rows if row["deployment"] != "c" and row["stopped_by"] is None]
        records = [json.loads(path.read_text())["pid"] for path in self.paths.engine_records.glob("*.json")]
        ready = all(row["state"] == "ready" for row in warm)
        return ready and set(records) == leaders and len(self.engine_processes()) == 2 * len(leaders)


@contextlib.contextmanager
def runtime_kills(prefix: Path, *, owned: bool = False) -> Iterator[RuntimeKills]:
    """Ends whatever was started."""
    made = RuntimeKills(prefix, owned=owned)
    try:
        yield made
    finally:
        made.end()
