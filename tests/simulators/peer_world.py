"""Gateways and workers of one cluster in one event loop: real identities, real TLS over loopback, engines that do what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from sbctl.base.clock import SYSTEM_CLOCK, SystemClock
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import RefusedError
from sbctl.base.secret import Secret
from sbctl.engines.model import EngineAddress
from sbctl.node.paths import node_paths
from sbctl.runtime.admission import Gate
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.drain import Drain
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.gateway.answers import Answer
from sbctl.runtime.gateway.asked import read_asked
from sbctl.runtime.gateway.ports import Outcome, Source
from sbctl.runtime.gateway.relay import StreamRelay, WholeRelay
from sbctl.runtime.gateway.server import GatewayLimits
from sbctl.runtime.generation import Lease
from sbctl.runtime.peer.candidates import Selection
from sbctl.runtime.peer.choice import Candidate
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.dispatch import ClusterRequest, Dispatcher
from sbctl.runtime.peer.envelope import Audience, Errand
from sbctl.runtime.peer.framing import CONTENT_TYPE, DISPATCH_PATH, frame
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.listener import PEER_LIMITS, PeerListener
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.peer.replay import ReplayFence
from sbctl.runtime.peer.worker import PeerWorker, other_generation
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificate_making import create_ca
from sbctl.trust.node_identity import NodeIdentityFiles
from sbctl.trust.peer_documents import NodeSigner, Peer, PeerMark, PeerVerifier, TrustedMaterial
from sbctl.trust.revocation import open_revocations, refuse_revoked
from tests.simulators.cluster_trust import ClusterAuthority, NodeKit
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member

PATIENCE_S = 30.0
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
"""What an engine does with one request: its connection and the request's body."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    document = {"model": "q", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}
    return chunk(f"data: {json.dumps(document)}\n\n".encode())


DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def whole_stream(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
    writer.write(STREAM + event("Hel") + event("lo") + DONE)


class Engine:
    """A server on a loopback port that does with each request what `play` says."""

    def __init__(self) -> None:
        self.play: Play = whole_stream
        self.bodies: list[bytes] = []
        self.gone = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.client = EngineClient(EngineAddress(port=self._server.sockets[0].getsockname()[1]))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                await self.play(reader, writer, self.bodies[-1])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        except asyncio.CancelledError:
            # The loop ends; asyncio's streams tell a cancelled one as an error.
            return
        finally:
            writer.close()

    async def stop(self) -> None:
        await self.client.close()
        self._server.close()


@dataclass
class ShiftedClock(SystemClock):
    """The machine's clock, so much off."""

    offset: timedelta = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.offset


class KitTrust:
    """As `cluster.held_trust.HeldTrust`, without files: what a node holds is handed to it."""

    def __init__(self, kit: NodeKit, clock: SystemClock) -> None:
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self.take(kit.files, kit.key)

    def take(self, files: NodeIdentityFiles, key: Secret, *, revocations: str | None = None) -> None:
        self.files = files if revocations is None else replace(files, revocations=revocations)
        self._key = key
        self.signer: NodeSigner | None = NodeSigner(self.files, key, now=self._clock.now())
        self.verifier = PeerVerifier(TrustedMaterial.of(self.signer.identity.claims.cluster_id, self.files))
        for listener in self._listeners:
            listener()

    def key(self) -> Secret:
        return self._key

    def check(self, peer: Peer, marks: Mapping[str, PeerMark]) -> None:
        if self.files.authority_key is not None and self.files.revocations is not None:
            listed = open_revocations(self.files.revocations, AuthorityKeys.parse(self.files.authority_key))
            refuse_revoked(listed, peer.claims)

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)


class Replica:
    is_ready = True

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    def progressed(self) -> None: ...


class Served:
    """A generation of the deployment `q` on one worker, with a gate and no life of engines behind it."""

    deployment = "q"

    def __init__(self, number: int, client: EngineClient) -> None:
        self.number = number
        self.member = member(facts(), "/engine", max_concurrency=4, max_queue_depth=4)
        self.replicas = (Replica(client),)
        self.gate = Gate(max_active=4, max_queued=4, queue_timeout_ms=10_000)
        self.gate.open()

    async def admit(self, priority: Any, *, avoid: Any = ()) -> Lease:
        return Lease(cast("Any", self.replicas[0]), await self.gate.acquire(priority))


class Marks:
    def __init__(self) -> None:
        self.held: dict[str, PeerMark] = {}

    def known(self) -> Mapping[str, PeerMark]:
        return self.held

    def note(self, node_id: str, mark: PeerMark) -> None:
        self.held[node_id] = mark


