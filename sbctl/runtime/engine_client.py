"""How the runtime itself asks one engine: probes and questions with bounded answers, over the connections that callers' requests use."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError
from sbctl.engines.model import Canary, EngineAddress
from sbctl.runtime.gateway.upstream import ENGINE_ERRORS, EnginePool, request_head

__all__ = ["EngineClient"]

_PROBE_TIMEOUT_S: Final = 2.0
_ANSWER_MAX_BYTES: Final = 1024 * 1024
_COUNT_MAX_BYTES: Final = 32 * 1024 * 1024
"""Of an answer that lists the tokens of a long prompt."""


class _Collector:
    """An answer in memory; `done` has its status, or the error."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.body = bytearray()
        self._max_bytes = max_bytes
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def head(self, status: int, fields: dict[bytes, bytes]) -> None:  # noqa: ARG002 - as AnswerSink
        self.status = status

    def data(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > self._max_bytes:
            self.broke("the answer is too long")

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def broke(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))


class EngineClient:
    """A client of one engine. Close it with the engine."""

    def __init__(self, address: EngineAddress) -> None:
        self.pool = EnginePool(address)
        self._counts_tokens = True

    async def status(self, path: str, *, timeout_s: float = _PROBE_TIMEOUT_S) -> int | None:
        """The status of a GET; None when nothing answered in time."""
        try:
            return (await self._ask("GET", path, b"", timeout_s))[0]
        except ENGINE_ERRORS:
            return None

    async def text(self, path: str, *, timeout_s: float = _PROBE_TIMEOUT_S) -> str | None:
        """The body of a GET that answered 200, at most 1 MiB; None otherwise."""
        try:
            status, body = await self._ask("GET", path, b"", timeout_s)
        except ENGINE_ERRORS:
            return None
        return body.decode("utf-8", errors="replace") if status == 200 else None

    async def json(self, path: str) -> Any:
        """The parsed body of a GET; None when there is none."""
        body = await self.text(path)
        try:
            return None if body is None else json.loads(body)
        except (ValueError, RecursionError):
            return None

    async def produce(self, canary: Canary, *, timeout_s: float) -> None:
        """One small answer. Raises EngineError `engine_health_failed`."""
        try:
            status, answer = await self._ask("POST", canary.path, json.dumps(canary.body).encode(), timeout_s)
            said = display_safe(answer[:300].decode("utf-8", "replace"), max_chars=300)
            problem = "" if status == 200 else f"it answered {status}: {said}"
        except ENGINE_ERRORS as error:
            problem = str(error) or f"no answer in {timeout_s:.0f} s"
        if problem:
            raise EngineError(
                "engine_health_failed",
                f"the engine produces nothing: {problem}",
                next_step="sbctl logs has what it printed; if it stays so, choose another variant or build (engines.llama_cpp.version)",
                retryable=True,
            )

    async def count_tokens(self, text: str) -> int | None:
        """How many tokens its model makes of a text; None when it cannot tell. Nothing waits for a slot."""
        if not self._counts_tokens:
            return None
        try:
            body = json.dumps({"content": text}).encode()
            status, answer = await self._ask("POST", "/tokenize", body, _PROBE_TIMEOUT_S, _COUNT_MAX_BYTES)
            document = json.loads(answer) if status == 200 else None
        except (*ENGINE_ERRORS, ValueError, RecursionError):
            return None
        self._counts_tokens = status not in (404, 405, 501)
        tokens = document.get("tokens") if isinstance(document, dict) else None
        return len(tokens) if isinstance(tokens, list) else None

    async def close(self) -> None:
        self.pool.close()

    async def _ask(
        self, method: str, path: str, body: bytes, timeout_s: float, max_bytes: int = _ANSWER_MAX_BYTES
    ) -> tuple[int, bytes]:
        """Status and body. Raises what `ENGINE_ERRORS` lists; leaving early cancels the request."""
        head = request_head(method, path, len(body), "application/json", "runtime")
        async with asyncio.timeout(timeout_s):
            for last in (False, True):
                connection = await self.pool.connection(fresh=last)
                collector = _Collector(max_bytes)
                connection.send(head, body, collector)
                try:
                    await collector.done
                except ConnectionError:
                    if last or not connection.is_reused or collector.status:
                        raise
                    continue
                finally:
                    connection.let_go(collector, is_satisfied=False)
                return collector.status, bytes(collector.body)
        raise ConnectionError("the engine closed the connection")
