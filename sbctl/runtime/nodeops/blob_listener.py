"""A relay's listener: blobs of this host by digest, over TLS, to named peers that know the token, for as long as the channel is open.

    GET /<sha256>      Authorization: Bearer <token>      Range: bytes=<n>-

A blob that is offered stays readable until the listener ends, also when an installation has used it up meanwhile: it is held open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import re
import socket
import threading
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from sbctl.base.clock import Clock
from sbctl.base.errors import HostError
from sbctl.base.secret import Secret
from sbctl.trust.one_off import one_off_tls

__all__ = ["BlobListener"]

_PIECE_BYTES: Final = 1 << 20
_LIFE_S: Final = 6 * 3600.0
_HANDSHAKE_S: Final = 30.0
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_MAX_STREAMS: Final = 64
_RANGE: Final = re.compile(r"bytes=([0-9]{1,18})-")


class BlobListener:
    """Starts when it is made; ends with `close`, or after six hours. Used from one thread, serves from its own."""

    def __init__(self, bind: str, peers: Sequence[str], token: Secret, clock: Clock) -> None:
        """Raises HostError `relay.cannot_listen`."""
        self._bind = bind
        self._peers = frozenset(address for peer in peers for address in _addresses(peer))
        self._token = token
        self._files: dict[str, tuple[int, int]] = {}
        self._streams = asyncio.Semaphore(_MAX_STREAMS)
        self._tls = one_off_tls(clock.now())
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="relay")
        self._thread.start()
        self._started.wait(_START_S)
        if not self.port:
            raise HostError(
                "relay.cannot_listen",
                f"no listener on {bind}: {self._why()}",
                place=bind,
                next_step="look at the address of this host in sb.yml: it must be one of its own",
            )

    @property
    def certificate_sha256(self) -> str:
        return self._tls.certificate_sha256

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def accepts(self, token: Secret) -> bool:
        """Whether it was opened for this token."""
        return self._token == token

    def offer(self, sha256: str, fd: int, size_bytes: int) -> None:
        """Serve what `fd` reads as `sha256` from now on; `fd` belongs to the listener."""
        if sha256 in self._files:
            os.close(fd)
        else:
            self._files[sha256] = (fd, size_bytes)

    def offers(self, sha256: str) -> bool:
        return sha256 in self._files

    def close(self) -> None:
        """End it and what it serves. Never raises."""
        loop, end = self._loop, self._end
        if loop is not None and end is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end.set)
            self._thread.join(_STOP_S)
        files, self._files = self._files, {}
        for fd, _ in files.values():
            os.close(fd)

    def _why(self) -> str:
        failure = self._failure
        return (failure.strerror if failure is not None else None) or "it did not start in time"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_get("/{sha256:[0-9a-f]{64}}", self._answer)
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        try:
            server = await self._loop.create_server(
                runner.server,
                self._bind,
                0,
                ssl=self._tls.context,
                ssl_handshake_timeout=_HANDSHAKE_S,
                backlog=_MAX_STREAMS,
            )
            self.port = int(server.sockets[0].getsockname()[1])
            self._started.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LIFE_S):
                    await self._end.wait()
            server.close()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        told = request.headers.get("Authorization", "").encode()
        expected = b"Bearer " + self._token.reveal()
        if request.remote not in self._peers or not hmac.compare_digest(told, expected):
            raise web.HTTPForbidden
        found = self._files.get(request.match_info["sha256"])
        if found is None:
            raise web.HTTPNotFound
        fd, size = found
        start = _start(request.headers.get("Range"), size)
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = size - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        async with self._streams:
            await response.prepare(request)
            while start < size:
                piece = await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, size - start), start)
                if not piece:
                    break
                await response.write(piece)
                start += len(piece)
            await response.write_eof()
        return response


def _start(header: str | None, size: int) -> int:
    """Raises HTTPRequestRangeNotSatisfiable for a range that is not the rest of the blob."""
    if header is None:
        return 0
    match = _RANGE.fullmatch(header)
    if match is None or int(match[1]) >= size:
        raise web.HTTPRequestRangeNotSatisfiable
    return int(match[1])


def _addresses(peer: str) -> set[str]:
    try:
        found = socket.getaddrinfo(peer, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(entry[4][0]) for entry in found}
