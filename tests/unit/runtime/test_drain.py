"""A drained host: nothing new, what runs goes on, an operator's word holds over restarts, an apply's ends with its lease."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sbctl.base.errors import EngineError
from sbctl.node.drain_file import clear_drain, drain_path, read_drain, write_drain
from sbctl.node.lease_holder import LeaseHolder
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.control import ControlRoutes
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.answers import error_answer
from sbctl.runtime.store import RuntimeStore
from tests.simulators.engine_world import in_virtual_time


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)})
    found.state.mkdir()
    return found


def test_a_worker_that_leaves_its_cluster_serves_on_and_stays_when_the_apply_is_gone(paths: NodePaths) -> None:
    drain = Drain(paths)

    async def scenario() -> None:
        holder = LeaseHolder(paths)
        holder.take({"owner": "o", "purpose": "p", "lineage": "l", "run": "r", "ttl_s": 3600.0})
        drain.begin("leave")
        watching = asyncio.create_task(drain.watch())
        assert (drain.leaves, drain.is_on, drain.state()) == (True, False, None)
        with drain.request():
            pass
        await asyncio.sleep(10)
        assert drain.leaves
        holder.give_back()
        await asyncio.sleep(10)
        watching.cancel()

    in_virtual_time(scenario)
    assert not drain.leaves


def test_what_runs_goes_on_and_what_comes_is_sent_away_with_a_time(paths: NodePaths) -> None:
    drain = Drain(paths)
    with drain.request():
        drain.begin("apply")
        state = drain.state()
        assert state is not None
        assert (state["active_requests"], state["persistent"]) == (1, False)
        with pytest.raises(EngineError) as refused, drain.request():
            pass
    assert drain.active == 0
    response = error_answer(refused.value, "r1")
    assert response.status == 503
    assert b"Retry-After: 5\r\n" in response.lines


def test_an_operators_drain_holds_over_a_restart_until_it_is_taken_back(paths: NodePaths) -> None:
    write_drain(paths, by="ops@laptop", since="2026-11-29T12:00:00Z")
    assert write_drain(paths, by="ci@runner", since="later") == {"by": "ops@laptop", "since": "2026-11-29T12:00:00Z"}
    restarted = Drain(paths)
    assert restarted.is_on
    restarted.begin("apply")
    restarted.end("apply")
    assert restarted.is_on, "an apply does not take back what an operator began"
    clear_drain(paths)
    restarted.end("operator")
    assert not restarted.is_on
    assert read_drain(paths) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{" * 9000])
def test_a_drain_that_cannot_be_read_is_a_drain(paths: NodePaths, data: bytes) -> None:
    drain_path(paths).write_bytes(data)
    assert Drain(paths).is_on


def test_an_applys_drain_ends_when_nobody_holds_the_host_any_more(paths: NodePaths) -> None:
    async def scenario() -> None:
        drain = Drain(paths)
        holder = LeaseHolder(paths)
        holder.take({"owner": "o", "purpose": "p", "lineage": "l", "run": "r", "ttl_s": 3600.0})
        drain.begin("apply")
        watching = asyncio.create_task(drain.watch())
        await asyncio.sleep(10)
        assert drain.is_on
        holder.give_back()
        await asyncio.sleep(10)
        assert not drain.is_on
        watching.cancel()

    in_virtual_time(scenario)


def _asked(method: str, by: str) -> web.Request:
    return make_mocked_request(method, f"/control/v1/drain/{by}", match_info={"by": by})


def test_who_takes_a_host_out_of_service_is_in_the_audit_and_a_full_disk_keeps_nobody_from_it(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RuntimeStore(paths.state / "runtime.db", paths.state / "bundle.json")
    drain = Drain(paths)

    async def scenario() -> None:
        routes = ControlRoutes(cast("Any", None), cast("Any", None), dict, drain, store.note)
        write_drain(paths, by="ops@laptop", since="2026-11-29T12:00:00Z")
        await routes.drain(_asked("POST", "operator"))
        clear_drain(paths)
        await routes.resume(_asked("DELETE", "operator"))
        await routes.drain(_asked("POST", "apply"))

        def full(*_args: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patched:
            patched.setattr("sbctl.runtime.store.append_audit", full)
            await routes.resume(_asked("DELETE", "apply"))
        assert not drain.is_on

    in_virtual_time(scenario)
    store.close()
    with sqlite3.connect(paths.state / "runtime.db") as raw:
        told = raw.execute("SELECT actor, action, source FROM audit ORDER BY seq").fetchall()
    assert told == [
        ("ops@laptop", "host.drain", "control"),
        ("ops@laptop", "host.resume", "control"),
        ("apply", "host.drain", "control"),
        ("apply", "host.resume", "control"),
    ], "what a full disk did not take is written with the next write"
