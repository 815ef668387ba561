"""A real runtime whose model is full, cold, broken or stopped, with somebody else's API behind it: who answers, and who never does."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from sbctl.base.digests import sha256_bytes
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import RuntimeKeys
from sbctl.node.paths import PREFIX_VARIABLE, node_paths
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.provider_key_ops import install_provider_keys
from sbctl.trust.bundle import ApiKeyEntry, BundleContent, ExternalMember, LocalStandIn, OriginMember
from tests.simulators.external_api import Answer, ExternalApi
from tests.simulators.runtime_world import (
    LINEAGE,
    Operator,
    RuntimeProcess,
    behaves,
    content,
    engine_program,
    member,
    prepare_node,
    running,
    weights,
)

pytestmark = pytest.mark.integration

CANARY = "sk-canary-external"
KEY_FILE = "provider_key_" + "a" * 16
KEY = "sk-caller"
DEADLINE_S = 30.0


class World:
    """One runtime, the model `q` (one request at a time, nobody waits), the model `c` (cold), one external API."""

    def __init__(self, folder: Path, api: ExternalApi) -> None:
        self.folder, self.api, self.operator, self.revision = folder, api, Operator(), 0
        self.program = engine_program(folder)
        self.runtime: RuntimeProcess

    def desired(self, **key: Any) -> BundleContent:
        artifact = weights(self.folder)
        models = {"q-model": "q", "c-model": "c"}
        external = ExternalMember(
            name="other", base_url=self.api.base_url, models={name: f"big-{name}" for name in models}, keys=(KEY_FILE,)
        )
        return content(
            {
                "q": member(artifact, self.program, max_concurrency=1, max_queue_depth=0, cold_start="fallback"),
                "c": member(artifact, self.program, warm=False, pull="on_demand", cold_start="fallback", threads=2),
            },
            origins={"ai.internal": OriginMember(models=models, default_model="q-model", stand_ins=(external,))},
            api_keys={"app": ApiKeyEntry(sha256=sha256_bytes(KEY.encode()), **key)},
        )

    def apply(self, desired: BundleContent) -> None:
        self.revision += 1
        told = self.runtime.apply(self.operator.bundle(desired, self.revision), self.revision - 1 or None)
        assert "result" in told, told

    def ask(self, text: str = "Hi", headers: dict[str, str] | None = None, **more: Any) -> tuple[int, Any, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, **more}
        sent = {"Authorization": f"Bearer {KEY}", **(headers or {})}
        return self.runtime.http("POST", "/v1/chat/completions", body, sent)

    def route(self, **more: Any) -> str:
        status, _, headers = self.ask(**more)
        return headers["x-sbproxy-route-class"] if status == 200 else str(status)

    def hold(self) -> socket.socket:
        """A stream that takes the model's only place until the connection is closed."""
        host, _, port = self.runtime.status()["http_url"].removeprefix("http://").partition(":")
        holder = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        body = json.dumps({"messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        holder.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        assert holder.recv(1024).startswith(b"HTTP/1.1 200")
        return holder

    def until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, self.runtime.log.read_text()[-2000:]
            time.sleep(0.05)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExternalApi() as api:
        world = World(tmp_path, api)
        paths = prepare_node(tmp_path, world.operator, provider_keys=(KEY_FILE,), admin_enabled=True)
        (paths.secrets / KEY_FILE).write_text(CANARY)
        with running(tmp_path) as runtime:
            world.runtime = runtime
            world.apply(world.desired())
            runtime.await_state("q", "ready")
            yield world


def test_who_answers_when_the_model_cannot(world: World) -> None:
    assert world.route() == "local"
    assert world.api.asked == []

    behaves(world.program, endless=True, token_delay_s=0.01)
    holder = world.hold()
    with openai.OpenAI(
        base_url=f"{world.runtime.status()['http_url']}/v1", api_key=KEY, max_retries=0, timeout=DEADLINE_S
    ) as client:
        ask: Any = {"model": "q-model", "messages": [{"role": "developer", "content": "prompt"}]}
        whole = client.chat.completions.create(**ask)
        assert (whole.model, whole.choices[0].message.content) == ("q-model", "from outside")
        chunks = list(client.chat.completions.create(**ask, stream=True))
        assert {chunk.model for chunk in chunks} == {"q-model"}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "from outside"
    whole_asked, stream_asked = world.api.asked
    assert whole_asked.body == {"model": "big-q-model", "messages": ask["messages"]}
    assert stream_asked.body["stream_options"] == {"include_usage": True}
    assert whole_asked.headers["Authorization"] == f"Bearer {CANARY}"

    # What the caller did wrong, and what it does not allow, goes nowhere.
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"n_discard": -1}, "400"),
        ({"model": "gpt"}, "404"),
        ({"text": "word " * 9000}, "400"),
        ({"headers": {"Authorization": "Bearer wrong"}}, "401"),
        ({"headers": {"x-sbproxy-disallow-prompt-training": "true"}}, "503"),
    )
    for more, answered in refused:
        assert world.route(**more) == answered, more
    assert len(world.api.asked) == 2

    # A provider that cannot either: the caller hears of the model, and when to come back.
    world.api.answers[f"Bearer {CANARY}"] = Answer(429, b"{}", {"Retry-After": "1"})
    status, body, headers = world.ask()
    assert (status, body["error"]["code"], headers["Retry-After"]) == (503, "queue_full", "10")
    world.api.answers.clear()

    holder.close()
    behaves(world.program)
    world.until(lambda: world.route() == "local")
    assert world.runtime.act("q", "stop")[0] == 200
    world.until(lambda: world.route() == "external")
    logs = world.runtime.log.read_bytes() + json.dumps(world.runtime.status()).encode()
    assert CANARY.encode() not in logs


