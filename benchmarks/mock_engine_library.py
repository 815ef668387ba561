#!/usr/bin/env python3
"""`mock_engine.py` behind an HTTP library: what an engine costs whose HTTP is not written for the benchmark, about 100 µs a request.

mock_engine_library.py --host 127.0.0.1 --port P ...
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import uvloop
from aiohttp import web
from mock_engine import END_EVENTS, METRICS, PROPS, TOKEN_EVENT, WHOLE_DOCUMENT, tells_itself


async def answer(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if not asked.get("stream"):
        return web.json_response(WHOLE_DOCUMENT)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count, pause_s = int(asked.get("max_tokens", 2)), int(asked.get("seed", 0)) / 1000
    if not pause_s:
        await response.write(TOKEN_EVENT * min(count, 2) + b"".join(END_EVENTS))
        return response
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    for _ in range(count):
        await response.write(TOKEN_EVENT)
        due_s += pause_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
    await response.write(b"".join(END_EVENTS))
    return response


async def props(_request: web.Request) -> web.Response:
    return web.json_response(PROPS)


async def metrics(_request: web.Request) -> web.Response:
    return web.Response(body=METRICS)


async def well(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def serve(argv: list[str]) -> None:
    flags = dict(itertools.pairwise(argv))
    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    app.router.add_get("/props", props)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/{path:.*}", well)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host = flags.get("--host", "127.0.0.1")
    site: web.BaseSite
    site = web.UnixSite(runner, host) if host.startswith("/") else web.TCPSite(runner, host, int(flags["--port"]))
    await site.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if not tells_itself(sys.argv[1:]):
        uvloop.run(serve(sys.argv[1:]))