class Worker:
    """One worker process, as far as its peers see it."""

    def __init__(self, kit: NodeKit, folder: Path, *, boot_epoch: int = 1, **changes: Any) -> None:
        self.kit = kit
        self.boot_epoch = boot_epoch
        self.clock = ShiftedClock()
        self.engine = Engine()
        self.outcomes: list[Outcome] = []
        self.rejections: list[str] = []
        self.registry = CollectorRegistry()
        self.marks = changes.pop("marks", None) or Marks()
        self.fence = ReplayFence(changes.pop("fence_entries", 65_536))
        self.limits: GatewayLimits = replace(PEER_LIMITS, **changes)
        self.drain = Drain(node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)}))

    @property
    def node_id(self) -> str:
        return self.kit.claims.node_id

    async def start(self) -> Worker:
        await self.engine.start()
        self.served = Served(3, self.engine.client)
        self.trust = KitTrust(self.kit, self.clock)
        self.identity = PlaneIdentity(self.trust)
        self.app = PeerWorker(
            self.identity,
            self,  # type: ignore[arg-type]
            self.marks,
            here=Audience(self.node_id, self.boot_epoch),
            clock=self.clock,
            drain=self.drain,
            meter=self,
            metrics=PeerMetrics(self.registry),
            fence=self.fence,
        )
        self.listener = PeerListener(self.app, self.identity, self.marks.known, self.limits)
        sock = bind_tcp("127.0.0.1", 0)
        self.port = int(sock.getsockname()[1])
        await self.listener.listen(sock)
        return self

    async def stop(self) -> None:
        await self.listener.close()
        await self.engine.stop()

    def serving(self, deployment: str, generation: int) -> Any:
        if deployment != "q":
            raise RefusedError("deployment_not_assigned", "this deployment is not this node's")
        if generation != self.served.number:
            raise other_generation(self.served.number)
        return self.served

    def rejected(self, _deployment: str, _priority: str, reason: str) -> None:
        self.rejections.append(reason)

    def fell_back(self, deployment: str, provider: str, reason: str) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def refusals(self, code: str) -> float:
        """How often a dispatch was refused with this code, as the metrics say."""
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name == "sbproxy_model_plane_rejections_total" and sample.labels["code"] == code:
                    return sample.value
        return 0.0

    def candidate(self, **changes: Any) -> Candidate:
        shown = self.identity.signer.identity
        known = Candidate(
            node_id=self.node_id,
            generation=3,
            state="ready",
            address=f"127.0.0.1:{self.port}",
            certificate_sha256=shown.certificate.fingerprint,
            boot_epoch=self.boot_epoch,
            peer=Peer(shown.claims, shown.certificate.fingerprint, shown.until),
        )
        return replace(known, **changes)


