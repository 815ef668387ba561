#!/usr/bin/env python3
"""What a proxy in Python costs that does nothing but pass on: both ends parsed in C, kept connections, no key, no queue, no limit, no count.

    bare_proxy.py PORT ENGINE_PORT

The distance between it and the gateway is what the gateway's checks cost; the distance between nginx and it is what the language costs.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop
from httptools import HttpRequestParser, HttpResponseParser


class Upstream(asyncio.Protocol):
    """One kept connection to the engine; its answer goes to `client`, as it comes."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.parser = HttpResponseParser(self)
        self.is_complete = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def on_message_complete(self) -> None:
        self.is_complete = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        assert self.client is not None
        self.client.transport.write(data)
        if self.is_complete:
            self.is_complete = False
            self.client = None
            IDLE.append(self)


IDLE: list[Upstream] = []


class Client(asyncio.Protocol):
    def __init__(self, engine_port: int) -> None:
        self.engine_port = engine_port
        self.parser = HttpRequestParser(self)
        self.is_complete = False
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def on_message_complete(self) -> None:
        self.is_complete = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.buffer += data
        if self.is_complete:
            self.is_complete = False
            request, self.buffer = self.buffer, b""
            if IDLE:
                self.send(IDLE.pop(), request)
            else:
                asyncio.get_running_loop().create_task(self.connect(request))

    async def connect(self, request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(Upstream, "127.0.0.1", self.engine_port)
        self.send(upstream, request)

    def send(self, upstream: Upstream, request: bytes) -> None:
        upstream.client = self
        upstream.transport.write(request)


async def main(port: int, engine_port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Client(engine_port), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
