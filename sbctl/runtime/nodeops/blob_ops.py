"""`blob.serve`, `blob.fetch`: bytes that the operator sent once to a site's relay go from there to its neighbours."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.disk_space import require_space
from sbctl.base import fs
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.limits import DOWNLOAD_STALL_S
from sbctl.base.secret import Secret
from sbctl.node.artifact_messages import BlobFetch, BlobServe
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.snapshot import cache_root

__all__ = ["fetch_blob", "serve_blobs"]

_LISTENER: Final = "blob_listener"
_CONNECT_S: Final = 30.0
_PIECE_BYTES: Final = 1 << 20
_AGAIN: Final = "run sbctl apply again; if it stays so, set delivery: pull or push for this host"


def serve_blobs(context: NodeContext, params: BlobServe) -> dict[str, Any]:
    """Offer blobs that were put here or that the model cache has; those that it has not are `missing`.

    The listener is opened by the first call of a channel and ends with the channel. Raises HostError `relay.cannot_listen`.
    """
    from sbctl.runtime.nodeops.blob_listener import BlobListener

    token = _token(context)
    listener = context.kept.get(_LISTENER)
    if not isinstance(listener, BlobListener) or not listener.is_open or not listener.accepts(token):
        if isinstance(listener, BlobListener):
            listener.close()
        listener = BlobListener(params.bind, params.peers, token, context.clock)
        context.kept[_LISTENER] = listener
        context.cancellation.subscribe(listener.close)
    missing = [digest for digest in params.digests if not _offered(context, listener, digest)]
    return {"port": listener.port, "certificate_sha256": listener.certificate_sha256, "missing": missing}


def _offered(context: NodeContext, listener: Any, digest: str) -> bool:
    if listener.offers(digest):
        return True
    for path in (context.paths.blobs / digest, cache_root(context.paths) / "blobs" / "sha256" / digest):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                listener.offer(digest, fd, status.st_size)
                return True
            os.close(fd)
    return False


def fetch_blob(context: NodeContext, params: BlobFetch) -> dict[str, Any]:
    """Fetch one blob from a relay, going on where an earlier fetch was cut, and leave it as if it had been put; present is done.

    Raises ArtifactError `relay.unreachable`, `relay.refused`, `relay.digest_mismatch`; SbctlError `disk.*`.
    """
    blobs = context.paths.blobs
    blob, part = blobs / params.sha256, blobs / f"{params.sha256}.relay"
    if blob.is_file() and blob.stat().st_size == params.size_bytes:
        return {"fetched_bytes": 0}
    fs.ensure_directory(blobs, mode=0o700)
    have = part.stat().st_size if part.is_file() and not part.is_symlink() else 0
    require_space(blobs, max(0, params.size_bytes - have))
    fetched = run_cancellable(context, _fetch(context, params, part, _token(context)))
    digest = hashlib.sha256()
    with part.open("rb") as reader:
        while piece := reader.read(_PIECE_BYTES):
            context.cancellation.check()
            digest.update(piece)
    if digest.hexdigest() != params.sha256:
        fs.remove_file(part)
        raise ArtifactError(
            "relay.digest_mismatch",
            "what the relay sent has other bytes than asked for",
            place=params.sha256,
            next_step=_AGAIN,
        )
    fs.install_file(part, blob, mode=0o444)
    return {"fetched_bytes": fetched}


async def _fetch(context: NodeContext, params: BlobFetch, part: Path, token: Secret) -> int:
    import aiohttp
    from yarl import URL

    place = f"{params.address}:{params.port}"
    url = URL.build(scheme="https", host=params.address, port=params.port, path=f"/{params.sha256}")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=DOWNLOAD_STALL_S)
    pinned = aiohttp.Fingerprint(bytes.fromhex(params.certificate_sha256))
    fd = _opened(part)
    try:
        start = os.fstat(fd).st_size
        if start >= params.size_bytes:
            os.ftruncate(fd, 0)
            start = 0
        headers = {"Authorization": f"Bearer {token.reveal().decode('ascii')}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        async with (
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False, trust_env=False) as session,
            session.get(url, headers=headers, ssl=pinned, allow_redirects=False) as response,
        ):
            if response.status != (206 if start else 200):
                raise ArtifactError(
                    "relay.refused", f"the relay answered {response.status}", place=place, next_step=_AGAIN
                )
            return await _store(context, params, response, fd, start)
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        what = "no byte came for a minute" if isinstance(error, TimeoutError) else (str(error) or type(error).__name__)
        raise ArtifactError(
            "relay.unreachable",
            f"the relay gave nothing: {what}",
            place=place,
            next_step=f"look whether this host may connect to the other; {_AGAIN}",
            retryable=True,
        ) from error
    finally:
        os.close(fd)


async def _store(context: NodeContext, params: BlobFetch, response: Any, fd: int, start: int) -> int:
    at = start
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        if at + len(piece) > params.size_bytes:
            raise ArtifactError(
                "relay.refused", "the relay sends more than was asked for", place=params.sha256, next_step=_AGAIN
            )
        try:
            view = memoryview(piece)
            while view:
                written = fs.OPS.write(fd, view)
                view, at = view[written:], at + written
        except OSError as error:
            raise fs.disk_error(error, context.paths.blobs) from error
        context.report(at, params.size_bytes, "from the relay")
    if at != params.size_bytes:
        raise ArtifactError(
            "relay.unreachable",
            "the relay stopped in the middle",
            place=params.sha256,
            next_step=_AGAIN,
            retryable=True,
        )
    return at - start


def _opened(part: Path) -> int:
    """For appending, never through a link. Raises SbctlError."""
    try:
        return fs.OPS.open(str(part), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise fs.disk_error(error, part) from error


def _token(context: NodeContext) -> Secret:
    token = context.secrets.get("token")
    if token is None or not 32 <= len(token.reveal()) <= 128 or not token.reveal().isalnum():
        raise InputError("node.invalid_params", "a relay's token is missing")
    return token
