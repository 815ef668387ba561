"""Faults of engines that users of model servers report (docs/faults.md), each by a program that really has it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from sbctl.engines.detect import probe_llama_server
from sbctl.engines.driver import EngineDriver
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import Canary, EngineAddress, EngineBuild, LaunchSpec, StopPlan
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_host import ChildEngineHost, EngineLabel
from sbctl.runtime.launch import LaunchPorts
from sbctl.runtime.listener_proof import free_loopback_port
from sbctl.runtime.ownership import OwnershipRecords
from sbctl.runtime.provision import Prepared, Progress
from sbctl.runtime.readiness import WatchTimes
from sbctl.runtime.replica import Replica
from sbctl.runtime.replica_messages import ReplicaPorts
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import outcome_of
from tests.simulators.llama_launches import launch_request
from tests.simulators.runtime_world import behaves, engine_program, member, weights

pytestmark = pytest.mark.integration

MIB = 1 << 20


class Node:
    """One node's engines: a program with faults on order, started as the runtime starts it. Is a `Provisioner`, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = engine_program(folder)
        self.build = probe_llama_server(self.program)
        self.facts = weights(folder)
        self.records = OwnershipRecords(folder / "records")
        self.host = ChildEngineHost(self.records, folder, logs=folder / "logs")
        self.ready_deadline_s = 60.0
        self.ceiling_bytes: int | None = None
        self.ports: list[int] = []
        self.replicas: list[Replica] = []

    def behaves(self, **behave: Any) -> None:
        behaves(self.program, **behave)

    def replica(self, **times: float) -> Replica:
        launch = LaunchPorts(self.host, self, WatchTimes(**times))
        made = Replica(
            EngineLabel("q", 0, 1), member(self.facts, self.program), ReplicaPorts(launch, chance=lambda: 1.0)
        )
        self.replicas.append(made)
        return made

    def driver(self, engine: str) -> EngineDriver:
        return LlamaCpp()

    async def check_engine(self, member: DeploymentMember) -> EngineBuild:
        return self.build

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        return Prepared(self.folder / "tiny.gguf", self.build)

    def launch(self, member: DeploymentMember, prepared: Prepared, *, deployment: str, room: Room) -> LaunchSpec:
        port = self.ports.pop(0) if self.ports else free_loopback_port()
        request = launch_request(
            weights=prepared.weights, address=EngineAddress(port=port), alias=deployment,
            context_length=member.context_length, slots=member.max_concurrency, environ=os.environ,
        )  # fmt: skip
        spec = LlamaCpp().launch(prepared.build, request)
        return replace(
            spec,
            ready_deadline_s=self.ready_deadline_s,
            stop=StopPlan(grace_s=1.0),
            memory_max_bytes=room.ceiling_bytes,
        )

    async def room(self, member: DeploymentMember, prepared: Prepared) -> Room:
        return Room(ceiling_bytes=self.ceiling_bytes)

    def keep_only(self, artifacts: frozenset[str]) -> None: ...

    def left(self) -> list[int]:
        """Processes that the program left, whatever they made of session and environment."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or []
            ours = str(self.program) in words or any("held=bytearray" in word for word in words)
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        return found


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    yield made
    made.behaves()
    for replica in made.replicas:
        await outcome_of(replica.retire(drain_s=0))
    assert made.left() == []


async def _until_failed(replica: Replica) -> str:
    async with asyncio.timeout(60):
        while replica.error is None:
            await asyncio.sleep(0.05)
    return replica.error.message


def _has_cgroups(node: Node) -> bool:
    return any(record is not None and record.cgroup for _, record in node.records.read())


@pytest.mark.parametrize("behave", [{"fork_child": True}, {"fork_child": True, "fork_session": True}, {"escape": True}])
async def test_fault_01_children_that_hold_memory_go_with_their_engine(node: Node, behave: dict[str, Any]) -> None:
    node.behaves(**behave)
    replica = node.replica()
    await replica.load("request")
    if "escape" in behave and not _has_cgroups(node):
        pytest.skip("no control group may be made here, and the child has left session and environment")
    await replica.stop("operator", drain_s=0)
    assert node.left() == []


async def test_fault_02_what_a_dead_daemon_left_is_found_and_ended(node: Node) -> None:
    node.behaves(ignore_sigterm=True, fork_child=True, fork_session=True)
    replica = node.replica()
    await replica.load("request")
    assert len(list(node.records.read())) == 1
    await ChildEngineHost(node.records, node.folder).adopt()
    assert node.left() == []
    assert list(node.records.read()) == []


async def test_fault_03_a_start_that_ignores_sigterm_is_ended_within_its_own_grace(node: Node) -> None:
    node.behaves(slow_load_s=600, ignore_sigterm=True)
    replica = node.replica()
    loading = asyncio.create_task(outcome_of(replica.load("request")))
    async with asyncio.timeout(30):
        while not node.left():
            await asyncio.sleep(0.05)
    await replica.stop("operator", drain_s=0)
    assert await loading == "stopped"
    assert node.left() == []


async def test_fault_06_health_that_says_200_while_requests_hang_is_not_ready(node: Node) -> None:
    node.behaves(hang_requests=True)
    node.ready_deadline_s = 6.0  # the process has to be up by then, on a busy machine too
    assert await outcome_of(node.replica().load("request")) == "engine_health_failed"


async def test_fault_23_an_engine_with_other_slots_than_planned_is_refused(node: Node) -> None:
    node.behaves(props={"total_slots": 4})
    replica = node.replica()
    assert await outcome_of(replica.load("request")) == "engine_mismatch"
    assert "4 requests at once, 2 were asked for" in str(replica.error)


async def test_fault_26_a_slot_that_stays_busy_after_its_caller_left_ends_the_engine(node: Node) -> None:
    node.behaves(slot_stays_busy=True, endless=True, token_delay_s=0.01)
    replica = node.replica(interval_s=0.1, stall_s=0.5)
    await replica.load("request")
    port = replica.port
    assert port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = b'{"prompt": "Hi", "stream": true}'
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await reader.readuntil(b"data: ")
    writer.close()
    assert "after its caller had left" in await _until_failed(replica)


async def test_a_log_line_without_end_costs_neither_memory_nor_disk(node: Node) -> None:
    before = psutil.Process().memory_info().rss
    node.behaves(stderr_bytes=64 * MIB)
    replica = node.replica()
    await replica.load("request")
    assert psutil.Process().memory_info().rss - before < 24 * MIB
    assert sum(path.stat().st_size for path in (node.folder / "logs").iterdir()) <= 9 * MIB


async def test_fault_40_a_stop_returns_when_the_last_holder_of_memory_is_gone(node: Node) -> None:
    node.behaves(memory_mib=32, escape=True, child_memory_mib=32)
    replica = node.replica()
    await replica.load("request")
    if not _has_cgroups(node):
        pytest.skip("no control group may be made here, and the child has left session and environment")
    await replica.stop("operator", drain_s=0)
    assert node.left() == []


async def test_fault_50_an_engine_that_only_sigkill_ends_is_stopped_all_the_same(node: Node) -> None:
    node.behaves(ignore_sigterm=True)
    replica = node.replica()
    await replica.load("request")
    engine = replica.launched
    assert engine is not None
    await node.host.stop(engine.engine, grace_s=0.2)
    assert node.left() == []


def test_fault_58_a_port_that_something_of_ours_listens_on_is_never_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        taken = ours.getsockname()[1]
        assert taken not in {free_loopback_port() for _ in range(200)}


async def test_fault_63_a_port_that_was_taken_meanwhile_costs_one_attempt(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        node.ports = [other.getsockname()[1]]
        replica = node.replica()
        assert await outcome_of(replica.load("request")) in ("engine_early_exit", "engine_not_ours")
        assert await outcome_of(replica.load("operator")) == "ok"


async def test_fault_70_an_engine_that_prints_its_end_and_answers_on_is_ended(node: Node) -> None:
    node.behaves(print_after_tokens=[2, "CUDA error: an illegal memory access was encountered"])
    replica = node.replica(interval_s=0.2)
    await replica.load("request")
    permit = await replica.gate.acquire("standard")
    client: EngineClient = replica.client
    canary = Canary("/v1/completions", {"prompt": "a", "max_tokens": 9})
    asking = asyncio.create_task(client.produce(canary, timeout_s=30))
    message = await _until_failed(replica)
    permit.release()
    asking.cancel()
    await asyncio.wait({asking})
    assert "CUDA error" in message


class _Stale(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: Any) -> None: ...


async def test_fault_80_another_process_at_the_engine_s_address_is_not_the_engine(node: Node) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stale)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        node.ports = [server.server_port]
        node.behaves(other_port=True)
        assert await outcome_of(node.replica().load("request")) == "engine_not_ours"
    finally:
        server.shutdown()
        server.server_close()


async def test_fault_72_an_engine_that_leaks_is_ended_at_its_ceiling_alone_and_said_so(node: Node) -> None:
    node.behaves(leak_mib_per_s=200)
    node.ceiling_bytes = 256 * MIB
    replica = node.replica()
    await replica.load("request")
    groups = [Path(record.cgroup) for _, record in node.records.read() if record is not None and record.cgroup]
    if not any((group / name).exists() for group in groups for name in ("memory.max", "memory.limit_in_bytes")):
        await replica.stop("operator", drain_s=0)
        pytest.skip("no control group that limits memory may be made here")
    message = await _until_failed(replica)
    assert "the kernel killed it, since memory ran out (it may have 256.0 MiB)" in message
    assert replica.error is not None
    assert replica.error.code == "engine_oom_killed"
    assert "say memory:" in (replica.error.next_step or "")
    node.behaves()
    await replica.load("operator")
    assert replica.is_ready


async def test_fault_81_a_kill_from_outside_is_not_called_a_lack_of_memory(node: Node) -> None:
    node.behaves(oom=True)
    replica = node.replica()
    await outcome_of(replica.load("request"))
    message = await _until_failed(replica)
    assert "SIGKILL from outside" in message


async def test_an_engine_that_listens_elsewhere_or_dies_while_loading_is_said_so(node: Node) -> None:
    node.behaves(other_port=True)
    node.ready_deadline_s = 1.0
    assert await outcome_of(node.replica().load("request")) == "engine_readiness_timeout"
    node.behaves(exit_at_once=3)
    replica = node.replica()
    assert await outcome_of(replica.load("request")) == "engine_early_exit"
    assert "exit code 3: error: told to exit" in str(replica.error)
