#!/usr/bin/env python3
"""A stand-in for an engine that costs next to nothing: says that it is llama-server b9905, answers at once or at a pace, counts nothing.

    mock_engine.py --host 127.0.0.1 --port P ...        a chat answer of `max_tokens` tokens; `seed` is the pause between two in ms

`"stream":true` gets events, anything else one document; what is asked at a pace of 0 comes in one write.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
PAUSE = re.compile(rb'"seed": ?(\d+)')
LENGTH = re.compile(rb"content-length: ?(\d+)", re.IGNORECASE)
HELP = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "engines" / "llama_server_b9905_help.txt"
HEAD = {"id": "chatcmpl-1", "created": 0, "model": "q", "object": "chat.completion.chunk"}


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({**document, **HEAD}, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


TOKEN_EVENT = _event({"choices": [{"index": 0, "finish_reason": None, "delta": {"content": " token"}}]})
END_EVENTS = (
    _event({"choices": [{"index": 0, "finish_reason": "length", "delta": {}}]}),
    _event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}),
    b"data: [DONE]\n\n",
)
TOKEN = _chunk(TOKEN_EVENT)
END = b"".join(map(_chunk, END_EVENTS)) + b"0\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _json(document: Any) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


WHOLE_DOCUMENT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 0,
    "model": "q",
    "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": " token token"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
WHOLE = _json(WHOLE_DOCUMENT)
PROPS = {"default_generation_settings": {"n_ctx": 1 << 20}, "total_slots": 256}
METRICS = b"llamacpp:prompt_tokens_total 0\n"


class Engine(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = b""
        self.gone = False

    def connection_lost(self, _exc: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            length = int(found[1]) if (found := LENGTH.search(head)) else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET /props"):
            self.transport.write(_json(PROPS))
        elif head.startswith(b"GET /metrics"):
            self.transport.write(_json(METRICS))
        elif head.startswith(b"GET"):
            self.transport.write(_json({"status": "ok"}))
        elif b'"stream":true' not in body and b'"stream": true' not in body:
            self.transport.write(WHOLE)
        else:
            count = int(found[1]) if (found := TOKENS.search(body)) else 2
            pause_ms = int(found[1]) if (found := PAUSE.search(body)) else 0
            if pause_ms:
                asyncio.get_running_loop().create_task(self.pace(count, pause_ms / 1000))
            else:
                self.transport.write(STREAM + TOKEN * min(count, 2) + END)

    async def pace(self, count: int, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.transport.write(STREAM)
        due_s = loop.time()
        for _ in range(count):
            if self.gone:
                return
            self.transport.write(TOKEN)
            due_s += pause_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        self.transport.write(END)


async def serve(argv: list[str]) -> None:
    flags = dict(itertools.pairwise(argv))
    loop = asyncio.get_running_loop()
    host = flags.get("--host", "127.0.0.1")
    if host.startswith("/"):
        server = await loop.create_unix_server(Engine, host)
    else:
        server = await loop.create_server(Engine, host, int(flags["--port"]))
    await server.serve_forever()


def tells_itself(argv: list[str]) -> bool:
    """What llama-server prints of itself, where it is asked that."""
    if "--version" in argv:
        sys.stderr.write("version: 9905 (024c46ae4)\nbuilt with nothing for Linux x86_64\n")
        return True
    if "--help" in argv:
        sys.stdout.write(HELP.read_text())
        return True
    return False


def main(argv: list[str]) -> None:
    if tells_itself(argv):
        return
    import uvloop

    uvloop.run(serve(argv))


if __name__ == "__main__":
    main(sys.argv[1:])
