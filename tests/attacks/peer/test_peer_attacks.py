"""Abuse of the peer plane (docs/threats.md, sections G and D) over real TLS, with certificates of a real authority."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import random
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from sbctl.base.errors import SbctlError
from sbctl.base.secret import Secret
from sbctl.node.cluster_documents import DispatchEnvelope
from sbctl.runtime.peer.framing import ENVELOPE_MAX_BYTES
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.trust.certificate_making import create_ca
from sbctl.trust.peer_kinds import DISPATCH
from tests.simulators.cluster_trust import ClusterAuthority
from tests.simulators.peer_world import (
    STREAM,
    Caller,
    KitTrust,
    PeerWorld,
    dispatch_bytes,
    event,
    raw_dispatch,
    read_refusal,
)


def payload_of(envelope: bytes) -> dict[str, Any]:
    inner = json.loads(json.loads(envelope)["envelope"])
    return dict(json.loads(base64.b64decode(inner["payload"])))


def with_payload(envelope: bytes, payload: bytes) -> bytes:
    """The same proof and signature over other words."""
    outer = json.loads(envelope)
    inner = {**json.loads(outer["envelope"]), "payload": base64.b64encode(payload).decode()}
    return json.dumps({**outer, "envelope": json.dumps(inner)}).encode()


def altered(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if value is None:
        return "x"
    return value[:-1] + ("0" if value[-1] != "0" else "1")


async def test_a_dispatch_is_answered_as_the_engine_answers(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    streamed = await gateway.ask(worker)
    assert (streamed.status, streamed.broke) == (200, False)
    assert streamed.body.count(b'"model":"public"') == 2
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    whole = await gateway.ask(worker, stream=False)
    assert json.loads(whole.body)["choices"][0]["message"]["content"] == "Hello"
    assert [outcome.status for outcome in worker.outcomes] == [200, 200]
    assert json.loads(worker.engine.bodies[0])["model"] == "q"
    assert worker.served.gate.active == 0


async def test_G12_every_field_of_an_envelope_is_signed(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    words = payload_of(envelope)
    assert set(words) == set(DispatchEnvelope.model_fields)
    forged = [{**words, name: altered(words[name])} for name in words]
    forged += [{key: value for key, value in words.items() if key != name} for name in words]
    forged += [dict(reversed(words.items())), {**words, "extra": 1}]
    for document in forged:
        answer = await gateway.send(worker, with_payload(envelope, json.dumps(document).encode()), body)
        assert answer == (401, "peer_authentication_failed"), document
    assert worker.refusals("peer_authentication_failed") == len(forged)
    assert worker.engine.bodies == []
    assert await gateway.send(worker, envelope, body) == (200, "")


@pytest.mark.parametrize(
    "change",
    [
        lambda words: {**words, "extra": 1},
        lambda words: {key: value for key, value in words.items() if key != "nonce"},
        lambda words: {**words, "nonce": "short"},
        lambda words: {**words, "priority": "first"},
        lambda words: {**words, "method": "DELETE"},
        lambda words: {**words, "schema_version": 2},
        lambda words: {**words, "deployment_generation": "3"},
    ],
)
async def test_G12_an_envelope_of_another_form_is_refused_whoever_signed_it(cluster: PeerWorld, change: Any) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)

    class Raw:
        signer, identity_epoch = "gw-a", 1

        def model_dump_json(self, **_: object) -> str:
            return json.dumps(change(payload_of(envelope)))

    signed = gateway.identity.signer.sign(DISPATCH, Raw())  # type: ignore[type-var]
    assert await gateway.send(worker, signed.encode(), body) == (401, "invalid_envelope")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda text: b"", "invalid_envelope"),
        (lambda text: b"{}", "invalid_envelope"),
        (lambda text: text[:-1], "invalid_envelope"),
        (lambda text: b"\xff" + text, "invalid_envelope"),
        (lambda text: b"[" * 1000, "invalid_envelope"),
        (lambda text: text + b" " * ENVELOPE_MAX_BYTES, "envelope_too_large"),
        (lambda text: text.replace(b'"proof":', b'"prof":'), "invalid_envelope"),
        (lambda text: text.replace(b"BEGIN CERTIFICATE", b"BEGIN CERTIFICAT3"), "peer_authentication_failed"),
        (lambda text: text.replace(b"dispatch.v1", b"snapshot.v1"), "invalid_envelope"),
    ],
)
async def test_G12_what_is_no_envelope_is_refused(
    cluster: PeerWorld, spoil: Callable[[bytes], bytes], code: str
) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    assert await gateway.send(worker, spoil(envelope), body) == (401, code)
    assert worker.refusals(code) == 1


async def test_G13_a_dispatch_counts_once_on_any_connection(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    async with gateway.connected(worker) as (reader, writer):
        writer.write(dispatch_bytes(envelope, body))
        assert await read_refusal(reader) == (200, "")
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(dispatch_bytes(envelope, body))
        assert await read_refusal(reader) == (409, "replay_detected")
    assert await gateway.send(worker, envelope, body) == (409, "replay_detected")
    assert len(worker.engine.bodies) == 1


async def test_G13_a_dispatch_means_nothing_to_the_next_process_or_to_another_worker(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    other = await cluster.worker("w-b")
    envelope, body = gateway.envelope(worker)
    again = await cluster.worker(kit=worker.kit, boot_epoch=2)
    assert await gateway.send(again, envelope, body) == (409, "stale_boot_epoch")
    assert await gateway.send(other, envelope, body) == (401, "audience_mismatch")
    assert worker.engine.bodies + again.engine.bodies + other.engine.bodies == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"audience_node_id": "w-z"}, (401, "audience_mismatch")),
        ({"audience_boot_epoch": 7}, (409, "stale_boot_epoch")),
        ({"hop_count": 0}, (401, "hop_limit_exceeded")),
        ({"hop_count": 2}, (401, "hop_limit_exceeded")),
        ({"path": "/v1/models"}, (401, "invalid_envelope")),
        ({"path": "/v1/chat/completions/../x"}, (401, "invalid_envelope")),
        ({"path": "/slots"}, (401, "invalid_envelope")),
        ({"body_sha256": "0" * 64}, (401, "request_digest_mismatch")),
        ({"issuer_certificate_sha256": "0" * 64}, (401, "peer_authentication_failed")),
        ({"deployment": "other"}, (409, "deployment_not_assigned")),
        ({"deployment_generation": 2}, (409, "stale_deployment_generation")),
        ({"deployment_generation": 4}, (409, "stale_deployment_generation")),
        ({"path": "/v1/embeddings"}, (400, "invalid_request")),
        ({"path": "/v1/audio/speech"}, (400, "invalid_request")),
    ],
)
async def test_G14_what_a_signed_dispatch_may_not_say(
    cluster: PeerWorld, changes: dict[str, Any], expected: tuple[int, str]
) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker, **changes)
    assert await gateway.send(worker, envelope, body) == expected
    assert worker.engine.bodies == []


@pytest.mark.parametrize(
    ("issued_s", "lives_s", "code"),
    [
        (0, 0, "invalid_dispatch_lifetime"),
        (0, -5, "invalid_dispatch_lifetime"),
        (0, 31, "invalid_dispatch_lifetime"),
        (8, 10, "dispatch_not_yet_valid"),
        (600, 10, "dispatch_not_yet_valid"),
        (-11, 10, "dispatch_expired"),
        (-600, 10, "dispatch_expired"),
        (2, 10, ""),
        (-5, 10, ""),
        (-25, 30, ""),
    ],
)
async def test_G14_lifetimes_and_clocks(cluster: PeerWorld, issued_s: int, lives_s: int, code: str) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    issued_ms = int(gateway.clock.now().timestamp() * 1000) + issued_s * 1000
    times = {"issued_at_unix_ms": issued_ms, "expires_at_unix_ms": issued_ms + lives_s * 1000}
    envelope, body = gateway.envelope(worker, **times)
    assert await gateway.send(worker, envelope, body) == ((401, code) if code else (200, ""))


async def test_G14_another_body_is_refused(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    for other in (b"", body + b" ", body.replace(b"Hi", b"Ho")):
        assert await gateway.send(worker, envelope, other) == (401, "request_digest_mismatch")
    assert await gateway.send(worker, envelope, body) == (200, ""), "what is refused uses up no nonce"


async def test_G15_only_a_gateway_dispatches(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    for roles in (("worker",), ("authority",), ("worker", "authority")):
        peer = cluster.gateway(f"n-{len(roles)}-{roles[0]}", *roles)
        envelope, body = peer.envelope(worker)
        assert await peer.send(worker, envelope, body) == (401, "peer_authentication_failed")
    assert worker.engine.bodies == []


async def test_G15_an_envelope_goes_with_its_own_certificate_alone(cluster: PeerWorld) -> None:
    worker, gateway, thief = await cluster.worker(), cluster.gateway("gw-a"), cluster.gateway("gw-b")
    envelope, body = gateway.envelope(worker)
    assert await thief.send(worker, envelope, body) == (401, "peer_authentication_failed")
    own, _ = thief.envelope(worker)
    swapped = json.dumps({**json.loads(own), "proof": json.loads(envelope)["proof"]}).encode()
    assert await thief.send(worker, swapped, body) == (401, "peer_authentication_failed")
    assert await gateway.send(worker, envelope, body) == (200, "")


@pytest.mark.parametrize(
    "row", ["Authorization: Bearer sk-1", "x-api-key: sk-1", "X-API-KEY: ", "Cookie: a=b", "Proxy-Authorization: x"]
)
async def test_G15_credentials_of_callers_have_no_place_here(cluster: PeerWorld, row: str) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    assert await gateway.send(worker, envelope, body, row) == (401, "peer_authentication_failed")
    assert worker.engine.bodies == []


async def test_G15_a_node_of_another_cluster_with_the_same_name_is_nobody(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    foreign = ClusterAuthority("other")
    foreign.ca, foreign.key = cluster.authority.ca, cluster.authority.key
    gateway = cluster.gateway(kit=foreign.node("gw-a", "gateway", now=cluster.now))
    errand = gateway.errand()
    with pytest.raises(SbctlError) as caught:
        await gateway.client.ask(worker.candidate(), errand, Caller(), lambda: gateway.request(Caller()).relay("peer"))
    assert caught.value.code == "peer_authentication_failed"


def client_tls(cluster: PeerWorld, **how: Any) -> ssl.SSLContext:
    """A client's context that differs from a gateway's in one point."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.load_verify_locations(cadata=cluster.authority.ca.certificate)
    context.maximum_version = how.get("maximum", ssl.TLSVersion.MAXIMUM_SUPPORTED)
    if how.get("alpn", "http/1.1"):
        context.set_alpn_protocols([how.get("alpn", "http/1.1")])
    chain = how.get("chain")
    if chain is not None:
        path = cluster.folder / "client.pem"
        path.write_bytes(chain[0].encode() + chain[1].reveal())
        context.load_cert_chain(path)
    return context


