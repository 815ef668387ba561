"""A gateway and its workers over real TLS: who is asked, who is asked next, and when nobody is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import InputError, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.gateway import upstream
from sbctl.runtime.gateway.asked import read_asked
from sbctl.runtime.peer import listener
from tests.simulators.peer_world import STREAM, Caller, GatewayNode, PeerWorld, dispatch_bytes, event


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PeerWorld]:
    world = PeerWorld(tmp_path)
    yield world
    await world.close()


def counted(gateway: GatewayNode, name: str) -> dict[tuple[str, ...], float]:
    """A counter's values by its labels behind provider and deployment."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label not in ("provider", "deployment")): sample.value
        for family in gateway.registry.collect()
        for sample in family.samples
        if sample.name == name
    }  # fmt: skip


async def refused(gateway: GatewayNode, *workers: Any, **changes: Any) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        await gateway.ask(*workers, **changes)
    return caught.value


async def test_a_worker_that_is_gone_is_replaced_by_another_before_the_first_byte(cluster: PeerWorld) -> None:
    gone, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    known = [gone.candidate(), other.candidate()]
    await gone.stop()
    assert (await gateway.ask(*known)).body.endswith(b"data: [DONE]\n\n")
    assert counted(gateway, "sbproxy_managed_replica_failovers_total") == {("transport_failed",): 1}
    assert counted(gateway, "sbproxy_managed_replica_attempts_total") == {
        ("transport_failed", "peer"): 1,
        ("ok", "peer"): 1,
    }
    assert (await gateway.ask(*known)).status == 200
    attempts = counted(gateway, "sbproxy_managed_replica_attempts_total")
    assert attempts["transport_failed", "peer"] == 1, "a node whose way failed rests"


@pytest.mark.parametrize("how", ["dies", "500", "error first"])
async def test_an_engine_that_fails_before_its_first_byte_is_another_worker_s_turn(
    cluster: PeerWorld, how: str
) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        if how == "500":
            writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\n{}")
            return
        if how == "error first":
            line = b'data: {"error":{"code":500,"message":"/var/lib"}}\n\n'
            writer.write(STREAM + b"%x\r\n%b\r\n" % (len(line), line))
        raise ConnectionError

    worker.engine.play = play
    caller = await gateway.ask(worker, other)
    assert (caller.status, caller.broke) == (200, False)
    assert b"/var/lib" not in caller.body
    assert [outcome.status for outcome in worker.outcomes] == [503]
    assert len(other.engine.bodies) == 1


@pytest.mark.parametrize("how", ["the engine dies", "the worker dies"])
async def test_G20_a_stream_that_broke_at_a_peer_is_never_replayed(cluster: PeerWorld, how: str) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM + event("seen"))
        await writer.drain()
        await cluster.until(lambda: b"seen" in gateway.caller.body)
        if how == "the worker dies":
            for connection in list(worker.listener._connections):
                connection.cut()
            await cluster.until(lambda: gateway.caller.is_over)
        raise ConnectionError

    worker.engine.play = play
    caller = await gateway.ask(worker, other)
    assert b"seen" in caller.body
    assert caller.broke
    assert b"[DONE]" not in caller.body
    assert b'"code":"upstream_failed"' in caller.body
    assert other.engine.bodies == []
    assert counted(gateway, "sbproxy_managed_replica_attempts_total") == {("broken", "peer"): 1}


@pytest.mark.parametrize("minutes", [10, -4])
async def test_a_worker_whose_clock_is_off_is_asked_by_its_own_time(cluster: PeerWorld, minutes: int) -> None:
    skewed, gateway = await cluster.worker("w-a"), cluster.gateway()
    skewed.clock.offset = timedelta(minutes=minutes)
    code = "dispatch_expired" if minutes > 0 else "dispatch_not_yet_valid"
    for _ in range(3):
        assert (await gateway.ask(skewed)).status == 200
    assert skewed.refusals(code) == 1
    skewed.clock.offset = timedelta(0)
    assert (await gateway.ask(skewed)).status == 200
    assert (await gateway.ask(skewed)).status == 200
    assert skewed.refusals("dispatch_expired") + skewed.refusals("dispatch_not_yet_valid") == 2


