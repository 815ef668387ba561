"""A listener that ends loses no request: every caller is told, late requests on open connections are answered, idle ones are closed last."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from sbctl.runtime import listeners
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.listeners import Listener

pytestmark = pytest.mark.integration

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
DEADLINE_S = 30.0


class Caller:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self) -> str:
        """The head of the answer."""
        self.writer.write(REQUEST)
        return await self.answer()

    async def answer(self) -> str:
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(2)
        return head.decode()


def serve(play: Callable[[Listener, asyncio.Event, Callable[[], Awaitable[Caller]]], Awaitable[None]]) -> None:
    """A listener whose answers wait for the event; `play` gets it, the event, and how to connect."""

    async def main() -> None:
        release = asyncio.Event()

        async def handler(_request: web.Request) -> web.Response:
            await release.wait()
            return web.Response(text="ok")

        app = web.Application()
        app.add_routes([web.get("/", handler)])
        listener = Listener(app)
        sock = bind_tcp("127.0.0.1", 0)
        port = int(sock.getsockname()[1])
        keeper = sock.dup()
        await listener.start(sock)

        async def connect() -> Caller:
            return Caller(*await asyncio.open_connection("127.0.0.1", port))

        try:
            async with asyncio.timeout(DEADLINE_S):
                await play(listener, release, connect)
        finally:
            await listener.close()
            keeper.close()

    asyncio.run(main())


def test_requests_that_run_or_come_on_an_open_connection_are_answered_and_told_to_close() -> None:
    async def play(listener: Listener, release: asyncio.Event, connect: Callable[[], Awaitable[Caller]]) -> None:
        running, kept = await connect(), await connect()
        release.set()
        assert "close" not in (await kept.ask()).lower()
        release.clear()
        running.writer.write(REQUEST)
        await asyncio.sleep(0.1)
        listener.refuse_new()
        seen_off = asyncio.create_task(listener.see_off(DEADLINE_S))
        kept.writer.write(REQUEST)
        await asyncio.sleep(0.1)
        release.set()
        for caller in (running, kept):
            head = await caller.answer()
            assert head.startswith("HTTP/1.1 200")
            assert "connection: close" in head.lower()
            assert await caller.reader.read() == b""
        await seen_off

    serve(play)


def test_an_idle_connection_is_closed_when_it_was_idle_for_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_IDLE_GRACE_S", 0.2)

    async def play(listener: Listener, release: asyncio.Event, connect: Callable[[], Awaitable[Caller]]) -> None:
        idle = await connect()
        release.set()
        await idle.ask()
        listener.refuse_new()
        await listener.see_off(DEADLINE_S)
        assert await idle.reader.read() == b""

    serve(play)


def test_what_is_not_done_at_the_deadline_is_left_to_the_end() -> None:
    async def play(listener: Listener, _release: asyncio.Event, connect: Callable[[], Awaitable[Caller]]) -> None:
        running = await connect()
        running.writer.write(REQUEST)
        await asyncio.sleep(0.1)
        listener.refuse_new()
        await listener.see_off(0.3)
        assert not running.reader.at_eof()

    serve(play)


def test_a_connection_made_after_the_end_waits_for_the_next_owner_of_the_port() -> None:
    async def main() -> None:
        port_owner = bind_tcp("127.0.0.1", 0)
        port_owner.listen(16)
        port_owner.setblocking(False)
        port = int(port_owner.getsockname()[1])

        async def ok(_request: web.Request) -> web.Response:
            return web.Response(text="ok")

        def listener() -> Listener:
            app = web.Application()
            app.add_routes([web.get("/", ok)])
            return Listener(app)

        first, second = listener(), listener()
        await first.start(port_owner.dup())
        first.refuse_new()
        waiting = Caller(*await asyncio.open_connection("127.0.0.1", port))
        waiting.writer.write(REQUEST)
        await first.see_off(DEADLINE_S)
        await first.close()
        await second.start(port_owner.dup())
        async with asyncio.timeout(DEADLINE_S):
            assert (await waiting.answer()).startswith("HTTP/1.1 200")
        await second.close()
        port_owner.close()

    asyncio.run(main())
