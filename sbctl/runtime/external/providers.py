"""Asking an external provider: over verified TLS, by the host's egress rules, never by a redirect, with one of its keys.

Nothing here is tried after the first byte of an answer. What the caller did wrong (400) is told to the caller; everything else is a
reason to try the next key or the next provider. Keys are read when they are used and appear in no message.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
from yarl import URL

from sbctl.artifacts.fetch_policy import FetchSettings, check_url, parse_url
from sbctl.artifacts.fetcher import Fetcher
from sbctl.base.clock import Clock
from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.secret import Secret
from sbctl.runtime.external.breakers import Desk
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.relay import Relay, StreamRelay
from sbctl.runtime.log import get_log
from sbctl.trust.bundle import ExternalMember

__all__ = ["ExternalProviders", "Question"]

_STALL_S: Final = 300.0
"""So long a provider may think without sending a byte."""
_ACTION: Final = {400: "caller", 413: "caller", 422: "caller", 401: "key", 402: "key", 403: "key", 429: "limit"}


@dataclass(frozen=True, slots=True)
class Question:
    """One request as the provider gets it. `path` is behind its base URL; `relay` makes what takes one answer; `way`: the gateways that
    it went through, this one last, so that a provider that is a gateway sees a circle."""

    path: str
    body: bytes
    content_type: str
    request_id: str
    client: Client
    relay: Callable[[], Relay]
    way: tuple[str, ...] | None = None


class _KeyUnusableError(Exception):
    """The next key may do."""


class ExternalProviders:
    """All providers of one runtime. `settings` and `secret` are asked at the first use, and at each."""

    def __init__(self, settings: Callable[[], FetchSettings], secret: Callable[[str], Secret], clock: Clock) -> None:
        self._settings = settings
        self._secret = secret
        self._clock = clock
        self._fetcher: Fetcher | None = None
        self._desks: dict[tuple[str, tuple[str, ...]], Desk] = {}
        self._log = get_log("external")

    async def close(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.__aexit__(None, None, None)

    def renew(self, key: str) -> None:
        """A key was exchanged: where the former one rested, the new one is tried at once."""
        for desk in self._desks.values():
            desk.renew(key)

    def may_answer(self, member: ExternalMember) -> bool:
        """Whether it would be asked now: it is not left alone, and one of its keys does not rest."""
        desk, now_s = self._desks.get((member.base_url, member.keys)), asyncio.get_running_loop().time()
        return desk is None or (bool(desk.keys(now_s)) and not desk.breaker.rests(now_s))

    async def ask(self, member: ExternalMember, question: Question) -> Relay:
        """The relay of an answer that has begun and ended.

        Raises InputError for what the caller did wrong, EngineError `upstream_failed` when this provider cannot answer now.
        """
        loop = asyncio.get_running_loop()
        desk = self._desks.setdefault((member.base_url, member.keys), Desk(member.keys))
        keys = desk.keys(loop.time())
        if not keys or not desk.breaker.admits(loop.time()):
            raise _failed("it was left alone for now, after what it answered before")
        try:
            for key in keys:
                with contextlib.suppress(_KeyUnusableError):
                    return await self._ask_with(member, key, desk, question)
        except SbctlError as error:
            if error.code != "upstream_failed":
                raise
            raise _failed(error.message) from error
        finally:
            desk.breaker.abandoned()
        raise _failed("none of its keys may be used now")

    async def _ask_with(self, member: ExternalMember, key: str | None, desk: Desk, question: Question) -> Relay:
        now_s = asyncio.get_running_loop().time
        try:
            headers = {"Content-Type": question.content_type, "X-Request-Id": question.request_id}
            if question.way:
                headers["x-sbproxy-via"] = ", ".join(question.way)
            if key is not None:
                headers["Authorization"] = f"Bearer {self._secret(key).reveal().decode('ascii')}"
            fetcher, url = self._reach(member, question.path)
        except (SbctlError, UnicodeDecodeError) as error:
            why = error.message if isinstance(error, SbctlError) else "the key is no text"
            self._log.error("an external provider cannot be asked", provider=member.name, reason=why)
            desk.refused(key, now_s())
            raise _KeyUnusableError from error
        try:
            async with fetcher.post(url, question.body, headers) as response:
                action = _ACTION.get(response.status, "ok" if response.status == 200 else "failed")
                if action == "key":
                    self._log.error("an external provider refused a key", provider=member.name, key=key)
                    desk.breaker.succeeded()
                    desk.refused(key, now_s())
                    raise _KeyUnusableError
                if action == "limit":
                    desk.breaker.succeeded()
                    desk.limited(key, now_s(), self._retry_after_s(response.headers.get("Retry-After")))
                    raise _KeyUnusableError
                if action == "failed":
                    raise _failed(f"it answered {response.status}")
                relay = await _relayed(response, question, is_refusal=action == "caller")
        except SbctlError as error:
            if error.code in ("invalid_request", "context_length_exceeded"):
                desk.breaker.succeeded()
                raise
            desk.breaker.failed(now_s())
            self._log.warning("an external provider failed", provider=member.name, reason=error.message)
            raise _failed(error.message) from error
        if relay.problem is None:
            desk.breaker.succeeded()
        else:
            desk.breaker.failed(now_s())
        return relay

    def _reach(self, member: ExternalMember, path: str) -> tuple[Fetcher, URL]:
        """Raises SbctlError for an address that is not gone to, and for settings that cannot be used."""
        if self._fetcher is None:
            self._fetcher = Fetcher(self._settings(), stall_s=_STALL_S)
        base = parse_url(member.base_url)
        self._fetcher.origins.add_source(base)
        url = parse_url(member.base_url.rstrip("/") + path)
        check_url(url, self._fetcher.origins)
        return self._fetcher, url

    def _retry_after_s(self, text: str | None) -> float | None:
        """Seconds or a date; None for what is neither."""
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            return float(int(text))
        with contextlib.suppress(ValueError, TypeError):
            return (parsedate_to_datetime(text) - self._clock.now()).total_seconds()
        return None


class _Flow:
    """Lets a slow caller hold back a provider (`ports.Source`)."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()
        self.may_go.set()

    def pause(self) -> None:
        self.may_go.clear()

    def resume(self) -> None:
        self.may_go.set()


async def _relayed(response: aiohttp.ClientResponse, question: Question, *, is_refusal: bool) -> Relay:
    """Raises what the relay makes of it, before its first byte; after it the relay knows the problem."""
    relay, flow = question.relay(), _Flow()
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise _failed("it compressed its answer")
    if isinstance(relay, StreamRelay) and not is_refusal and response.content_type != "text/event-stream":
        raise _failed("it answered no stream of events")
    fields = {name.lower().encode(): value.encode("latin-1", "replace") for name, value in response.headers.items()}
    question.client.feed_from(flow)
    try:
        relay.head(400 if is_refusal else response.status, fields)
        async for chunk in response.content.iter_any():
            relay.data(chunk)
            if relay.ending.is_over:
                break
            await flow.may_go.wait()
        relay.end()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        relay.broke(f"the connection failed: {type(error).__name__}")
    finally:
        question.client.feed_from(None)
    await relay.ending.wait()
    return relay


def _failed(why: str) -> EngineError:
    return EngineError("upstream_failed", f"an external provider: {why}", retryable=True)
