"""What a node of the cluster, or somebody without a certificate of it, may try at a real store: everything but its own name stays as it was."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.cluster.nats_store import NatsStore, StoreServer, StoreTiming
from sbctl.runtime.cluster.store import BUNDLE_KEY, CONTROLLER_KEY, PLAN_KEY, Bucket, node_key
from sbctl.runtime.cluster.subjects import api_subject, inbox_prefix, write_subject
from sbctl.runtime.nodeops.store_config import Places, render_config
from tests.simulators.nats_cluster import NatsCluster, ServerIdentities
from tests.simulators.store_contract import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

VICTIMS = (
    (Bucket.DESIRED, BUNDLE_KEY),
    (Bucket.ASSIGNMENTS, PLAN_KEY),
    (Bucket.LEASES, CONTROLLER_KEY),
    (Bucket.NODES, node_key("w2")),
    (Bucket.NODES, node_key("a")),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("attacked"), ("a", "b", "c"), ("w1", "w2"))
    try:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(_fill(cluster))
        yield cluster
    finally:
        cluster.stop()


def _store(cluster: NatsCluster, node_id: str) -> NatsStore:
    return NatsStore(
        lambda: cluster.servers,
        lambda: cluster.identities.context(node_id),
        node_id=node_id,
        clock=SYSTEM_CLOCK,
        timing=StoreTiming(first_pause_s=0.1, longest_pause_s=1.0),
    )


@asynccontextmanager
async def _opened(cluster: NatsCluster, node_id: str) -> AsyncIterator[NatsStore]:
    store = _store(cluster, node_id)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def _fill(cluster: NatsCluster) -> None:
    async with _opened(cluster, "a") as a, _opened(cluster, "w1") as w1, _opened(cluster, "w2") as w2:

        async def ready() -> bool:
            await a.prepare(replicas=3)
            return True

        await eventually(ready)
        for bucket, key in VICTIMS:
            await (w2 if key == node_key("w2") else a).put(bucket, key, b"good")
        await w1.put(Bucket.NODES, node_key("w1"), b"evil")


async def _unharmed(cluster: NatsCluster) -> None:
    async with _opened(cluster, "b") as reader:
        for bucket, key in VICTIMS:
            entry = await eventually(lambda bucket=bucket, key=key: reader.get(bucket, key))
            assert (entry.value, bucket, key) == (b"good", bucket, key)


async def _raw(cluster: NatsCluster, server: int, node_id: str = "w1") -> Client:
    """The worker's own connection, spoken to without our client."""
    client = Client()
    at = cluster.servers[server]

    async def silent(_error: Exception) -> None: ...

    await client.connect(
        at.url,
        tls=cluster.identities.context(node_id),
        tls_hostname=at.node_id,
        tls_handshake_first=True,
        allow_reconnect=False,
        inbox_prefix=inbox_prefix(node_id),
        error_cb=silent,
    )
    return client


@pytest.mark.parametrize("server", [0, 1, 2])
async def test_answers_cannot_be_sent_to_the_key_of_somebody_else(cluster: NatsCluster, server: int) -> None:
    """An acknowledgement or a reading goes to the subject that its asker names; it must not be stored there."""
    client = await _raw(cluster, server)
    own = write_subject(Bucket.NODES, node_key("w1"))
    last = json.dumps({"last_by_subj": own}).encode()
    page = json.dumps({"seq": 1, "batch": 10, "next_by_subj": own}).encode()
    for bucket, key in VICTIMS:
        victim = write_subject(bucket, key)
        await client.publish(own, b"evil", reply=victim)
        await client.publish(api_subject("read", Bucket.NODES), last, reply=victim)
        await client.publish(api_subject("list", Bucket.NODES), page, reply=victim)
        await client.publish(api_subject("list", Bucket.NODES), last, reply=victim)
        await client.publish(api_subject("info", bucket), b"", reply=victim)
    await client.flush()
    await asyncio.sleep(0.5)
    await client.close()
    await _unharmed(cluster)