class Caller:
    """Somebody who asked the gateway, and what came back."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.is_over = False
        self.broke = False
        self.source: Source | None = None

    def answer(self, answer: Answer) -> None:
        self.status, self.body, self.is_over = answer.status, answer.body, True

    def begin(self, status: int, lines: bytes) -> None:
        self.status = status

    def write(self, data: bytes) -> None:
        self.body += data

    def finish(self, *, broken: bool = False, told: bool = True) -> None:
        self.is_over, self.broke = True, broken

    def feed_from(self, source: Source | None) -> None:
        self.source = source


@dataclass
class FixedDirectory:
    """What a gateway knows of the cluster, by order."""

    candidates: list[Candidate] = field(default_factory=list)
    region: str = ""

    def selection(self, _deployment: str) -> Selection:
        return Selection(tuple(self.candidates), {})


class GatewayNode:
    """A gateway's side of the plane, without its public one."""

    def __init__(self, kit: NodeKit) -> None:
        self.kit = kit
        self.clock = ShiftedClock()
        self.trust = KitTrust(kit, self.clock)
        self.identity = PlaneIdentity(self.trust)
        self.registry = CollectorRegistry()
        self.directory = FixedDirectory()
        self.client = PeerClient(self.identity, boot_epoch=1, clock=self.clock)
        self.dispatcher = Dispatcher(self.directory, self.client, PeerMetrics(self.registry))
        self.caller = Caller()
        """Of the newest request."""

    def errand(self, generation: int = 3, **changes: Any) -> Errand:
        body = changes.pop("body", None)
        if body is None:
            asked = read_asked(json.dumps({**CHAT, "stream": True}).encode(), "chat")
            body = asked.for_engine(model="q", context_length=512)
        known = Errand(
            deployment="q",
            generation=generation,
            logical_model="public",
            path="/v1/chat/completions",
            content_type="application/json",
            body=body,
            request_id=secrets.token_hex(8),
            priority="standard",
            policy_revision="7",
        )
        return replace(known, **changes)

    def request(self, caller: Caller, *, stream: bool = True, **changes: Any) -> ClusterRequest:
        def relay(_route: str) -> Any:
            if stream:
                return StreamRelay(caller, b"", _nothing, request_id="r", model="public", keeps_usage=True)
            return WholeRelay(caller, b"", _nothing, request_id="r", model="public")

        known = ClusterRequest(
            deployment="q",
            cold_start="wait",
            prefix=b"",
            deadline_s=asyncio.get_running_loop().time() + PATIENCE_S,
            client=caller,
            errand=self.errand,
            relay=relay,
            here=_nobody_here,
        )
        return replace(known, **changes)

    async def ask(self, *workers: Worker | Candidate, **changes: Any) -> Caller:
        """One request to these; raises what the caller would be told."""
        self.directory.candidates = [each.candidate() if isinstance(each, Worker) else each for each in workers]
        caller = self.caller = Caller()
        async with asyncio.timeout(PATIENCE_S):
            await self.dispatcher.ask(self.request(caller, **changes))
        return caller

    def envelope(self, worker: Worker, **changes: Any) -> tuple[bytes, bytes]:
        """An envelope as this gateway signs it, and its body; `changes` are of the signed document."""
        from sbctl.runtime.peer.envelope import sign_dispatch
        from sbctl.trust.peer_kinds import DISPATCH

        errand = self.errand()
        now_ms = int(self.clock.now().timestamp() * 1000)
        audience = Audience(worker.node_id, worker.boot_epoch)
        text = sign_dispatch(
            errand, sha256_bytes(errand.body), audience, self.identity.signer, boot_epoch=1, now_unix_ms=now_ms
        )
        if changes:
            document = worker.identity.verifier.open(text, DISPATCH, now=self.clock.now(), marks={}).document
            text = self.identity.signer.sign(DISPATCH, document.model_copy(update=changes))
        return text.encode(), errand.body

    @contextlib.asynccontextmanager
    async def connected(
        self, worker: Worker, context: Any = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection whose every byte is ours."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", worker.port, ssl=context or self.identity.client_context, server_hostname="", limit=1 << 24
            )
            try:
                yield reader, writer
            finally:
                writer.close()

    async def send(self, worker: Worker, envelope: bytes, body: bytes, *rows: str) -> tuple[int, str]:
        """One dispatch over a connection of its own: status and code."""
        async with self.connected(worker) as (reader, writer):
            writer.write(dispatch_bytes(envelope, body, *rows))
            return await read_refusal(reader)


def dispatch_bytes(envelope: bytes, body: bytes, *rows: str) -> bytes:
    return raw_dispatch(frame(envelope, body), *rows)


def raw_dispatch(data: bytes, *rows: str) -> bytes:
    head = [
        f"POST {DISPATCH_PATH} HTTP/1.1",
        "Host: worker",
        f"Content-Type: {CONTENT_TYPE}",
        f"Content-Length: {len(data)}",
        *rows,
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + data


async def read_refusal(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and `x-sbproxy-error-code` of one answer, whose body is read; of an answer of 200 only the head."""
    head = await reader.readuntil(b"\r\n\r\n")
    rows = dict(row.split(": ", 1) for row in head.decode("latin-1").split("\r\n")[1:] if ": " in row)
    status = int(head.split(b" ")[1])
    if status != 200:
        await reader.readexactly(int(rows["Content-Length"]))
    return status, rows.get("x-sbproxy-error-code", "")


async def _nobody_here() -> Any:
    raise AssertionError("nothing is served on this node")


def _nothing() -> None:
    """No engine's progress is watched here."""


class PeerWorld:
    """One cluster. Workers and gateways that it makes end with it."""

    def __init__(self, folder: Path, *, own_pki: bool = False) -> None:
        self.folder = folder
        self.now = SYSTEM_CLOCK.now()
        self.authority = ClusterAuthority(own_pki=own_pki)
        self.authority.ca = create_ca("prod", now=self.now - timedelta(days=1))
        self.workers: list[Worker] = []
        self.gateways: list[GatewayNode] = []

    def kit(self, node_id: str, *roles: Any, **more: Any) -> NodeKit:
        return self.authority.node(node_id, *roles, **{"now": self.now, **more})

    async def worker(self, node_id: str = "w-a", **changes: Any) -> Worker:
        kit = changes.pop("kit", None) or self.kit(node_id, "worker")
        worker = await Worker(kit, self.folder, **changes).start()
        self.workers.append(worker)
        return worker

    def gateway(self, node_id: str = "gw-a", *roles: Any, kit: NodeKit | None = None) -> GatewayNode:
        gateway = GatewayNode(kit or self.kit(node_id, *(roles or ("gateway",))))
        self.gateways.append(gateway)
        return gateway

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for gateway in self.gateways:
            gateway.client.close()
        for worker in self.workers:
            await worker.stop()