def test_a_cold_model_loads_while_somebody_else_answers(world: World) -> None:
    assert world.route(model="c-model") == "external"
    world.runtime.await_state("c", "ready", DEADLINE_S)
    assert world.route(model="c-model") == "local"
    behaves(world.program, error_status=503)
    assert world.route(model="c-model") == "external"


def test_another_deployment_stands_in_then_whoever_comes_after_it_and_nobody_after_the_first_byte(world: World) -> None:
    desired = world.desired()
    other = engine_program(world.folder, "other-server")
    spare = member(weights(world.folder, "spare"), other, pull="on_demand", warm=False)
    origin = desired.origins["ai.internal"]
    local = LocalStandIn(name="spare", deployment="s", models=("q-model",))
    chained = origin.model_copy(update={"stand_ins": (local, *origin.stand_ins)})
    deployments = {**desired.deployments, "s": spare}
    world.apply(desired.model_copy(update={"deployments": deployments, "origins": {"ai.internal": chained}}))

    behaves(world.program, endless=True, token_delay_s=0.01)
    holder = world.hold()
    status, body, headers = world.ask()
    assert (status, body["model"], headers["x-sbproxy-route-class"]) == (200, "q-model", "local")
    world.runtime.await_state("s", "ready")
    assert world.api.asked == [], "the host's own came first"
    # It is told by numbers, and neither a limit nor what the caller did wrong leads anybody on.
    _, numbers = world.runtime.admin("GET", "/metrics")
    assert 'sbctl_stand_in_requests_total{deployment="q",provider="spare",reason="queue_full"} 1.0' in numbers
    assert world.route(n_discard=-1) == "400"

    # Where it cannot either, the next of the chain; a wish of the caller concerns strangers alone.
    behaves(other, error_status=503)
    assert world.route() == "external"
    assert world.route(headers={"x-sbproxy-disallow-prompt-training": "true"}) == "503"
    asked = len(world.api.asked)

    # Once a byte of an answer is out, nobody else is asked.
    behaves(other, cut_after_tokens=1)
    status, body, _ = world.ask(stream=True)
    assert status == 200
    assert "upstream_failed" in body
    assert "[DONE]" not in body
    assert len(world.api.asked) == asked
    holder.close()