async def test_headers_cannot_take_the_others_away(cluster: NatsCluster) -> None:
    client = await _raw(cluster, 0)
    own = write_subject(Bucket.NODES, node_key("w1"))
    for header in (
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-Schedule": "@at 2026-01-01T00:00:00Z", "Nats-Schedule-Target": write_subject(*VICTIMS[0])},
        {"Nats-Incr": "1"},
        {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ):
        try:
            answer = json.loads((await client.request(own, b"evil", headers=header, timeout=2)).data)
        except NatsError:
            continue
        assert "error" in answer or "Nats-Rollup" not in header, answer
    await client.close()
    await _unharmed(cluster)


async def test_no_other_question_is_answered(cluster: NatsCluster) -> None:
    """Nothing of the server's own interface but the three questions, and nothing of another node's answers."""
    client = await _raw(cluster, 0)
    name = "KV_sbctl_nodes"
    for subject in (
        f"$JS.API.STREAM.DELETE.{name}",
        f"$JS.API.STREAM.PURGE.{name}",
        f"$JS.API.CONSUMER.CREATE.{name}",
        f"$JS.API.STREAM.MSG.DELETE.{name}",
        "$JS.API.STREAM.CREATE.mine",
        "$JS.API.INFO",
        "$SYS.REQ.SERVER.PING",
        api_subject("create", Bucket.NODES),
        api_subject("update", Bucket.NODES),
        "sbctl.changed.sbctl_desired.bundle",
    ):
        with pytest.raises(NatsError):
            await client.request(subject, b"{}", timeout=0.3)
    heard = []

    async def hear(message: object) -> None:
        heard.append(message)

    for subject in (">", "_INBOX.>", f"{inbox_prefix('a')}.>", f"{inbox_prefix('w2')}.>", "$KV.>"):
        await client.subscribe(subject, cb=hear)
    async with _opened(cluster, "a") as a:
        assert await a.get(Bucket.DESIRED, BUNDLE_KEY) is not None
    await client.close()
    assert heard == []
    await _unharmed(cluster)


async def test_a_certificate_of_another_cluster_or_none_gets_no_further_than_the_handshake(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    others = ServerIdentities(tmp_path)
    others.give("w1")
    foreign = others.context("w1")
    foreign.load_verify_locations(cluster.identities.directory / "w1" / "ca.pem")
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.load_verify_locations(cluster.identities.directory / "w1" / "ca.pem")
    for context in (foreign, nobody):
        store = NatsStore(lambda: cluster.servers, lambda context=context: context, node_id="w1", clock=SYSTEM_CLOCK, timing=StoreTiming(patience_s=2.0))  # fmt: skip
        await store.start()
        with pytest.raises(SbctlError) as refused:
            await store.get(Bucket.DESIRED, BUNDLE_KEY)
        assert refused.value.code == "store.unreachable"
        await store.close()


async def test_a_server_that_is_not_the_one_that_was_meant_is_not_spoken_to(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    """Somebody in between with a worker's certificate, or without TLS at all."""
    worker = cluster.identities.directory / "w2"
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(worker / "node.pem", worker / "node-key.pem")
    spoken = bytearray()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n')
        spoken.extend(await reader.read(65536))
        writer.close()

    for tls in (server_tls, None):
        spoken.clear()
        fake = await asyncio.start_server(pretend, "127.0.0.1", 0, ssl=tls)
        port = fake.sockets[0].getsockname()[1]
        real = cluster.servers[0]
        lying = [type(real)(real.node_id, "127.0.0.1", port)]
        store = NatsStore(lambda lying=lying: lying, lambda: cluster.identities.context("w1"), node_id="w1", clock=SYSTEM_CLOCK, timing=StoreTiming(patience_s=1.0))  # fmt: skip
        await store.start()
        with pytest.raises(SbctlError):
            await store.get(Bucket.DESIRED, BUNDLE_KEY)
        await store.close()
        fake.close()
        assert b"CONNECT" not in spoken


def test_a_route_is_taken_from_members_only(tmp_path: Path) -> None:
    """A worker has a certificate of the same CA; with it, it is no member of the store."""
    cluster = NatsCluster(tmp_path, ("a", "b", "c"), ("w1",))
    cluster.identities.server_name = "mesh"
    for node in cluster.nodes:
        cluster.identities.give(node.node_id, "authority" if node.is_authority else "worker")
    request = cluster.request("a").model_copy(update={"server_name": "mesh"})
    home = tmp_path / "servers" / "a"
    home.mkdir(parents=True)
    places = Places(cluster.identities.directory / "a", home / "data", home / "nats.pid", by_name=True)
    cluster.write_config = lambda _name: home / "nats.conf"  # type: ignore[method-assign]
    (home / "nats.conf").write_bytes(render_config(request, places))
    try:
        cluster.start("a")
        port = request.members[0].port
        assert "cluster name" in _route(cluster, port, "b"), "a member is judged by what it says next"
        assert "Authorization Violation" in _route(cluster, port, "w1")
    finally:
        cluster.stop()


def _connected(port: int) -> socket.socket:
    """Once the server listens there."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _route(cluster: NatsCluster, port: int, node_id: str) -> str:
    """What the server says to somebody who connects as if he were a member."""
    context = cluster.identities.context(node_id)
    with _connected(port) as plain, context.wrap_socket(plain, server_hostname="a") as secure:
        secure.settimeout(10)
        secure.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"tls_required":true,"name":"ROGUE","cluster":""}\r\n'
        )
        said = b""
        with suppress(TimeoutError, OSError):
            while more := secure.recv(65536):
                said += more
        return said.decode(errors="replace").rpartition("-ERR ")[2].strip()


async def test_a_server_that_announces_what_no_message_has_is_left_at_once(tmp_path: Path) -> None:
    """An authority out of hand: who asks it spends no memory on it, and goes to another one."""
    identities = ServerIdentities(tmp_path)
    for name in ("evil", "w1"):
        identities.give(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "evil" / "node.pem", tmp_path / "evil" / "node-key.pem")
    visits: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        with suppress(OSError):
            writer.write(b'INFO {"version": "2.15.1", "max_payload": 8388608, "headers": true}\r\n')
            while b"PING" not in await reader.readline():
                pass
            writer.write(b"PONG\r\nHMSG x 1 20 99999999999\r\n")
            while not writer.is_closing():
                writer.write(bytes(MIB))
                await writer.drain()
                sent += MIB
        visits.append(sent)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    store = NatsStore(
        lambda: [StoreServer("evil", "127.0.0.1", port)],
        lambda: identities.context("w1"),
        node_id="w1",
        clock=SYSTEM_CLOCK,
        timing=StoreTiming(first_pause_s=0.05, longest_pause_s=0.1),
    )
    await store.start()
    try:
        async with asyncio.timeout(60):
            while len(visits) < 2:
                await asyncio.sleep(0.05)
    finally:
        await store.close()
        server.close()
    assert max(visits[:2]) < 64 * MIB
