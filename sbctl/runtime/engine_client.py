"""How the runtime talks to one engine: HTTP over its UNIX socket or loopback port, no proxy, no redirect, bounded answers.

Each request has a connection of its own: closing it is how a request is cancelled, and an idle pooled one would keep a thread of the
engine's server busy and may be closed under us.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from sbctl.base.errors import EngineError
from sbctl.engines.model import EngineAddress

__all__ = ["ENGINE_ERRORS", "EngineClient"]

ENGINE_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)
"""What a call to an engine that is dying raises."""

_PROBE_TIMEOUT_S: Final = 2.0
_JSON_MAX_BYTES: Final = 1024 * 1024


class EngineClient:
    """A client of one engine. Close it with the engine."""

    def __init__(self, address: EngineAddress) -> None:
        connector: aiohttp.BaseConnector
        if address.unix_path is not None:
            self._base = "http://engine"
            connector = aiohttp.UnixConnector(path=str(address.unix_path), force_close=True, limit=0)
        else:
            self._base = f"http://127.0.0.1:{address.port}"
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            read_bufsize=256 * 1024,
        )

    async def status(self, path: str, *, timeout_s: float = _PROBE_TIMEOUT_S) -> int | None:
        """The status of a GET; None when nothing answered in time."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(self._base + path, timeout=timeout, allow_redirects=False) as response:
                return response.status
        except ENGINE_ERRORS:
            return None

    async def text(self, path: str, *, timeout_s: float = _PROBE_TIMEOUT_S) -> str | None:
        """The body of a GET that answered 200, at most 1 MiB; None otherwise."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.get(self._base + path, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                data = await response.content.read(_JSON_MAX_BYTES)
                return data.decode("utf-8", errors="replace")
        except ENGINE_ERRORS:
            return None

    async def json(self, path: str) -> Any:
        """The parsed body of a GET; None when there is none."""
        body = await self.text(path)
        try:
            return None if body is None else json.loads(body)
        except ValueError:
            return None

    async def produce_token(self, model: str, *, timeout_s: float) -> None:
        """One token by the completion route. Raises EngineError `engine_health_failed`."""
        body = {"model": model, "prompt": "Hi", "max_tokens": 1, "stream": False}
        try:
            async with self.post("/v1/completions", json.dumps(body).encode(), timeout_s=timeout_s) as response:
                if response.status == 200:
                    await response.read()
                    return
                problem = f"it answered {response.status}"
        except ENGINE_ERRORS as error:
            problem = str(error) or type(error).__name__
        raise EngineError("engine_health_failed", f"the engine produced no token: {problem}", retryable=True)

    @asynccontextmanager
    async def post(
        self, path: str, body: bytes, *, timeout_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A JSON request; leaving the block before the answer's end closes the connection and so cancels the request.

        Raises what `ENGINE_ERRORS` lists.
        """
        async with self._session.post(
            self._base + path,
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=5.0),
            allow_redirects=False,
        ) as response:
            try:
                yield response
            finally:
                if not response.content.at_eof():
                    response.close()

    async def close(self) -> None:
        await self._session.close()