def test_an_exchanged_key_of_a_provider_is_used_at_once_and_nothing_restarts(world: World) -> None:
    pids = (world.runtime.process.pid, *world.runtime.engine_pids())
    world.api.answers[f"Bearer {CANARY}"] = Answer(401, b"{}")
    behaves(world.program, error_status=503)
    assert world.route() == "502", "the provider does not take the key: it rests for minutes"
    environ = {PREFIX_VARIABLE: str(world.folder)}
    sent = {KEY_FILE: Secret(f"{CANARY}-2".encode())}
    node = NodeContext(node_paths(os.getuid(), environ), environ, os.getuid(), secrets=sent)
    assert install_provider_keys(node, RuntimeKeys(lineage=LINEAGE, names=(KEY_FILE,)))["used"] is True
    assert world.route() == "external"
    assert world.api.asked[-1].headers["Authorization"] == f"Bearer {CANARY}-2"
    assert (world.runtime.process.pid, *world.runtime.engine_pids()) == pids
    assert CANARY.encode() not in world.runtime.log.read_bytes()


def test_keys_and_their_limits_change_without_a_restart(world: World) -> None:
    pids = world.runtime.engine_pids()
    world.apply(world.desired(tokens_per_minute=20, priority="batch"))
    status, _, headers = world.ask()
    assert (status, headers["x-ratelimit-limit-tokens"]) == (200, "20")
    # So many are not left for half a minute; few came out before, so what was reserved and not used is back.
    status, body, headers = world.ask(max_tokens=20)
    assert (status, body["error"]["code"]) == (429, "rate_limited")
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert world.ask()[0] == 200
    world.apply(world.desired(requests_per_minute=2))
    assert world.ask()[2]["x-ratelimit-remaining-requests"] == "1"
    assert [world.ask()[0] for _ in range(2)] == [200, 429]
    world.apply(world.desired())
    status, _, headers = world.ask()
    assert status == 200
    assert "x-ratelimit-limit-tokens" not in headers
    assert world.runtime.engine_pids() == pids
    assert world.api.asked == []


def test_a_queued_caller_that_leaves_frees_its_place_at_once(world: World) -> None:
    desired = world.desired()
    queue = desired.deployments["q"].model_copy(update={"max_queue_depth": 1, "queue_timeout_ms": 600_000})
    world.apply(desired.model_copy(update={"deployments": {**desired.deployments, "q": queue}}))
    behaves(world.program, endless=True, token_delay_s=0.01)
    holder = world.hold()

    def queued() -> int:
        (row,) = (each for each in world.runtime.status()["deployments"] if each["deployment"] == "q")
        return sum(int(replica["queued_requests"]) for replica in row["replicas"])

    host = world.runtime.status()["http_url"].removeprefix("http://")
    for _ in range(2):
        waiting = http.client.HTTPConnection(host, timeout=DEADLINE_S)
        body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        waiting.request("POST", "/v1/chat/completions", body, headers)
        world.until(lambda: queued() == 1)
        assert world.route() == "external", "the line is full"
        waiting.close()
        world.until(lambda: queued() == 0)
    holder.close()


def test_a_provider_that_is_this_gateway_again_is_asked_once_and_not_in_a_circle(world: World) -> None:
    own = ExternalMember(name="own", base_url=f"{world.runtime.status()['http_url']}/v1", models={"c-model": "c-model"})
    desired = world.desired()
    origin = desired.origins["ai.internal"].model_copy(update={"stand_ins": (own,)})
    world.apply(desired.model_copy(update={"origins": {"ai.internal": origin}, "api_keys": {}}))
    world.runtime.act("c", "stop")
    assert world.route(model="c-model") == "503"
    refused = [line for line in world.runtime.log.read_text().splitlines() if '"event": "refused"' in line]
    assert len(refused) == 2
