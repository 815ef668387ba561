"""The admin API beyond reading: weights that go or stay, changes that are jobs, wrong credentials in the audit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import EngineError, RefusedError
from sbctl.runtime.admin_changes import AdminChanges
from sbctl.runtime.audit import verify_audit
from sbctl.runtime.failed_logins import FailedLogins
from sbctl.runtime.gateway.events import Usage
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.provision import Progress
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.value_ledger import ValueLedger
from tests.attacks.test_http_attacks import Target, body_of, raw, request, status_of
from tests.simulators.engine_world import in_virtual_time
from tests.simulators.runtime_world import weights

BASE = "/admin/model-host"


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    made = Target(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def _ask(target: Target, line: str) -> tuple[int, Any]:
    rows = ("Content-Type: application/json", "Connection: close")
    body = b"" if line.startswith(("GET", "DELETE")) else b"{}"
    answer = await raw(target.admin_port, request(target, line, *rows, body=body), seconds=30)
    return status_of(answer), body_of(answer)


async def _cached(folder: Path, root: Path, name: str) -> ArtifactFacts:
    facts = weights(folder, name)
    calls = CacheCalls(ArtifactCache(root), {})
    await asyncio.to_thread(lambda: calls.pull(facts, asyncio.run, progress=lambda _done, _total: None))
    return facts


async def test_weights_that_nobody_needs_go_by_a_job_that_the_audit_names(target: Target, tmp_path: Path) -> None:
    facts = await _cached(tmp_path, target.paths.models, "old")
    status, listed = await _ask(target, f"GET {BASE}/files")
    assert (status, [one["artifact_digest"] for one in listed["artifacts"]]) == (200, [facts.artifact])
    assert listed["artifacts"][0]["logical_model"] == "old"
    assert listed["artifacts"][0]["resident"] is False
    status, gone = await _ask(target, f"DELETE {BASE}/artifacts/{facts.artifact}")
    assert (status, gone["removed"]) == (200, True)
    assert gone["reclaimed_bytes"] > 0
    job = (await _ask(target, f"GET {BASE}/jobs/{gone['job_id']}"))[1]["job"]
    assert (job["kind"], job["state"], job["subject"]) == ("delete", "deleted", f"artifact:sha256:{facts.artifact}")
    assert job["terminal_at_ms"] is not None
    assert (await _ask(target, f"DELETE {BASE}/artifacts/{facts.artifact}"))[0] == 404
    assert (await _ask(target, f"DELETE {BASE}/artifacts/{'A' * 64}"))[0] == 400
    assert target.audited() == ["job.delete"]


async def test_weights_in_use_stay_and_say_why(target: Target, tmp_path: Path) -> None:
    facts = await _cached(tmp_path, target.paths.models, "used")
    lease = ArtifactCache(target.paths.models).lease(facts.artifact)
    status, body = await _ask(target, f"DELETE {BASE}/artifacts/{facts.artifact}")
    lease.release()
    assert (status, body["code"], body["reason"]) == (409, "artifact_in_use", "leased")
    target.cache_changes = {"configured": frozenset({facts.artifact})}
    status, body = await _ask(target, f"DELETE {BASE}/artifacts/{facts.artifact}")
    assert (status, body["reason"]) == (409, "configured")
    assert (await _ask(target, f"GET {BASE}/files"))[1]["artifacts"][0]["configured"] is True


async def test_a_collection_brings_the_cache_within_its_budget(target: Target, tmp_path: Path) -> None:
    old, new = [await _cached(tmp_path, target.paths.models, name) for name in ("old", "new")]
    target.cache_changes = {"budget_bytes": 1, "configured": frozenset({new.artifact})}
    status, report = await _ask(target, f"POST {BASE}/gc")
    assert (status, report["deleted_artifacts"]) == (200, [old.artifact])
    assert report["skipped_artifacts"] == {new.artifact: "configured"}
    assert report["budget_unsatisfied_bytes"] > 0
    assert target.audited() == ["job.delete", "cache.collect"]
    for change, expected in (
        ({"budget_bytes": None}, (409, "no_cache_budget")),
        ({"configured": None}, (502, "cache.use_unknown")),
    ):
        target.cache_changes = change
        status, body = await _ask(target, f"POST {BASE}/gc")
        assert (status, body["code"]) == expected


async def test_the_catalog_says_what_a_change_may_name(target: Target) -> None:
    status, body = await _ask(target, f"GET {BASE}/catalog")
    model = body["models"]["qwen2.5-0.5b-instruct"]
    assert (status, model["builtin"], model["variants"][0]["id"]) == (200, True, "q4_k_m")
    assert model["variants"][0]["download_size_bytes"] > 1_000_000


def test_value_counts_answers_and_prices_nothing() -> None:
    ledger = ValueLedger()
    usage = Usage(prompt_tokens=3, completion_tokens=5)
    for status, broke, elsewhere in ((200, False, False), (200, False, True), (503, False, False), (200, True, False)):
        ledger.finished(Outcome("q", status, 0, 0, 1, usage, broke, elsewhere))
    for number in range(1100):
        ledger.finished(Outcome(f"d{number}", 200, 0, 0, 1, None, broke=False))
    told = ledger.document()
    assert told["total_local_completions"] == 1101
    row = next(row for row in told["models"] if row["model"] == "q")
    assert (row["local_completions"], row["local_completion_tokens"], row["cloud_completions"]) == (1, 5, 1)
    assert (row["saved_micros"], told["total_saved_micros"], told["priced"]) == (None, None, False)
    assert len(told["models"]) == 1001


# Changes are jobs


class _File:
    """What `POST /admin/reload` asks of a file that was started with."""

    def __init__(self) -> None:
        self.is_reloading = False
        self.go = asyncio.Event()
        self.problem: Exception | None = None

    async def reload(self, _by: str, progress: Progress) -> Mapping[str, Any]:
        progress(0, None, "preparing q")
        await self.go.wait()
        if self.problem is not None:
            raise self.problem
        return {"added": ["q"], "changed": [], "adjusted": [], "removed": [], "preserved": [], "degraded": {}}


@pytest.mark.parametrize(
    ("prefer", "waits"),
    [(None, True), ("wait=5", True), ("respond-async", False), ("wait=5, Respond-Async; x=1", False)],
)
def test_a_change_answers_when_it_is_done_or_at_once_when_asked_to(
    tmp_path: Path, prefer: str | None, waits: bool
) -> None:
    store = RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")

    async def work() -> None:
        file, jobs = _File(), Jobs(store, SYSTEM_CLOCK)
        changes = AdminChanges(cast("Any", None), cast("Any", file), jobs, cast("Any", None))
        headers = {} if prefer is None else {"Prefer": prefer}
        asked = asyncio.create_task(changes.reload(make_mocked_request("POST", "/admin/reload", headers=headers)))
        if waits:
            while not await jobs.rows():
                await asyncio.sleep(0.1)
            assert not asked.done()
            file.go.set()
        answer = await asked
        document = json.loads(cast("bytes", answer.body))
        (row,) = await jobs.rows()
        assert (row.kind, row.subject) == ("rollout", "config")
        if waits:
            assert (answer.status, document["plan"]["added"], document["degraded"]) == (200, ["q"], {})
            return
        assert (answer.status, document["job_id"], answer.headers["Preference-Applied"]) == (
            202,
            row.id,
            "respond-async",
        )
        file.go.set()
        assert [step.row.state async for step in jobs.follow(row.id)][-1] == "ready"

    in_virtual_time(work)
    store.close()


def test_a_reload_that_fails_is_told_by_answer_and_job_and_two_at_once_are_not(tmp_path: Path) -> None:
    store = RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")

    async def work() -> None:
        file, jobs = _File(), Jobs(store, SYSTEM_CLOCK)
        changes = AdminChanges(cast("Any", None), cast("Any", file), jobs, cast("Any", None))
        asked = make_mocked_request("POST", "/admin/reload")
        file.problem = EngineError("drain_timeout", "2 requests still ran", detail={"stage": "drain"})
        file.go.set()
        answer = await changes.reload(asked)
        assert (answer.status, json.loads(cast("bytes", answer.body))["code"]) == (409, "drain_timeout")
        (row,) = await jobs.rows()
        assert row.state == "failed"
        file.is_reloading = True
        with pytest.raises(RefusedError, match="at this moment"):
            await changes.reload(asked)

    in_virtual_time(work)
    store.close()


# Wrong credentials


def test_wrong_credentials_are_in_the_audit_and_cannot_fill_it(tmp_path: Path) -> None:
    store = RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")
    told: list[tuple[str, Mapping[str, Any]]] = []

    def note(action: str, subject: str, detail: Mapping[str, Any]) -> None:
        told.append((subject, detail))
        store.audit(action, subject, detail)

    async def work() -> None:
        failed = FailedLogins(note, lambda name: name == "admin")
        for number in range(500):
            failed.tell("admin" if number % 2 else "hunter2", "10.0.0.1")
        await asyncio.sleep(60)
        failed.tell("admin", "10.0.0.2")
        await asyncio.sleep(1)

    in_virtual_time(work)
    assert len(told) == 11
    assert {subject for subject, _detail in told} == {"admin", "an unknown account"}
    assert told[-1][1] == {"unwritten_before": 490}
    store.close()
    assert verify_audit(tmp_path / "runtime.db").entries == 11


async def test_a_wrong_password_is_in_the_audit_by_either_way(target: Target) -> None:
    wrong = request(target, f"GET {BASE}/status", "Authorization: Basic YWRtaW46bm8=", authorized=False)
    assert status_of(await raw(target.admin_port, wrong)) == 401
    body = b'{"username": "viewer", "password": "no"}'
    login = request(target, "POST /admin/login", "Content-Type: application/json", body=body, authorized=False)
    assert status_of(await raw(target.admin_port, login, seconds=30)) == 401
    assert status_of(await raw(target.admin_port, request(target, f"GET {BASE}/status", authorized=False))) == 401
    async with asyncio.timeout(30):
        while len(target.audited()) < 2:
            await asyncio.sleep(0.01)
    assert target.audited() == ["login_failed", "login_failed"], "no credentials are no wrong ones"


async def test_G1_a_login_of_ones_own_does_not_pay_for_guesses_at_the_main_account(target: Target) -> None:
    wrong = request(target, f"GET {BASE}/status", "Authorization: Basic YWRtaW46bm8=", authorized=False)
    body = b'{"username": "viewer", "password": "only looks"}'
    own = request(target, "POST /admin/login", "Content-Type: application/json", body=body, authorized=False)
    for _ in range(4):
        assert status_of(await raw(target.admin_port, wrong)) == 401
    assert status_of(await raw(target.admin_port, own, seconds=30)) == 200
    assert status_of(await raw(target.admin_port, wrong)) == 401
    assert status_of(await raw(target.admin_port, wrong)) == 429
