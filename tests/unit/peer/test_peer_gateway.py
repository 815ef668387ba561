"""The public API of a gateway in a cluster: what callers see of it, and when this host's own replicas are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sbctl.node.cluster_documents import BundleMark
from sbctl.node.paths import node_paths
from sbctl.node.placement_document import PlacedDeployment, PlacedReplica, PlacementDocument, RolloutState
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.gateway.server import GatewayServer
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.peer.candidates import KnownNode, Serving
from sbctl.runtime.peer.dispatch import Dispatcher
from sbctl.runtime.peer.gateway import ClusterGateway
from sbctl.runtime.peer.known import KnownCluster, serving_of
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.routes import RouteTable
from sbctl.trust.bundle import ApiKeyEntry, OriginMember
from tests.simulators.engine_world import facts
from tests.simulators.peer_snapshots import node, replica
from tests.simulators.peer_world import PATIENCE_S, Engine, PeerWorld, Served, Worker
from tests.simulators.runtime_world import member

KEYS = {"app": ApiKeyEntry(sha256="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae", priority="batch")}


class Public:
    """A gateway's public port. `here`: what this host serves itself."""

    def __init__(self, world: PeerWorld, workers: list[Worker], here: Served | None = None, **changes: Any) -> None:
        self.side = world.gateway()
        self.known = KnownCluster("gw-a", {"region": "eu"})
        self.generations: Any = {} if here is None else {"q": here}
        self.outcomes: list[Outcome] = []
        self.routes = RouteTable(
            {"ai": OriginMember(models={"public": "q", "nowhere": "r"})}, self.generations, changes.pop("keys", {})
        )
        shown = [
            node(
                worker.node_id,
                replica(deployment_generation=worker.served.number),
                address=f"127.0.0.1:{worker.port}",
                boot_epoch=worker.boot_epoch,
            )
            for worker in workers
        ]
        peers = [worker.candidate().peer for worker in workers]
        nodes = [KnownNode(each.snapshot, peer) for each, peer in zip(shown, peers, strict=True) if peer is not None]
        if here is not None:
            nodes.append(node("gw-a", replica(deployment_generation=3), address=None))
        self.member = member(facts(), "/engine", replicas=2, **changes)
        self.known.take(nodes, {"q": self.member}, {"q": Serving((3,))}, policy_revision=7)
        self.gateway = ClusterGateway(
            cast("Any", self),
            self,
            KeyLimits(),
            Drain(node_paths(0, {"SBCTL_NODE_PREFIX": str(world.folder)})),
            cast("Any", None),
            bound_to_loopback=True,
            cluster=self.known,
            dispatcher=Dispatcher(self.known, self.side.client, PeerMetrics(CollectorRegistry())),
        )
        self.server = GatewayServer(self.gateway)

    def rejected(self, deployment: str, priority: str, reason: str) -> None: ...

    def fell_back(self, deployment: str, provider: str, reason: str) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def ask(self, path: str = "/v1/chat/completions", *rows: str, **body: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers, and the parsed body."""
        sock = bind_tcp("127.0.0.1", 0)
        port = sock.getsockname()[1]
        await self.server.start(sock)
        document = {"model": "public", "messages": [{"role": "user", "content": "Hi"}], **body}
        data = json.dumps(document).encode()
        method = "POST" if path.endswith("completions") else "GET"
        head = [f"{method} {path} HTTP/1.1", "Host: ai", "Content-Type: application/json", "Connection: close", *rows]
        if method == "POST":
            head.append(f"Content-Length: {len(data)}")
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write("\r\n".join([*head, "", ""]).encode() + (data if method == "POST" else b""))
            answer = await reader.read()
            writer.close()
        await self.server.close()
        raw, _, rest = answer.partition(b"\r\n\r\n")
        fields = dict(row.split(": ", 1) for row in raw.decode().split("\r\n")[1:])
        return int(raw.split(b" ")[1]), fields, json.loads(rest) if rest.startswith(b"{") else rest


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PeerWorld]:
    world = PeerWorld(tmp_path)
    yield world
    await world.close()


async def test_a_request_goes_to_a_worker_and_its_answer_says_so_without_topology(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    public = Public(cluster, [worker], keys=KEYS)
    status, fields, body = await public.ask("/v1/chat/completions", "Authorization: Bearer foo")
    assert (status, body["model"], fields["x-sbproxy-route-class"]) == (200, "public", "peer")
    assert fields["x-sbproxy-logical-model"] == "public"
    assert "w-a" not in str((fields, body))
    assert [(outcome.deployment, outcome.status) for outcome in public.outcomes] == [("q", 200)]
    sent = json.loads(worker.engine.bodies[0])
    assert (sent["model"], sent["stream"]) == ("q", True)


async def test_a_gateway_that_knows_no_bundle_is_not_ready_and_alive(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    public = Public(cluster, [worker])
    assert (await public.ask("/readyz"))[0] == 200
    public.known = KnownCluster("gw-a", {})
    public.gateway._cluster = public.known
    assert [(await public.ask(path))[0] for path in ("/readyz", "/health", "/healthz")] == [503, 503, 200]


async def test_this_host_is_asked_first_and_a_worker_when_it_does_not_serve_that_any_more(cluster: PeerWorld) -> None:
    worker, engine = await cluster.worker(), Engine()
    await engine.start()
    public = Public(cluster, [worker], Served(3, engine.client))
    status, fields, _ = await public.ask()
    assert (status, fields["x-sbproxy-route-class"], len(engine.bodies)) == (200, "local", 1)
    del public.generations["q"]
    status, fields, _ = await public.ask()
    assert (status, fields["x-sbproxy-route-class"], len(engine.bodies)) == (200, "peer", 1)
    await engine.stop()


async def test_refusals_before_anybody_is_asked(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    public = Public(cluster, [worker], context_length=64)
    assert (await public.ask(model="nowhere"))[2]["error"]["code"] == "unknown_model"
    assert (await public.ask(model="other"))[2]["error"]["code"] == "unknown_model"
    assert (await public.ask(max_tokens=65))[2]["error"]["code"] == "invalid_request"
    public.gateway.stop_admitting()
    status, fields, body = await public.ask()
    assert (status, body["error"]["code"], fields["Retry-After"]) == (503, "no_ready_replica", "1")
    assert worker.engine.bodies == []


async def test_what_callers_are_told_when_nobody_can_answer(cluster: PeerWorld) -> None:
    public = Public(cluster, [])
    status, fields, body = await public.ask()
    assert (status, fields["Retry-After"]) == (503, "1")
    assert body["error"]["code"] == "no_eligible_replica"
    assert body["error"]["message"] == "the model is temporarily unavailable"


async def test_models_are_listed_with_the_replicas_of_the_whole_cluster(cluster: PeerWorld) -> None:
    workers = [await cluster.worker("w-a"), await cluster.worker("w-b")]
    public = Public(cluster, workers)
    _, _, body = await public.ask("/v1/models")
    (row,) = body["data"]
    assert (row["id"], row["availability"]) == (
        "public",
        {"state": "ready", "ready_replicas": 2, "desired_replicas": 2},
    )
    for shown, state in (([node("w-a", replica(state="cached"))], "cold"), ([], "unavailable")):
        public.known.take(shown, {"q": public.member}, {}, policy_revision=8)
        assert (await public.ask("/v1/models"))[2]["data"][0]["availability"]["state"] == state


def test_what_a_gateway_knows_is_what_was_last_heard() -> None:
    known = KnownCluster("gw-a", {"topology.kubernetes.io/region": "eu"})
    assert (known.region, known.selection("q").candidates, known.member("q")) == ("eu", (), None)
    old, new = replica(deployment_generation=4), replica(deployment_generation=5, state="preparing")
    known.take([node("w-a", old), node("w-b", new)], {}, {}, policy_revision=1)
    assert [candidate.generation for candidate in known.selection("q").candidates] == [4, 5]
    known.take([node("w-a", old), node("w-b", new)], {}, {"q": Serving((5,))}, policy_revision=1)
    assert [candidate.generation for candidate in known.selection("q").candidates] == [5]
    assert known.selection("q").excluded == {"generation": 1}


def test_what_drains_gets_no_new_request() -> None:
    def placed(generation: int) -> PlacedReplica:
        return PlacedReplica(
            slot=0,
            node_id="w-a",
            generation=generation,
            variant="v",
            artifact_digest="a" * 64,
            member_digest="b" * 64,
            engine="llama_cpp",
            accelerator="cpu",
        )

    deployment = PlacedDeployment(
        model="m",
        member_digest="b" * 64,
        generation=7,
        desired_replicas=1,
        assignments=(placed(7),),
        retained=(placed(5), placed(6), placed(7)),
        draining=(placed(4),),
        rollout=RolloutState(phase="waiting_for_readiness", target_ready=False),
    )
    plan = PlacementDocument(
        cluster_id="prod",
        identity_epoch=1,
        boot_epoch=1,
        lease_epoch=1,
        lease_holder="a",
        counter=1,
        issued_at_unix_ms=0,
        bundle=BundleMark(revision=1, content_digest="c" * 64),
        directory_digest="d" * 64,
        deployments={"q": deployment},
    )
    on = frozenset({"w-a"})
    assert serving_of(plan) == {"q": Serving((7, 6, 5), {7: on, 6: on, 5: on})}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_a_gateway_that_knows_no_keys_lets_nobody_in_and_tells_callers_to_come_again(
    cluster: PeerWorld, path: str
) -> None:
    """As after its memory of the cluster was lost, or before it heard of the cluster for the first time."""
    public = Public(cluster, [], keys=KEYS)
    public.known.is_known, taken_up, public.routes = False, public.routes, RouteTable()
    for rows in ((), ("Authorization: Bearer foo",), ("Authorization: Bearer bar",)):
        status, fields, body = await public.ask(path, *rows)
        assert (status, fields["Retry-After"]) == (503, "10")
        error = body["error"]
        assert (error["code"], error["sbproxy_reason"], error["retryable"]) == (
            "desired_state_unknown", "desired_state_unknown", True,
        )  # fmt: skip
    assert (await public.ask("/readyz"))[0] == 503
    assert (await public.ask("/livez"))[0] == 200

    # The bundle was heard, and is taken up in a moment.
    public.known.is_known = True
    assert (await public.ask(path))[0] == 503
    public.routes = taken_up
    assert (await public.ask(path))[0] == 401
    assert (await public.ask(path, "Authorization: Bearer foo"))[0] in (200, 503)
    assert (await public.ask("/readyz"))[0] == 200


async def test_a_bundle_without_origins_is_a_known_one(cluster: PeerWorld) -> None:
    public = Public(cluster, [])
    public.routes, public.known.has_origins = RouteTable(), False
    status, _, body = await public.ask()
    assert (status, body["error"]["code"]) == (404, "unknown_origin")
