"""A gateway's process and its workers' processes, with engines that are processes too: requests over the peer plane, and who dies in them."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sbctl.trust.bundle import OriginMember
from sbctl.trust.certificates import certificate_facts
from tests.simulators.peer_daemon import PeerProcess, write_peer_file
from tests.simulators.peer_world import PeerWorld
from tests.simulators.runtime_world import Operator, behaves, content, engine_program, member, prepare_node, weights

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}
CHAT = {"model": "public", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


@dataclass
class Fleet:
    gateway: PeerProcess
    workers: list[PeerProcess]
    programs: list[Path]

    @contextlib.contextmanager
    def asked(self, **more: Any) -> Iterator[http.client.HTTPResponse]:
        """A request through the gateway's public port, and its answer while it comes."""
        with contextlib.closing(self.connection()) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, **more}), JSON)
            yield connection.getresponse()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.gateway.status()["http_url"].removeprefix("http://"), timeout=60)

    def behave(self, **how: Any) -> None:
        for program in self.programs:
            behaves(program, **how)


def until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


NAMES = ("w-a", "w-b", "w-c")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    world, operator = PeerWorld(tmp_path), Operator()
    origins = {"ai.internal": OriginMember(models={"public": "q"})}
    kits = {name: world.kit(name, "worker") for name in NAMES} | {"gw-a": world.kit("gw-a", "gateway")}
    with contextlib.ExitStack() as stack:
        nodes: dict[str, PeerProcess] = {}
        for name, kit in kits.items():
            (tmp_path / name).mkdir()
            etc = prepare_node(tmp_path / name, operator).etc
            write_peer_file(etc, kit, "gateway" if name == "gw-a" else "worker")
            nodes[name] = PeerProcess(tmp_path / name)
            stack.callback(nodes[name].end)
        programs = [engine_program(tmp_path / name) for name in NAMES]
        known = []
        for name, program in zip(NAMES, programs, strict=True):
            nodes[name].await_healthy(60)
            served = member(weights(tmp_path / name), program)
            assert "result" in nodes[name].apply(operator.bundle(content({"q": served}, origins=origins), 1), None)
            fingerprint = certificate_facts(kits[name].files.certificate).fingerprint
            address = f"127.0.0.1:{nodes[name].peer_port}"
            known.append({"node_id": name, "address": address, "certificate_sha256": fingerprint})
        directory = {"member": served.model_dump(mode="json"), "workers": known}
        (nodes["gw-a"].paths.etc / "directory.json").write_text(json.dumps(directory), encoding="utf-8")
        nodes["gw-a"].await_healthy(60)
        assert "result" in nodes["gw-a"].apply(operator.bundle(content({}, origins=origins), 1), None)
        yield Fleet(nodes["gw-a"], [nodes[name] for name in NAMES], programs)


def test_requests_over_the_peer_plane_and_the_death_of_those_who_answer(fleet: Fleet) -> None:
    first, second, third = fleet.workers
    with fleet.asked() as answer:
        assert (answer.status, answer.headers["x-sbproxy-route-class"]) == (200, "peer")
        document = json.loads(answer.read())
        assert (document["model"], document["choices"][0]["message"]["content"]) == ("public", "echo Hi echo ")
    with fleet.asked(stream=True) as answer:
        streamed = answer.read()
        assert streamed.count(b'"model":"public"') + streamed.count(b'"model": "public"') > 2
        assert streamed.endswith(b"data: [DONE]\n\n")
    status, models, _ = fleet.gateway.http("GET", "/v1/models")
    assert (status, models["data"][0]["id"]) == (200, "public")
    assert models["data"][0]["availability"] == {"state": "ready", "ready_replicas": 3, "desired_replicas": 1}

    # G19: a caller that leaves ends the request at the engine of the other process
    fleet.behave(endless=True, token_delay_s=0.01)
    with fleet.asked(stream=True, max_tokens=400) as answer:
        assert answer.read(20)
        assert first.engine_gauge("requests_processing") == 1
    until(lambda: first.engine_gauge("requests_processing") == 0, "the engine still works for nobody")
    assert active(first) == 0

    # G20: the worker dies in the stream
    with fleet.asked(stream=True, max_tokens=400) as answer:
        assert answer.read(20)
        first.process.send_signal(signal.SIGKILL)
        rest = answer.read()
        assert b"[DONE]" not in rest
        assert b"upstream_failed" in rest
    first.process.wait(30)

    # the next worker dies before its first byte, and the third answers
    fleet.behave()
    behaves(fleet.programs[1], header_delay_s=30)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(contextlib.closing(fleet.connection()))
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "stream": True}), JSON)
        until(lambda: active(second) == 1, "the request is not at the second worker")
        second.process.send_signal(signal.SIGKILL)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.read().endswith(b"data: [DONE]\n\n")
    second.process.wait(30)
    assert active(third) == 0


def active(worker: PeerProcess) -> int:
    return int(worker.status()["deployments"][0]["replicas"][0]["active_requests"])
