"""A relay passes blobs on to named peers that know the token, and the one who fetches believes only the digest."""

from __future__ import annotations

import hashlib
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import ArtifactError, HostError, InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.artifact_messages import BlobFetch, BlobServe
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.nodeops.blob_ops import fetch_blob, serve_blobs
from sbctl.runtime.nodeops.context import NodeContext

CONTENT = secrets.token_bytes(3 * 1024 * 1024 + 17)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
TOKEN = Secret(secrets.token_hex(32).encode())


def _context(directory: Path) -> NodeContext:
    environ = {"SBCTL_NODE_PREFIX": str(directory)}
    return NodeContext(node_paths(0, environ), environ, 0, secrets={"token": TOKEN})


def _put(paths: NodePaths, content: bytes = CONTENT, name: str = DIGEST) -> None:
    paths.blobs.mkdir(parents=True, exist_ok=True)
    (paths.blobs / name).write_bytes(content)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[NodeContext]:
    context = _context(tmp_path / "relay")
    yield context
    context.cancellation.cancel()


@pytest.fixture
def neighbour(tmp_path: Path) -> NodeContext:
    return _context(tmp_path / "neighbour")


def _serve(context: NodeContext, *digests: str, peers: tuple[str, ...] = ("127.0.0.1",)) -> dict[str, Any]:
    return serve_blobs(context, BlobServe(digests=digests or (DIGEST,), peers=peers, bind="127.0.0.1"))


def _wanted(served: dict[str, Any], **changes: Any) -> BlobFetch:
    fields = {
        "sha256": DIGEST,
        "size_bytes": len(CONTENT),
        "address": "127.0.0.1",
        "port": served["port"],
        "certificate_sha256": served["certificate_sha256"],
    }
    return BlobFetch(**{**fields, **changes})


def _ask(served: dict[str, Any], path: str, headers: dict[str, str]) -> int:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection("127.0.0.1", served["port"], context=context, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


BEARER = {"Authorization": f"Bearer {TOKEN.reveal().decode()}"}


def test_a_blob_that_was_put_on_the_relay_arrives_as_if_it_had_been_put_here(
    relay: NodeContext, neighbour: NodeContext
) -> None:
    _put(relay.paths)
    served = _serve(relay)
    assert served["missing"] == []
    seen: list[int] = []
    told = replace(neighbour, report=lambda done, _total, _note: seen.append(done))
    assert fetch_blob(told, _wanted(served)) == {"fetched_bytes": len(CONTENT)}
    assert (neighbour.paths.blobs / DIGEST).read_bytes() == CONTENT
    assert [path.name for path in neighbour.paths.blobs.iterdir()] == [DIGEST]
    assert seen[-1] == len(CONTENT)
    assert fetch_blob(neighbour, _wanted(served)) == {"fetched_bytes": 0}


def test_a_fetch_that_was_cut_goes_on_where_it_was(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths)
    _put(neighbour.paths, CONTENT[:1_000_000], f"{DIGEST}.relay")
    assert fetch_blob(neighbour, _wanted(_serve(relay))) == {"fetched_bytes": len(CONTENT) - 1_000_000}
    assert (neighbour.paths.blobs / DIGEST).read_bytes() == CONTENT


def test_what_was_used_up_meanwhile_is_still_served(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths)
    _serve(relay)
    (relay.paths.blobs / DIGEST).unlink()
    served = _serve(relay)
    assert served["missing"] == []
    assert fetch_blob(neighbour, _wanted(served))["fetched_bytes"] == len(CONTENT)


def test_weights_of_an_earlier_apply_are_served_from_the_cache(relay: NodeContext, neighbour: NodeContext) -> None:
    blobs = relay.paths.models / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    (blobs / DIGEST).write_bytes(CONTENT)
    served = _serve(relay, DIGEST, "0" * 64)
    assert served["missing"] == ["0" * 64]
    assert fetch_blob(neighbour, _wanted(served))["fetched_bytes"] == len(CONTENT)


def test_a_link_is_not_followed(relay: NodeContext, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_bytes(b"x")
    relay.paths.blobs.mkdir(parents=True)
    (relay.paths.blobs / DIGEST).symlink_to(tmp_path / "shadow")
    assert _serve(relay)["missing"] == [DIGEST]


ASKED: dict[str, tuple[str, dict[str, str], int]] = {
    "no token": (f"/{DIGEST}", {}, 403),
    "another token": (f"/{DIGEST}", {"Authorization": "Bearer " + "0" * 64}, 403),
    "the token, another blob": ("/" + "0" * 64, BEARER, 404),
    "the token, a way out": ("/../../etc/shadow", BEARER, 404),
    "the token, an encoded way out": ("/%2e%2e%2fetc%2fshadow", BEARER, 404),
    "a range behind the end": (f"/{DIGEST}", {**BEARER, "Range": f"bytes={len(CONTENT)}-"}, 416),
    "a range of another form": (f"/{DIGEST}", {**BEARER, "Range": "bytes=-5"}, 416),
}


@pytest.mark.parametrize("case", ASKED)
def test_the_listener_answers_what_was_offered_and_nothing_else(relay: NodeContext, case: str) -> None:
    path, headers, status = ASKED[case]
    _put(relay.paths)
    served = _serve(relay)
    assert _ask(served, path, headers) == status
    assert _ask(served, f"/{DIGEST}", BEARER) == 200


def test_only_named_peers_are_answered(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths)
    served = _serve(relay, peers=("192.0.2.1",))
    with pytest.raises(ArtifactError) as refused:
        fetch_blob(neighbour, _wanted(served))
    assert refused.value.code == "relay.refused"


def test_a_listener_with_another_certificate_gets_no_token(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths)
    with pytest.raises(ArtifactError) as refused:
        fetch_blob(neighbour, _wanted(_serve(relay), certificate_sha256="0" * 64))
    assert refused.value.code == "relay.unreachable"
    assert not (neighbour.paths.blobs / DIGEST).exists()


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_other_bytes_than_announced_are_thrown_away(relay: NodeContext, neighbour: NodeContext, size: int) -> None:
    _put(relay.paths)
    with pytest.raises(ArtifactError) as refused:
        fetch_blob(neighbour, _wanted(_serve(relay), size_bytes=size))
    assert refused.value.code in ("relay.refused", "relay.unreachable")


def test_other_bytes_under_the_digest_are_thrown_away(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths, CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(ArtifactError) as refused:
        fetch_blob(neighbour, _wanted(_serve(relay)))
    assert refused.value.code == "relay.digest_mismatch"
    assert list(neighbour.paths.blobs.iterdir()) == []


def test_the_listener_ends_with_the_channel(relay: NodeContext, neighbour: NodeContext) -> None:
    _put(relay.paths)
    served = _serve(relay)
    relay.cancellation.cancel()
    with pytest.raises(SbctlError) as refused:
        fetch_blob(neighbour, _wanted(served))
    assert refused.value.code == "relay.unreachable"


def test_an_address_of_somebody_else_cannot_be_listened_on(relay: NodeContext) -> None:
    with pytest.raises(HostError) as refused:
        serve_blobs(relay, BlobServe(digests=(), peers=(), bind="192.0.2.77"))
    assert refused.value.code == "relay.cannot_listen"


@pytest.mark.parametrize("token", [b"", b"short", b"x" * 129, b"with\r\nheaders" * 4])
def test_a_token_is_needed(relay: NodeContext, token: bytes) -> None:
    with pytest.raises(InputError):
        _serve(replace(relay, secrets={"token": Secret(token)}))