def der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82, size >> 8, size & 255])
    return bytes([tag]) + length + content


def sha1_leaf(cluster: PeerWorld) -> tuple[str, Secret]:
    """A gateway's certificate as it should be, but for its signature's digest. No library signs so any more."""
    kit = cluster.kit("gw-a", "gateway")
    words = x509.load_pem_x509_certificate(kit.files.certificate.encode()).tbs_certificate_bytes
    sha256, sha1 = bytes.fromhex("300a06082a8648ce3d040302"), bytes.fromhex("300906072a8648ce3d0401")
    assert words[1] == 0x82
    assert sha256 in words
    words = der(0x30, words[4:].replace(sha256, sha1, 1))
    ca_key = serialization.load_pem_private_key(cluster.authority.ca.key.reveal(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    signature = ca_key.sign(hashlib.sha1(words).digest(), ec.ECDSA(utils.Prehashed(hashes.SHA1())))
    return ssl.DER_cert_to_PEM_cert(der(0x30, words, sha1, der(0x03, b"\0", signature))), kit.key


def of_another_ca(cluster: PeerWorld) -> tuple[str, Secret]:
    foreign = ClusterAuthority()
    foreign.ca = create_ca("prod", now=cluster.now - timedelta(days=1))
    kit = foreign.node("gw-a", "gateway", now=cluster.now)
    return kit.files.certificate, kit.key


def expired(cluster: PeerWorld) -> tuple[str, Secret]:
    kit = cluster.kit("gw-a", "gateway", now=cluster.now - timedelta(hours=20), validity=timedelta(hours=1))
    return kit.files.certificate, kit.key


def of_now(cluster: PeerWorld) -> tuple[str, Secret]:
    kit = cluster.kit("gw-a", "gateway")
    return kit.files.certificate, kit.key


@pytest.mark.parametrize(
    ("chain", "how"),
    [
        pytest.param(of_now, {"maximum": ssl.TLSVersion.TLSv1_2}, id="TLS 1.2"),
        pytest.param(None, {}, id="no certificate"),
        pytest.param(of_another_ca, {}, id="another CA"),
        pytest.param(expired, {}, id="expired"),
        pytest.param(sha1_leaf, {}, id="SHA-1"),
        pytest.param(of_now, {"alpn": "h2"}, id="h2 by ALPN"),
        pytest.param(of_now, {"alpn": ""}, id="no ALPN"),
    ],
)
async def test_G16_who_is_not_let_in_by_tls(cluster: PeerWorld, chain: Any, how: dict[str, Any]) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    context = client_tls(cluster, chain=None if chain is None else chain(cluster), **how)
    answered = b""
    with contextlib.suppress(OSError):
        async with gateway.connected(worker, context) as (reader, writer):
            writer.write(dispatch_bytes(envelope, body))
            answered = await reader.read(100)
    assert answered == b""
    assert worker.engine.bodies == []
    assert await gateway.send(worker, envelope, body) == (200, ""), "others are served"


async def test_G16_a_gateway_sends_nothing_to_who_is_no_node_of_its_cluster(cluster: PeerWorld) -> None:
    foreign = PeerWorld(cluster.folder)
    impostor, gateway = await foreign.worker("w-a"), cluster.gateway()
    with pytest.raises(SbctlError) as caught:
        await gateway.ask(impostor)
    assert caught.value.code == "transport_failed"
    assert impostor.engine.bodies == []
    await foreign.close()


def test_G16_no_renegotiation_no_tickets_no_early_data(cluster: PeerWorld) -> None:
    """0-RTT needs a ticket, and none is given."""
    context = cluster.gateway().identity.server_context
    assert context.num_tickets == 0
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode is ssl.CERT_REQUIRED


async def test_G17_a_full_fence_refuses_what_is_new_and_forgets_nothing(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(fence_entries=4), cluster.gateway()
    shown = [gateway.envelope(worker) for _ in range(5)]
    for envelope, body in shown[:3]:
        assert await gateway.send(worker, envelope, body) == (200, "")
    assert await gateway.send(worker, *shown[3]) == (401, "replay_fence_full")
    assert len(worker.fence) == 3
    for envelope, body in shown[:3]:
        assert await gateway.send(worker, envelope, body) == (409, "replay_detected")
    other = cluster.gateway("gw-b")
    assert await other.send(worker, *other.envelope(worker)) == (200, ""), "one gateway does not shut out another"
    assert await other.send(worker, *other.envelope(worker)) == (401, "replay_fence_full")


async def test_G17_what_is_not_authentic_fills_nothing(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(fence_entries=2), cluster.gateway()
    envelope, body = gateway.envelope(worker)
    for number in range(8):
        words = {**payload_of(envelope), "nonce": f"{number:032x}"}
        await gateway.send(worker, with_payload(envelope, json.dumps(words).encode()), body)
    assert len(worker.fence) == 0


async def held_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _body: bytes) -> None:
    """One event, then nothing until whoever asked is gone."""
    writer.write(STREAM + event("a"))
    await writer.drain()
    await reader.read()
    raise ConnectionError


async def test_G19_a_caller_that_leaves_ends_the_request_at_the_engine_of_the_peer(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    worker.engine.play = held_stream
    gateway.directory.candidates = [worker.candidate()]
    caller = Caller()
    asking = asyncio.create_task(gateway.dispatcher.ask(gateway.request(caller)))
    await cluster.until(lambda: caller.body != b"")
    assert worker.served.gate.active == 1
    asking.cancel()
    await cluster.until(lambda: worker.served.gate.active == 0 and worker.engine.gone == 1)
    assert [outcome.status for outcome in worker.outcomes] == [499]
    assert not caller.is_over


async def test_G19_a_caller_that_leaves_the_queue_of_the_peer_frees_its_place(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    held = [await worker.served.gate.acquire("standard") for _ in range(4)]
    gateway.directory.candidates = [worker.candidate()]
    asking = asyncio.create_task(gateway.dispatcher.ask(gateway.request(Caller())))
    await cluster.until(lambda: worker.served.gate.queued == 1)
    asking.cancel()
    await cluster.until(lambda: worker.served.gate.queued == 0)
    for permit in held:
        permit.release()
    assert worker.engine.bodies == []


async def test_G19_a_caller_that_does_not_read_makes_the_engine_of_the_peer_wait(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    written = 0

    async def play(_reader: Any, writer: asyncio.StreamWriter, _body: bytes) -> None:
        nonlocal written
        writer.write(STREAM)
        while True:
            writer.write(event("x" * 60_000))
            await writer.drain()
            written += 60_000

    worker.engine.play = play
    gateway.directory.candidates = [worker.candidate()]
    caller = Caller()
    asking = asyncio.create_task(gateway.dispatcher.ask(gateway.request(caller)))
    await cluster.until(lambda: caller.source is not None and len(caller.body) > 100_000)
    assert caller.source is not None
    caller.source.pause()
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.3)
    assert written - len(caller.body) < 32 * 1024 * 1024
    caller.source.resume()
    await cluster.until(lambda: written > before)
    asking.cancel()


async def test_D17_a_revoked_peer_is_told_so_once_and_its_connection_ends(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    async with gateway.connected(worker) as (reader, writer):
        writer.write(dispatch_bytes(*gateway.envelope(worker)))
        assert await read_refusal(reader) == (200, "")
        await reader.readuntil(b"0\r\n\r\n")
        following = gateway.envelope(worker)
        cluster.authority.revoke(gateway.kit)
        worker.trust.take(worker.kit.files, worker.kit.key, revocations=cluster.authority.revocations_text)
        writer.write(dispatch_bytes(*following))
        assert await read_refusal(reader) == (403, "peer_revoked")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert await gateway.send(worker, *gateway.envelope(worker)) == (403, "peer_revoked")
    assert len(worker.engine.bodies) == 1


async def test_D17_what_runs_for_a_revoked_peer_is_cut_and_what_is_idle_closed(cluster: PeerWorld) -> None:
    worker, gateway, other = await cluster.worker(), cluster.gateway("gw-a"), cluster.gateway("gw-b")
    worker.engine.play = held_stream
    async with gateway.connected(worker) as (reader, writer), other.connected(worker) as (reading, writing):
        writer.write(dispatch_bytes(*gateway.envelope(worker)))
        writing.write(dispatch_bytes(*other.envelope(worker)))
        assert await read_refusal(reader) == await read_refusal(reading) == (200, "")
        async with gateway.connected(worker) as (silent, _):
            await cluster.until(lambda: len(worker.listener._connections) == 3)
            cluster.authority.revoke(gateway.kit)
            worker.trust.take(worker.kit.files, worker.kit.key, revocations=cluster.authority.revocations_text)
            with contextlib.suppress(ConnectionError):
                await silent.read()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await cluster.until(lambda: worker.served.gate.active == 1 and worker.engine.gone == 1)
        writing.close()


async def test_D17_the_answer_of_a_worker_that_is_revoked_ends_at_once(cluster: PeerWorld) -> None:
    worker, other, gateway = await cluster.worker("w-a"), await cluster.worker("w-b"), cluster.gateway()
    worker.engine.play = other.engine.play = held_stream
    callers = [Caller(), Caller()]
    asking = []
    for each, caller in zip((worker, other), callers, strict=True):
        gateway.directory.candidates = [each.candidate()]
        asking.append(asyncio.create_task(gateway.dispatcher.ask(gateway.request(caller))))
        await cluster.until(lambda caller=caller: caller.body != b"")
    cluster.authority.revoke(worker.kit)
    gateway.trust.take(gateway.kit.files, gateway.kit.key, revocations=cluster.authority.revocations_text)
    await cluster.until(lambda: callers[0].is_over)
    assert (callers[0].broke, b"[DONE]" in callers[0].body) == (True, False)
    assert not callers[1].is_over, "what others answer goes on"
    await cluster.until(lambda: worker.served.gate.active == 0)
    for task in asking:
        task.cancel()


async def test_D11_D12_a_peer_never_goes_back_to_an_older_certificate(cluster: PeerWorld) -> None:
    worker = await cluster.worker()
    old, new = cluster.gateway("gw-a"), cluster.gateway(kit=cluster.kit("gw-a", "gateway", epoch=2))
    twin = cluster.gateway(kit=cluster.kit("gw-a", "gateway", epoch=2))
    assert await old.send(worker, *old.envelope(worker)) == (200, "")
    assert await new.send(worker, *new.envelope(worker)) == (200, "")
    assert await old.send(worker, *old.envelope(worker)) == (401, "peer_authentication_failed")
    assert await twin.send(worker, *twin.envelope(worker)) == (401, "peer_authentication_failed")


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /_sbproxy/model-plane/v1/dispatch HTTP/1.1\r\nHost: w\r\n\r\n", 405, "method_not_allowed"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: w\r\nContent-Length: 0\r\n\r\n", 404, "not_found"),
        (b"GET /healthz HTTP/1.1\r\nHost: w\r\n\r\n", 404, "not_found"),
        (raw_dispatch(b"").replace(b"application/vnd", b"application/x"), 415, "unsupported_media_type"),
        (raw_dispatch(b"", *(f"x-{number}: 1" for number in range(14))), 400, "invalid_request"),
        (raw_dispatch(b"", f"x-a: {'b' * 8100}", "x-b: " + "c" * 200), 400, "invalid_request"),
        (raw_dispatch(b"").replace(b"Content-Length: 0", b"Content-Length: 999999999"), 413, "body_too_large"),
        (raw_dispatch(b"x" * 4), 401, "envelope_too_large"),
        (raw_dispatch(b""), 401, "invalid_envelope"),
        (raw_dispatch(b"\0\0\0\x05abc"), 401, "invalid_envelope"),
        (raw_dispatch(b"\0\0\0\0"), 401, "invalid_envelope"),
        (raw_dispatch(b"", "Content-Length: 0"), 400, "invalid_request"),
        (raw_dispatch(b"", "Transfer-Encoding: chunked"), 400, "invalid_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_request"),
    ],
)
async def test_G8_G9_heads_and_frames_that_are_not_taken(
    cluster: PeerWorld, data: bytes, status: int, code: str
) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    async with gateway.connected(worker) as (reader, writer):
        writer.write(data)
        assert await read_refusal(reader) == (status, code)


async def test_G6_connections_beyond_the_cap_are_refused_and_others_go_on(cluster: PeerWorld) -> None:
    worker, gateway, other = await cluster.worker(connections=2), cluster.gateway(), cluster.gateway("gw-b")
    async with gateway.connected(worker), other.connected(worker):
        await cluster.until(lambda: len(worker.listener._connections) == 2)
        third = cluster.gateway("gw-c")
        assert await third.send(worker, *third.envelope(worker)) == (503, "overloaded")
    await cluster.until(lambda: not worker.listener._connections)
    assert await gateway.send(worker, *gateway.envelope(worker)) == (200, "")


async def test_G6_one_gateway_takes_three_quarters_of_the_connections_at_most(cluster: PeerWorld) -> None:
    worker, thief, gateway = await cluster.worker(connections=8), cluster.gateway("gw-b"), cluster.gateway()
    async with contextlib.AsyncExitStack() as held:
        for _ in range(6):
            await held.enter_async_context(thief.connected(worker))
        await cluster.until(lambda: len(worker.listener._connections) == 6)
        with contextlib.suppress(OSError):
            reader, _ = await held.enter_async_context(thief.connected(worker))
            assert await reader.read() == b"", "the seventh is cut without a word"
        assert await gateway.send(worker, *gateway.envelope(worker)) == (200, "")
    await cluster.until(lambda: not worker.listener._connections)
    assert not worker.listener._counted
    assert await thief.send(worker, *thief.envelope(worker)) == (200, "")


async def test_G6_nodes_that_are_no_gateways_share_a_handful_of_connections(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    others = [cluster.gateway(f"w-{number}", "worker") for number in range(3)]
    async with contextlib.AsyncExitStack() as held:
        for number in range(16):
            await held.enter_async_context(others[number % 3].connected(worker))
        await cluster.until(lambda: len(worker.listener._connections) == 16)
        with contextlib.suppress(OSError):
            reader, _ = await held.enter_async_context(others[0].connected(worker))
            assert await reader.read() == b""
        assert await gateway.send(worker, *gateway.envelope(worker)) == (200, "")


async def test_G7_bodies_of_one_gateway_leave_room_for_those_of_others(cluster: PeerWorld) -> None:
    worker, thief, gateway = await cluster.worker(bodies_bytes=100_000), cluster.gateway("gw-b"), cluster.gateway()
    async with contextlib.AsyncExitStack() as held:
        for size in (40_000, 30_000):
            _, writer = await held.enter_async_context(thief.connected(worker))
            writer.write(raw_dispatch(b"").replace(b"Content-Length: 0", b"Content-Length: 60000") + b"x" * size)
        await cluster.until(lambda: worker.listener._held_bytes == 70_000)
        reader, writer = await held.enter_async_context(thief.connected(worker))
        writer.write(raw_dispatch(b"").replace(b"Content-Length: 0", b"Content-Length: 60000") + b"x" * 20_000)
        assert await read_refusal(reader) == (503, "overloaded")
        assert await gateway.send(worker, *gateway.envelope(worker)) == (200, "")
    await cluster.until(lambda: not worker.listener._connections)
    assert (worker.listener._held_bytes, +worker.listener._held) == (0, {})


async def test_a_connection_does_not_live_for_ever(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    assert (await gateway.ask(worker)).status == 200
    (connection,) = worker.listener._connections
    connection._opened_s -= 3600  # type: ignore[attr-defined]
    await cluster.until(lambda: not worker.listener._connections)
    assert (await gateway.ask(worker)).status == 200


async def test_G15_a_cluster_with_a_pki_of_its_own_knows_gateways_by_their_certificates(tmp_path: Path) -> None:
    cluster = PeerWorld(tmp_path, own_pki=True)
    try:
        worker, gateway, node = await cluster.worker(), cluster.gateway(), cluster.gateway("w-b", "worker")
        assert (await gateway.ask(worker)).status == 200
        assert await node.send(worker, *node.envelope(worker)) == (401, "peer_authentication_failed")
        enrolled = PeerWorld(tmp_path)
        enrolled.authority.ca = cluster.authority.ca
        stranger = enrolled.gateway("gw-c")
        assert await stranger.send(worker, *stranger.envelope(worker)) == (401, "peer_authentication_failed")
    finally:
        await cluster.close()


async def test_a_renewed_certificate_and_a_new_ca_count_from_the_next_handshake_on(cluster: PeerWorld) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    assert (await gateway.ask(worker)).status == 200
    worker.trust.take(*renewed(cluster, "w-a", "worker"))
    known = replace(worker.candidate(), certificate_sha256="0" * 64)
    with pytest.raises(SbctlError) as caught:
        await gateway.ask(known)
    assert caught.value.code == "tls_failed"
    assert (await gateway.ask(worker)).status == 200
    former = cluster.authority.ca
    cluster.authority.ca = create_ca("prod", now=cluster.now - timedelta(days=1))
    worker.trust.take(*renewed(cluster, "w-a", "worker", epoch=3))
    with contextlib.suppress(OSError):
        async with gateway.connected(worker, PlainTrust(former, cluster).identity.client_context):
            pass
    with pytest.raises(SbctlError):
        await gateway.ask(worker)
    gateway.trust.take(*renewed(cluster, "gw-a", "gateway", epoch=2))
    assert (await gateway.ask(worker)).status == 200


class PlainTrust:
    """A node that knows the former CA alone."""

    def __init__(self, ca: Any, cluster: PeerWorld) -> None:
        authority = ClusterAuthority()
        authority.ca = ca
        kit = authority.node("gw-old", "gateway", now=cluster.now)
        self.identity = PlaneIdentity(KitTrust(kit, cluster.gateway("gw-clock").clock))


def renewed(cluster: PeerWorld, node_id: str, role: str, *, epoch: int = 2) -> tuple[Any, Secret]:
    kit = cluster.kit(node_id, role, epoch=epoch)
    return kit.files, kit.key


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_bytes_come_the_next_dispatch_is_served(cluster: PeerWorld, seed: int) -> None:
    """A dispatch with bytes changed, cut out, doubled and cut in two where nobody expects it. Each run is the same for its seed."""
    worker, gateway = await cluster.worker(body_s=0.2), cluster.gateway()
    chance = random.Random(seed)
    for _ in range(12):
        data = bytearray(dispatch_bytes(*gateway.envelope(worker)))
        # Mostly where head, length and the beginning of the envelope are.
        places = [chance.randrange(chance.choice([120, 200, 400, len(data)])) for _ in range(chance.randrange(1, 4))]
        for place in places:
            how = chance.randrange(4)
            if how == 0:
                data[place] = chance.randrange(256)
            elif how == 1:
                del data[place : place + chance.randrange(1, 40)]
            elif how == 2:
                data[place:place] = data[place : place + chance.randrange(1, 40)]
            else:
                data[place:place] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
        cut = chance.randrange(len(data))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with gateway.connected(worker) as (reader, writer):
                for part in (data[:cut], data[cut:]):
                    writer.write(bytes(part))
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.write_eof() if writer.can_write_eof() else None
                await asyncio.wait_for(reader.read(200), 1.0)
    assert (await gateway.ask(worker)).status == 200
    await cluster.until(lambda: worker.served.gate.active == 0 and worker.listener._held_bytes == 0)


async def test_G22_refusals_of_one_peer_fill_no_log(cluster: PeerWorld, capsys: pytest.CaptureFixture[str]) -> None:
    worker, gateway = await cluster.worker(), cluster.gateway()
    async with gateway.connected(worker) as (reader, writer):
        for _ in range(60):
            writer.write(dispatch_bytes(b"{}", b"x"))
            assert await read_refusal(reader) == (401, "invalid_envelope")
    text = "".join(capsys.readouterr())
    assert text.count("dispatch refused") <= 10
    assert text.count("dispatch answered") <= 10
    assert worker.refusals("invalid_envelope") == 60
