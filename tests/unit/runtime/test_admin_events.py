"""What happened on a node, over the admin API: asked page by page, or followed; bounded, and never what keeps a runtime from ending."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.node.records import EventKind
from sbctl.runtime import admin_events
from sbctl.runtime.event_log import record_event
from tests.attacks.test_http_attacks import PASSWORD, Target

_WAIT_S = 30.0


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    made = Target(tmp_path, follow_events_s=600)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(target: Target) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": aiohttp.encode_basic_auth("admin", PASSWORD)}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{target.admin_port}", headers=headers) as session:
        yield session


def told(target: Target, *messages: str, deployment: str | None = None) -> None:
    for message in messages:
        record_event(target.database, SYSTEM_CLOCK, EventKind.CLUSTER_NODE_LOST, message, deployment=deployment)


async def page(client: aiohttp.ClientSession, query: str = "") -> dict[str, Any]:
    async with client.get(f"/admin/events{query}") as answer:
        assert answer.status == 200
        return dict(await answer.json())


async def test_the_newest_come_first_and_a_cursor_goes_on(target: Target, client: aiohttp.ClientSession) -> None:
    assert await page(client) == {"schema_version": 1, "events": [], "cursor": 0, "more": False}
    told(target, "a", "b", "c")
    told(target, "d", deployment="chat")
    first = await page(client, "?limit=2")
    assert ([one["message"] for one in first["events"]], first["cursor"]) == (["c", "d"], 4)
    behind = await page(client, "?after=1&limit=2")
    assert ([one["seq"] for one in behind["events"]], behind["cursor"], behind["more"]) == ([2, 3], 3, True)
    assert [one["message"] for one in (await page(client, "?deployment=chat"))["events"]] == ["d"]
    assert (await page(client, f"?after={first['cursor']}"))["events"] == []


@pytest.mark.parametrize(
    "query",
    [
        "?limit=0",
        "?limit=1001",
        "?after=-1",
        "?after=x",
        "?after=1&after=2",
        "?deployment=",
        "?kind=x",
        "/stream?after=1",
    ],
)
async def test_another_question_is_refused(client: aiohttp.ClientSession, query: str) -> None:
    async with client.get(f"/admin/events{query}") as answer:
        assert answer.status == 400
        assert (await answer.json())["code"] == "invalid_request"


async def test_a_database_that_cannot_be_read_is_said(target: Target, client: aiohttp.ClientSession) -> None:
    target.store.close()
    for wal in target.database.parent.glob("runtime.db-*"):
        wal.unlink()
    target.database.write_bytes(b"no database" * 1000)
    for path in ("/admin/events", "/admin/events/stream"):
        async with client.get(path) as answer:
            assert answer.status == 503
            assert (await answer.json())["code"] == "events.unreadable"


async def _events(answer: aiohttp.ClientResponse, count: int) -> list[tuple[int, str, dict[str, Any]]]:
    found: list[tuple[int, str, dict[str, Any]]] = []
    fields: dict[str, str] = {}
    async with asyncio.timeout(_WAIT_S):
        while len(found) < count:
            line = (await answer.content.readline()).decode().rstrip("\n")
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
            elif "data" in fields:
                found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])["event"]))
                fields = {}
    return found


async def test_who_follows_hears_what_happens_from_then_on_and_goes_on_behind_what_it_has(
    target: Target, client: aiohttp.ClientSession
) -> None:
    told(target, "before")
    async with client.get("/admin/events/stream") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        told(target, "after", "and then")
        first, second = await _events(answer, 2)
    assert (first[0], first[1], first[2]["message"]) == (2, "cluster.node_lost", "after")
    assert second[0] == 3
    told(target, "meanwhile", "of chat", deployment="chat")
    async with client.get("/admin/events/stream", headers={"Last-Event-ID": "2"}) as answer:
        assert [one[0] for one in await _events(answer, 3)] == [3, 4, 5]
    async with client.get("/admin/events/stream?deployment=chat", headers={"Last-Event-ID": "0"}) as answer:
        assert [one[0] for one in await _events(answer, 2)] == [4, 5]
    async with client.head("/admin/events/stream") as answer:
        assert answer.status == 200


async def test_only_so_many_follow_and_who_leaves_makes_room(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_events, "_STREAMS_MAX", 3)
    streams = [await client.get("/admin/events/stream") for _ in range(3)]
    async with client.get("/admin/events/stream") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert (await answer.json())["code"] == "overloaded"
    for stream in streams:
        stream.close()
    async with asyncio.timeout(_WAIT_S):
        while True:
            async with client.get("/admin/events/stream") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_a_stream_ends_as_soon_as_the_runtime_ends(target: Target, client: aiohttp.ClientSession) -> None:
    async with client.get("/admin/events/stream") as answer:
        listener = target.listeners[0]
        listener.refuse_new()
        async with asyncio.timeout(_WAIT_S):
            assert await answer.content.read() == b""
            await listener.see_off(_WAIT_S)