async def test_a_worker_that_says_another_time_each_time_is_passed_over(
    cluster: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    monkeypatch.setattr(
        strange.clock, "now", lambda: datetime.now(UTC) + timedelta(hours=strange.refusals("dispatch_expired") + 1)
    )
    assert (await gateway.ask(strange, other)).status == 200
    assert (await refused(gateway, strange)).code == "dispatch_expired"


async def test_what_a_worker_does_not_believe_is_told_nobody_else(cluster: PeerWorld) -> None:
    worker, other = await cluster.worker("w-a"), await cluster.worker("w-b")
    stranger = cluster.gateway("w-c", "worker")
    assert (await refused(stranger, worker, other)).code == "peer_authentication_failed"
    assert other.refusals("peer_authentication_failed") == 0
    assert (await refused(stranger, worker, other)).code == "peer_authentication_failed"
    assert (worker.refusals("peer_authentication_failed"), other.refusals("peer_authentication_failed")) == (1, 1)


async def test_admission_is_the_worker_s_and_a_full_one_is_passed_over(cluster: PeerWorld) -> None:
    full, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    held = [await full.served.gate.acquire("standard") for _ in range(4)]
    waiting = [asyncio.create_task(full.served.gate.acquire("standard")) for _ in range(4)]
    await cluster.until(lambda: full.served.gate.queued == 4)
    assert (await gateway.ask(full, other)).status == 200
    assert counted(gateway, "sbproxy_managed_replica_failovers_total") == {("queue_full",): 1}
    error = await refused(gateway, full)
    assert isinstance(error, AdmissionError)
    assert (error.code, error.retry_after_s) == ("queue_full", 10)
    for task in waiting:
        task.cancel()
    for permit in held:
        permit.release()
    assert full.rejections == ["queue_full", "queue_full"]


async def test_a_worker_says_that_a_dispatch_is_in_hand_until_its_answer_begins(
    cluster: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "SIGN_S", 0.02)
    worker, gateway = await cluster.worker(), cluster.gateway()
    held = [await worker.served.gate.acquire("standard") for _ in range(4)]
    async with gateway.connected(worker) as (reader, writer):
        writer.write(dispatch_bytes(*gateway.envelope(worker)))
        for _ in range(3):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 102 Processing\r\n\r\n"
        held.pop().release()
        while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 102"):
            pass
        assert head.startswith(b"HTTP/1.1 200 ")
        rest = await reader.readuntil(b"0\r\n\r\n")
    assert b"HTTP/1.1" not in rest
    assert b"[DONE]" in rest


async def test_no_more_than_eight_are_asked_and_none_after_the_queue_timeout(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    known = [worker.candidate(generation=number) for number in range(10, 20)]
    assert (await refused(gateway, *known)).code == "stale_deployment_generation"
    assert worker.refusals("stale_deployment_generation") == 8
    late = asyncio.get_running_loop().time() - 1
    assert (await refused(gateway, *known, deadline_s=late)).code == "stale_deployment_generation"
    assert worker.refusals("stale_deployment_generation") == 9
    assert (await refused(gateway)).code == "no_eligible_replica"


async def test_what_the_caller_did_wrong_is_told_in_the_engine_s_words_and_asked_nowhere_else(
    cluster: PeerWorld,
) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        body = json.dumps({"error": {"message": "too long", "type": "exceed_context_size_error"}}).encode()
        writer.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    worker.engine.play = play
    error = await refused(gateway, worker, other)
    assert isinstance(error, InputError)
    assert (error.code, error.message) == ("context_length_exceeded", "too long")
    assert other.engine.bodies == []


@pytest.mark.parametrize("cold_start", ["wait", "reject", "fallback"])
async def test_what_a_request_meets_where_everybody_is_cold(cluster: PeerWorld, cold_start: Any) -> None:
    """What the worker does with a cold replica is its generation's rule; here it answers as such a generation would."""
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    cold = [each.candidate(state="cold") for each in (worker, other)]
    if cold_start == "fallback":
        worker.served.gate.close("no_ready_replica")
    if cold_start == "wait":
        assert (await gateway.ask(*cold, cold_start=cold_start)).status == 200
    else:
        assert (await refused(gateway, *cold, cold_start=cold_start)).code == "no_ready_replica"
    assert len(worker.engine.bodies) == (1 if cold_start == "wait" else 0)
    assert worker.rejections == (["no_ready_replica"] if cold_start == "fallback" else [])
    assert other.engine.bodies == other.rejections == []


async def test_requests_for_a_cold_deployment_come_to_one_worker(cluster: PeerWorld) -> None:
    workers = [await cluster.worker(name) for name in ("w-a", "w-b", "w-c")]
    gateways = [cluster.gateway("gw-a"), cluster.gateway("gw-b")]
    cold = [worker.candidate(state="cold", active=number) for number, worker in enumerate(reversed(workers))]
    await asyncio.gather(*(gateway.ask(*cold, prefix=bytes([n]) * 32) for gateway in gateways for n in range(4)))
    assert [len(worker.engine.bodies) for worker in workers] == [8, 0, 0]


async def test_a_worker_that_started_anew_is_asked_again_under_its_new_start(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(boot_epoch=4), cluster.gateway()
    assert (await gateway.ask(worker.candidate(boot_epoch=3))).status == 200
    assert (await gateway.ask(worker.candidate(boot_epoch=3))).status == 200
    assert worker.refusals("stale_boot_epoch") == 1, "what a worker says of its start is kept until the directory knows"
    assert (await refused(gateway, worker.candidate(boot_epoch=9))).code == "stale_boot_epoch"


async def test_a_long_prompt_goes_over_whole(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    worker.served.member = worker.served.member.model_copy(update={"context_length": 1_000_000})
    asked = read_asked(
        json.dumps({"messages": [{"role": "user", "content": "word " * 200_000}], "stream": True}).encode(), "chat"
    )
    body = asked.for_engine(model="q", context_length=1_000_000)
    assert (await gateway.ask(worker, errand=lambda number: gateway.errand(number, body=body))).status == 200
    assert worker.engine.bodies[0].count(b"word ") == 200_000


async def test_a_generation_that_came_before_the_directory_knew_it_costs_no_request(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(boot_epoch=4), cluster.gateway()
    worker.served.number = 9
    assert (await gateway.ask(worker.candidate(generation=8, boot_epoch=3))).status == 200
    assert (worker.refusals("stale_boot_epoch"), worker.refusals("stale_deployment_generation")) == (1, 1)
    assert (await refused(gateway, worker.candidate(generation=10))).code == "stale_deployment_generation"


async def test_a_worker_that_shows_another_certificate_is_not_sent_a_request(cluster: PeerWorld) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    swapped = replace(worker.candidate(), certificate_sha256=other.candidate().certificate_sha256)
    assert (await refused(gateway, swapped)).code == "tls_failed"
    assert (await gateway.ask(swapped, other)).status == 200
    assert worker.engine.bodies == []


async def test_connections_are_kept_and_a_draining_worker_sends_requests_elsewhere(cluster: PeerWorld) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    for _ in range(3):
        await gateway.ask(worker)
    assert len(worker.listener._connections) == 1
    worker.drain.begin("apply")
    assert (await gateway.ask(worker, other)).status == 200
    worker.drain.end("apply")
    worker.app.stop_admitting()
    assert (await refused(gateway, worker)).code == "listener_shutdown"


async def test_requests_of_ours_count_before_the_directory_knows_them(cluster: PeerWorld) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()

    async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _body: bytes) -> None:
        writer.write(STREAM + event("a"))
        await writer.drain()
        await reader.read()
        raise ConnectionError

    for each in (worker, other):
        each.engine.play = held
    callers = [Caller() for _ in range(4)]
    gateway.directory.candidates = [worker.candidate(), other.candidate()]
    asking = [asyncio.create_task(gateway.dispatcher.ask(gateway.request(caller))) for caller in callers]
    await cluster.until(lambda: all(caller.body for caller in callers))
    assert (len(worker.engine.bodies), len(other.engine.bodies)) == (2, 2)
    for task in asking:
        task.cancel()


async def test_this_node_s_own_replicas_are_asked_in_their_own_way(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    asked: list[str] = []

    async def here() -> Any:
        asked.append("here")
        raise AdmissionError("queue_full", "full", retry_after_s=1)

    own = replace(worker.candidate(), node_id="gw-a", is_local=True)
    assert (await gateway.ask(own, worker, here=here)).status == 200
    assert asked == ["here"]
    assert counted(gateway, "sbproxy_managed_replica_attempts_total") == {("queue_full", "local"): 1, ("ok", "peer"): 1}


async def test_a_caller_that_leaves_is_counted_as_such(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    held = [await worker.served.gate.acquire("standard") for _ in range(4)]
    gateway.directory.candidates = [worker.candidate()]
    asking = asyncio.create_task(gateway.dispatcher.ask(gateway.request(Caller())))
    await cluster.until(lambda: worker.served.gate.queued == 1)
    asking.cancel()
    await cluster.until(lambda: worker.served.gate.queued == 0)
    assert counted(gateway, "sbproxy_model_plane_stream_cancellations_total") == {("peer",): 1}
    assert len(held) == 4


async def test_a_broken_worker_is_no_reason_to_wait_for_ever(
    cluster: PeerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who accepts and says nothing, in place of a worker."""
    worker, gateway = await cluster.worker(), cluster.gateway()
    assert (await gateway.ask(worker)).status == 200, "the connection to the one that lives is kept"
    monkeypatch.setattr(upstream, "_CONNECT_S", 0.3)
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    dead = worker.candidate(node_id="w-0", address=f"127.0.0.1:{port}")
    assert (await gateway.ask(dead, worker)).status == 200
    silent.close()
