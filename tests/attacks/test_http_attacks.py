"""Abuse of the daemon's listeners, byte by byte: what a hostile client or a browser page can send, and what it gets.

Each case runs against the real listeners in this process, on loopback ports of their own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.scrypt import scrypt_hash
from sbctl.base.secret import Secret
from sbctl.node.messages import AdminOperator
from sbctl.node.paths import node_paths
from sbctl.runtime.admin import AdminPlane
from sbctl.runtime.admin_access import Accounts
from sbctl.runtime.admin_desired import AdminDesired
from sbctl.runtime.admin_reach import Reach
from sbctl.runtime.admin_routes import ROUTES
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.drain import Drain
from sbctl.runtime.gateway.gateway import Gateway
from sbctl.runtime.gateway.server import GatewayLimits, GatewayServer
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.listeners import PROBE_ROUTES, Listener, ListenerLimits, read_body
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.processes import ProcessMemory
from sbctl.runtime.provision import quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import OriginMember
from tests.simulators.engine_world import EngineWorld, facts
from tests.simulators.runtime_world import Operator, content, member

PASSWORD = "correct horse"
NO_JOB = "0" * 26
NO_ARTIFACT = "0" * 64
VIEWER = AdminOperator(username="viewer", password_hash=scrypt_hash(b"only looks", log_n=10), role="read_only")
BASIC = "Basic " + base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
LIMITS = ListenerLimits(header_s=1.0, write_stall_s=1.0, idle_s=5.0, connections=8)
GATEWAY_LIMITS = GatewayLimits(header_s=1.0, body_s=2.0, write_stall_s=1.0, idle_s=5.0, connections=8)


class Target:
    """Both planes of one runtime."""

    def __init__(self, folder: Path, *, follow_events_s: float = 0.1) -> None:
        self.follow_events_s = follow_events_s
        self.database = folder / "runtime.db"
        self.store = RuntimeStore(self.database, folder / "bundle.json")
        self.metrics = RuntimeMetrics()
        self.world = EngineWorld(load_s=0)
        self.reconciler = Reconciler(
            scope="local",
            trust=Operator().trust,
            store=self.store,
            ports=self.world.ports(),
            clock=SYSTEM_CLOCK,
            drain_s=1,
            parallel_prepares=1,
            by_hand=True,
        )
        self.metrics.watch(self.reconciler)
        self.paths = node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)})
        self.listeners: list[Listener | GatewayServer] = []
        self.admin_port = self.data_port = 0
        self.seen: dict[Any, ProcessMemory] = {}
        self.cache_changes: dict[str, Any] = {}
        """How the host's cache is configured otherwise."""

    async def start(self) -> None:
        sock = bind_tcp("127.0.0.1", 0)
        self.admin_port = sock.getsockname()[1]
        self.admin = AdminPlane(
            self.reconciler,
            Jobs(self.store, SYSTEM_CLOCK),
            self.metrics,
            desired=AdminDesired(self.reconciler, authority="file_managed"),
            config_file=None,
            accounts=Accounts("admin", Secret(PASSWORD.encode()), (VIEWER,)),
            clock=SYSTEM_CLOCK,
            note=self.store.note,
            database=self.database,
            weights=self._cache_calls,
            requests_per_minute=100_000,
            follow_events_s=self.follow_events_s,
            reach=Reach("127.0.0.1", self.admin_port),
            seen=self.seen.get,
        ).app()
        await self._listen(Listener(self.admin, LIMITS), sock)
        sock = bind_tcp("127.0.0.1", 0)
        self.data_port = sock.getsockname()[1]
        gateway = Gateway(
            self.reconciler, self.metrics, KeyLimits(), Drain(self.paths), cast("Any", None), bound_to_loopback=True
        )
        await self._listen(GatewayServer(gateway, GATEWAY_LIMITS), sock)
        cold = member(facts(), "/engine", warm=False, pull="on_demand", cold_start="reject")
        desired = content({"q": cold}, origins={"ai.internal": OriginMember(models={"public": "q"})})
        await self.reconciler.apply_content(desired, quiet)

    def _cache_calls(self) -> CacheCalls:
        return replace(CacheCalls(ArtifactCache(self.paths.models), {}, budget_bytes=1 << 30), **self.cache_changes)

    async def _listen(self, listener: Listener | GatewayServer, sock: Any) -> None:
        self.listeners.append(listener)
        await listener.start(sock)

    def audited(self) -> list[str]:
        with sqlite3.connect(self.database) as raw_database:
            return [str(row[0]) for row in raw_database.execute("SELECT action FROM audit ORDER BY seq")]

    async def stop(self) -> None:
        for listener in self.listeners:
            await listener.close()
        await self.reconciler.shutdown(drain_s=1.0)
        self.store.close()


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    made = Target(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def raw(port: int, data: bytes, *, end: bool = False, seconds: float = 30.0) -> bytes:
    """Send bytes, read until the server closes or has answered once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(seconds):
            answer = b""
            while chunk := await reader.read(65536):
                answer += chunk
                if _is_complete(answer):
                    break
        return answer
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def _is_complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(found and lengths) and len(body) >= int(lengths[0].split(b":")[1])


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def request(
    target: Target, line: str, *headers: str, body: bytes = b"", host: str | None = None, authorized: bool = True
) -> bytes:
    rows = [f"Host: {host if host is not None else f'127.0.0.1:{target.admin_port}'}"] if host != "" else []
    if authorized:
        rows.append(f"Authorization: {BASIC}")
    rows.extend(headers)
    if body:
        rows.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"{line} HTTP/1.1", *rows, "", ""]).encode("latin-1") + body


STATUS = "GET /admin/model-host/status"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic ",
        "Basic !!!!",
        "Basic " + base64.b64encode(b"admin:").decode(),
        "Basic " + base64.b64encode(b"admin:wrong").decode(),
        "Basic " + base64.b64encode(b"root:correct horse").decode(),
        "Basic " + base64.b64encode(b"admin:correct horse\0").decode(),
        "Basic " + base64.b64encode(b"admin:" + b"x" * 5000).decode(),
        "Bearer correct horse",
        "Digest username=admin",
    ],
)
async def test_G1_wrong_credentials_get_one_answer(target: Target, authorization: str | None) -> None:
    headers = [] if authorization is None else [f"Authorization: {authorization}"]
    answer = await raw(target.admin_port, request(target, STATUS, *headers, authorized=False))
    assert status_of(answer) == 401
    assert body_of(answer) == {
        "error": "credentials are needed that hold here",
        "code": "unauthorized",
        "next_step": "HTTP Basic with the main account; operators log in by POST /admin/login",
    }
    assert b'WWW-Authenticate: Basic realm="sbproxy admin"' in answer
    assert b"Cache-Control: no-store" in answer


async def test_G1_a_source_that_keeps_guessing_has_to_wait(target: Target) -> None:
    wrong = request(target, STATUS, "Authorization: Basic d3Jvbmc6", authorized=False)
    statuses = [status_of(await raw(target.admin_port, wrong)) for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    answer = await raw(target.admin_port, request(target, STATUS))
    assert status_of(answer) == 429, "the right one has to wait, too, or guessing would go on"
    assert b"Retry-After: 1" in answer
    await asyncio.sleep(1.05)
    assert status_of(await raw(target.admin_port, request(target, STATUS))) == 200


@pytest.mark.parametrize(
    ("host", "extra", "expected"),
    [
        ("127.0.0.1:{port}", (), 200),
        ("localhost:{port}", (), 200),
        ("[::1]:{port}", (), 200),
        ("LOCALHOST:{port}", (), 200),
        ("evil.com:{port}", (), 403),
        ("127.0.0.1.evil:{port}", (), 403),
        ("127.0.0.1", (), 403),
        ("127.0.0.1:1", (), 403),
        ("localhost.:{port}", (), 403),
        ("127.1:{port}", (), 403),
        ("2130706433:{port}", (), 403),
        ("evil@127.0.0.1:{port}", (), 403),
        ("", (), 400),
        ("127.0.0.1:{port}", ("Host: evil.com",), 400),
        ("127.0.0.1:{port}", ("X-Forwarded-Host: evil.com",), 200),
    ],
)
async def test_G2_only_this_listener_s_own_names(
    target: Target, host: str, extra: tuple[str, ...], expected: int
) -> None:
    answer = await raw(target.admin_port, request(target, STATUS, *extra, host=host.format(port=target.admin_port)))
    assert status_of(answer) == expected or (expected == 400 and status_of(answer) == 403)


async def test_G2_an_absolute_target_is_refused(target: Target) -> None:
    for line in (
        f"GET http://127.0.0.1:{target.admin_port}/admin/model-host/status",
        "GET http://evil.com/admin/model-host/status",
        "OPTIONS *",
        "CONNECT evil.com:80",
    ):
        assert status_of(await raw(target.admin_port, request(target, line))) in (400, 403, 404, 405)


def _routes(target: Target) -> list[tuple[str, str]]:
    return [
        (route.method, _filled(route.resource.canonical))
        for route in target.admin.router.routes()
        if route.resource is not None
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (("Origin: http://evil.com", "Content-Type: application/json"), 403),
        (("Origin: null", "Content-Type: application/json"), 403),
        (("Origin: https://127.0.0.1:{port}", "Content-Type: application/json"), 403),
        (("Origin: http://127.0.0.1:1", "Content-Type: application/json"), 403),
        (("Referer: http://evil.com/x", "Content-Type: application/json"), 403),
        (("Referer: garbage", "Content-Type: application/json"), 403),
        (("Sec-Fetch-Site: cross-site", "Content-Type: application/json"), 403),
        (("Sec-Fetch-Site: same-site", "Content-Type: application/json"), 403),
        (("Content-Type: text/plain",), 415),
        (("Content-Type: application/x-www-form-urlencoded",), 415),
        (("Content-Type: multipart/form-data; boundary=x",), 415),
        ((), 415),
    ],
)
async def test_G3_no_page_changes_anything_through_a_browser(
    target: Target, headers: tuple[str, ...], expected: int
) -> None:
    body = b'{"deployment":"q"}'
    rows = [header.format(port=target.admin_port) for header in headers]
    for method, path in _routes(target):
        if method in ("POST", "PUT"):
            answer = await raw(target.admin_port, request(target, f"{method} {path}", *rows, body=body))
            assert status_of(answer) == expected, (method, path)
    assert target.store.jobs() == ()


async def test_G3_the_listener_s_own_pages_may(target: Target) -> None:
    origin = f"http://127.0.0.1:{target.admin_port}"
    rows = (f"Origin: {origin}", f"Referer: {origin}/x", "Sec-Fetch-Site: same-origin")
    assert status_of(await raw(target.admin_port, request(target, STATUS, *rows))) == 200


_PROBES = {("GET", path): (200, 200) for path in PROBE_ROUTES}
MATRIX: dict[tuple[str, str], tuple[int, int]] = {
    **_PROBES,
    ("POST", "/admin/login"): (400, 200),
    ("POST", "/admin/logout"): (200, 200),
    ("GET", "/admin/session"): (200, 200),
    ("GET", "/metrics"): (401, 200),
    ("GET", "/admin/model-host/status"): (401, 200),
    ("GET", "/admin/model-host/deployments"): (401, 200),
    ("PUT", "/admin/model-host/deployments"): (401, 403),
    ("POST", "/admin/reload"): (401, 403),
    ("GET", "/admin/model-host/catalog"): (401, 200),
    ("GET", "/admin/model-host/value"): (401, 200),
    ("GET", "/admin/model-host/files"): (401, 200),
    ("DELETE", f"/admin/model-host/artifacts/{NO_ARTIFACT}"): (401, 404),
    ("POST", "/admin/model-host/gc"): (401, 200),
    ("GET", "/admin/model-host/jobs"): (401, 200),
    ("GET", f"/admin/model-host/jobs/{NO_JOB}"): (401, 404),
    ("GET", f"/admin/model-host/jobs/{NO_JOB}/stream"): (401, 404),
    ("GET", "/admin/events"): (401, 200),
    ("GET", "/admin/events/stream"): (401, 200),
    ("POST", "/admin/model-host/load"): (401, 202),
    ("POST", "/admin/model-host/stop"): (401, 202),
    ("POST", "/admin/model-host/drain"): (401, 202),
    ("POST", "/admin/model-host/evict"): (401, 202),
    ("POST", "/admin/model-host/pull"): (401, 202),
    ("POST", "/admin/model-host/reset"): (401, 202),
    ("GET", "/admin/cluster/status"): (401, 404),
    ("GET", "/admin/cluster/deployments"): (401, 404),
    ("POST", "/admin/cluster/deployments"): (401, 404),
    ("GET", "/admin/cluster/placement/q"): (401, 404),
    ("GET", "/admin/cluster/actions"): (401, 404),
    ("POST", "/admin/cluster/nodes/w/evacuate"): (401, 404),
    ("POST", "/admin/cluster/nodes/w/restore"): (401, 404),
    ("POST", "/admin/cluster/nodes/w/confirm-lost"): (401, 404),
    ("POST", "/admin/cluster/deployments/q/retry"): (401, 404),
    ("GET", "/admin/cluster/vram"): (401, 404),
    ("GET", "/admin/cluster/artifacts"): (401, 404),
    ("GET", "/admin/cluster/metrics"): (401, 404),
}
"""Route → status without credentials, with them. A new route without an entry fails the test below."""


def _filled(path: str) -> str:
    return (
        path.replace("{job}", NO_JOB)
        .replace("{digest}", NO_ARTIFACT)
        .replace("{deployment}", "q")
        .replace("{node}", "w")
    )


OPEN_ROUTES = {route.path for route in ROUTES if route.role == "anyone"}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


async def _knock(target: Target, method: str, path: str, *, authorized: bool) -> int:
    body = b'{"deployment":"q"}' if method not in ("GET", "HEAD") else b""
    rows = ("Content-Type: application/json", "Connection: close")
    return status_of(
        await raw(target.admin_port, request(target, f"{method} {path}", *rows, body=body, authorized=authorized))
    )


async def test_G4_every_route_and_method_answers_as_the_table_says(target: Target) -> None:
    paths = {path for _, path in _routes(target)}
    assert {path for _, path in MATRIX} == paths
    assert set(MATRIX) == {(route.method, _filled(route.path)) for route in ROUTES}
    for path in sorted(paths):
        for method in METHODS:
            expected = MATRIX.get((method, path))
            if expected is None and method == "HEAD" and ("GET", path) in MATRIX:
                expected = MATRIX[("GET", path)]
            target_statuses = expected or (401, 405)
            if path in PROBE_ROUTES and expected is None:
                target_statuses = (405, 405)
            assert await _knock(target, method, path, authorized=True) == target_statuses[1], (method, path)
            seen = await _knock(target, method, path, authorized=False)
            assert seen in (target_statuses[0], 429, 401), (method, path)
            assert seen != 200 or path in OPEN_ROUTES


def _login(target: Target, name: str, password: str) -> bytes:
    body = json.dumps({"username": name, "password": password}).encode()
    return request(target, "POST /admin/login", "Content-Type: application/json", body=body, authorized=False)


async def _session(target: Target, name: str, password: str) -> tuple[str, str]:
    """The cookie's row and the CSRF token."""
    answer = await raw(target.admin_port, _login(target, name, password))
    assert status_of(answer) == 200, answer
    (row,) = (line for line in answer.decode().split("\r\n") if line.lower().startswith("set-cookie:"))
    for flag in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=28800"):
        assert flag in row
    return "Cookie: " + row.split(": ", 1)[1].split(";")[0], body_of(answer)["csrf_token"]


READER_FORBIDDEN = {(route.method, route.path) for route in ROUTES if route.role == "admin"}


async def test_G4_a_role_may_what_the_table_of_routes_says(target: Target) -> None:
    cookie, csrf = await _session(target, "viewer", "only looks")
    rows = (cookie, f"X-CSRF-Token: {csrf}", "Content-Type: application/json")
    assert len(READER_FORBIDDEN) == 15
    for route in ROUTES:
        if route.handler in ("login", "logout"):
            continue
        path = _filled(route.path)
        body = b'{"deployment":"q"}' if route.method != "GET" else b""
        asked = request(target, f"{route.method} {path}", *rows, body=body, authorized=False)
        status = status_of(await raw(target.admin_port, asked))
        assert (status == 403) is ((route.method, route.path) in READER_FORBIDDEN), (route.path, status)
    assert target.store.jobs() == ()


@pytest.mark.parametrize("shown", [(), ("X-CSRF-Token: 0",), ("X-CSRF-Token: " + "0" * 32,)])
async def test_G3_a_cookie_alone_changes_nothing(target: Target, shown: tuple[str, ...]) -> None:
    cookie, _csrf = await _session(target, "admin", PASSWORD)
    rows = (cookie, *shown, "Content-Type: application/json")
    asked = request(target, "POST /admin/model-host/pull", *rows, body=b'{"deployment":"q"}', authorized=False)
    answer = await raw(target.admin_port, asked)
    assert (status_of(answer), body_of(answer)["code"]) == (403, "csrf_missing")
    assert target.store.jobs() == ()


async def test_a_session_changes_with_its_token_is_named_in_the_audit_and_ends_by_logout(target: Target) -> None:
    cookie, csrf = await _session(target, "admin", PASSWORD)
    rows = (cookie, f"X-CSRF-Token: {csrf}", "Content-Type: application/json")
    asked = request(target, "POST /admin/model-host/pull", *rows, body=b'{"deployment":"q"}', authorized=False)
    assert status_of(await raw(target.admin_port, asked)) == 202
    who = request(target, "GET /admin/session", cookie, authorized=False)
    shown = body_of(await raw(target.admin_port, who))
    assert (shown["username"], shown["role"], shown["via_session"], shown["csrf_token"]) == (
        "admin",
        "admin",
        True,
        csrf,
    )
    out = request(target, "POST /admin/logout", cookie, "Content-Type: application/json", body=b"{}", authorized=False)
    assert status_of(await raw(target.admin_port, out)) == 200
    assert body_of(await raw(target.admin_port, who)) == {"authenticated": False}
    assert status_of(await raw(target.admin_port, asked)) == 401
    assert target.audited() == ["login", "job.pull"]


@pytest.mark.parametrize(
    "token",
    ["", "x", "x.y", "a" * 5000, "é", "eA.eA", "YWRtaW58YWRtaW58OTk5OTk5OTk5OTl8MDA.AAAA"],
)
async def test_G1_a_forged_cookie_is_nobody(target: Target, token: str) -> None:
    asked = request(target, STATUS, f"Cookie: sb_admin_session={token}", authorized=False)
    assert status_of(await raw(target.admin_port, asked)) == 401
    body = body_of(await raw(target.admin_port, request(target, "GET /admin/session", authorized=False)))
    assert body == {"authenticated": False}


async def test_G1_logins_that_fail_wait_and_operators_have_no_basic(target: Target) -> None:
    basic = base64.b64encode(b"viewer:only looks").decode()
    asked = request(target, STATUS, f"Authorization: Basic {basic}", authorized=False)
    assert status_of(await raw(target.admin_port, asked)) == 401
    seen = [
        status_of(await raw(target.admin_port, _login(target, name, "wrong")))
        for name in ("viewer", "admin", "nobody", "viewer", "viewer", "viewer")
    ]
    assert seen[:3] == [401, 401, 401]
    assert seen[-1] == 429
    assert status_of(await raw(target.admin_port, _login(target, "admin", PASSWORD))) == 429


async def test_G5_a_header_that_does_not_come_is_not_waited_for(target: Target) -> None:
    for port in (target.admin_port, target.data_port):
        began_s = asyncio.get_running_loop().time()
        for data in (b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"G"):
            assert status_of(await raw(port, data)) in (0, 400)
        assert asyncio.get_running_loop().time() - began_s < 25


async def test_G5_a_header_that_trickles_is_cut_and_others_are_served(target: Target) -> None:
    async def trickle() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.data_port)
        try:
            for byte in b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
            return await reader.read()
        except (ConnectionResetError, BrokenPipeError):
            return b"cut"
        finally:
            writer.close()

    slow = [asyncio.create_task(trickle()) for _ in range(4)]
    await asyncio.sleep(0.1)
    answer = await raw(target.data_port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_of(answer) == 200
    async with asyncio.timeout(30):
        assert set(await asyncio.gather(*slow)) <= {b"cut", b""}


async def test_G5_an_answer_that_is_not_read_ends_the_connection() -> None:
    ended = asyncio.Event()

    async def endless(asked: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(asked)
        try:
            while True:
                await response.write(b"x" * 65536)
        finally:
            ended.set()

    app = web.Application()
    app.router.add_get("/endless", endless)
    listener, sock = Listener(app, LIMITS), bind_tcp("127.0.0.1", 0)
    await listener.start(sock)
    reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1], limit=1024)
    writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(30):
        await ended.wait()
    writer.close()
    del reader
    await listener.close()


async def test_G5_a_body_that_trickles_has_a_deadline() -> None:
    async def read(asked: web.Request) -> web.Response:
        from sbctl.base.errors import InputError

        try:
            await read_body(asked, max_bytes=100, deadline_s=0.2)
        except InputError as error:
            return web.Response(status=400, text=error.code)
        return web.Response()

    app = web.Application()
    app.router.add_post("/", read)
    listener, sock = Listener(app, LIMITS), bind_tcp("127.0.0.1", 0)
    await listener.start(sock)
    answer = await raw(sock.getsockname()[1], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
    assert status_of(answer) == 400
    await listener.close()


async def test_G6_beyond_the_cap_health_answers_and_the_rest_is_refused(target: Target) -> None:
    held = [await asyncio.open_connection("127.0.0.1", target.data_port) for _ in range(LIMITS.connections)]
    try:
        answer = await raw(target.data_port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(answer) == 200
        answer = await raw(target.data_port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status_of(answer) == 503
        assert body_of(answer)["error"]["code"] == "overloaded"
        more = [await asyncio.open_connection("127.0.0.1", target.data_port) for _ in range(40)]
        for _, writer in more:
            writer.close()
    finally:
        for _, writer in held:
            writer.close()


@pytest.mark.parametrize(
    ("head", "payload"),
    [
        ("Content-Length: 17000000", b""),
        ("Content-Length: 17000000", b"{}"),
        ("Transfer-Encoding: chunked", b"100000\r\n" + b"x" * 0x100000 + b"\r\n"),
    ],
)
async def test_G7_a_body_over_the_cap_is_413_before_it_is_read(target: Target, head: str, payload: bytes) -> None:
    rows = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{head}\r\n\r\n"
    data = rows.encode() + payload * (17 if "chunked" in head else 1)
    answer = await raw(target.data_port, data)
    assert status_of(answer) in (413, 0), "refused, or cut when the client does not stop to read"
    admin = request(target, "POST /admin/model-host/load", "Content-Type: application/json", "Content-Length: 600000")
    answer = await raw(target.admin_port, admin)
    assert (status_of(answer), body_of(answer)["code"]) == (413, "request_body_too_large")


async def test_G7_a_lying_length_and_a_million_tiny_chunks_harm_nobody(target: Target) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = await raw(target.data_port, head + b"Content-Length: 50\r\n\r\n{}", end=True)
    assert status_of(answer) in (400, 0)
    tiny = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n{\r\n" * 100_000 + b"0\r\n\r\n"
    assert status_of(await raw(target.data_port, tiny, seconds=20)) in (400, 0)


SMUGGLED: list[tuple[str, bytes]] = [
    ("both lengths", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two different lengths", b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    ("list of lengths", b"Content-Length: 5, 5\r\n\r\nhello"),
    ("signed length", b"Content-Length: +5\r\n\r\nhello"),
    ("negative length", b"Content-Length: -5\r\n\r\nhello"),
    ("hexadecimal length", b"Content-Length: 0x5\r\n\r\nhello"),
    ("unknown coding", b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("chunked not last", b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("chunked twice", b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("space before the colon", b"Content-Length : 5\r\n\r\nhello"),
    ("folded header", b"X-A: b\r\n Content-Length: 5\r\n\r\nhello"),
    ("bare carriage return", b"X-A: b\rContent-Length: 5\r\n\r\nhello"),
    ("vertical tab before the value", b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    ("control character in a name", b"X\x01A: b\r\n\r\n"),
    ("NUL in a value", b"X-A: b\x00c\r\n\r\n"),
    ("broken chunk size", b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n"),
]


@pytest.mark.parametrize(("name", "rest"), SMUGGLED, ids=[name for name, _ in SMUGGLED])
async def test_G8_ambiguous_framing_is_400_and_ends_the_connection(target: Target, name: str, rest: bytes) -> None:
    smuggled = b"GET /admin/model-host/status HTTP/1.1\r\nHost: x\r\n\r\n"
    data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + rest + smuggled
    reader, writer = await asyncio.open_connection("127.0.0.1", target.data_port)
    writer.write(data)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    assert status_of(answer) == 400, name
    assert answer.count(b"HTTP/1.") == 1, "nothing behind it is read as a request"


async def test_G8_headers_beyond_16_kib_are_refused(target: Target) -> None:
    for rows in (
        b"X-A: " + b"a" * 20_000 + b"\r\n",
        b"".join(b"X-%d: %b\r\n" % (n, b"a" * 400) for n in range(60)),
        b"X: y\r\n" * 500,
    ):
        answer = await raw(target.data_port, b"GET /livez HTTP/1.1\r\nHost: x\r\n" + rows + b"\r\n")
        assert status_of(answer) in (400, 431, 0)


@pytest.mark.parametrize(
    "path",
    [
        "//admin/model-host/status",
        "/admin//model-host/status",
        "/health/../admin/model-host/status",
        "/livez/%2e%2e/admin/model-host/status",
        "/%61dmin/model-host/status",
        "/admin/model-host/status/",
        "/admin/model-host/status;x=/livez",
        "/admin%2fmodel-host%2fstatus",
        "/ADMIN/model-host/status",
        "/admin/model-host/status?/livez",
        "/livez?/admin/model-host/status",
        "/livez#/admin/model-host/status",
        "/\\admin",
        "/livez%00",
    ],
)
async def test_G9_however_a_path_is_written_guard_and_route_see_the_same(target: Target, path: str) -> None:
    without = await raw(target.admin_port, request(target, f"GET {path}", authorized=False))
    status = status_of(without)
    assert status in (400, 401) or (status == 200 and body_of(without) == {"status": "ok"})


async def _chat(target: Target, body: bytes, *rows: str) -> bytes:
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *rows,
    ]
    return await raw(target.data_port, "\r\n".join([*head, "", ""]).encode() + body)


@pytest.mark.parametrize(
    "body",
    [b'{"deployment":"q","deployment":"q"}', b'{"deployment":NaN}', b"[" * 100, b'{"deployment":9007199254740993}', b"\xff\xfe{\x00}\x00", b'{"deployment":"q"} x', b'"q"', b'{"deployment":5}', b'{"deployment":"q","force":true}', b""],
)  # fmt: skip
async def test_G10_admin_bodies_are_strict_json(target: Target, body: bytes) -> None:
    answer = await raw(
        target.admin_port, request(target, "POST /admin/model-host/stop", "Content-Type: application/json", body=body)
    )
    assert (status_of(answer), body_of(answer)["code"]) == (400, "invalid_body")


async def test_an_unknown_deployment_is_404_and_makes_no_job(target: Target) -> None:
    asked = request(target, "POST /admin/model-host/load", "Content-Type: application/json", body=b'{"deployment":"x"}')
    answer = await raw(target.admin_port, asked)
    assert (status_of(answer), body_of(answer)["code"]) == (404, "unknown_deployment")
    assert target.store.jobs() == ()


async def test_a_load_is_a_job_that_can_be_followed(target: Target) -> None:
    asked = request(target, "POST /admin/model-host/load", "Content-Type: application/json", body=b'{"deployment":"q"}')
    queued = body_of(await raw(target.admin_port, asked))
    assert queued["state"] == "queued"
    for _ in range(200):
        job = body_of(await raw(target.admin_port, request(target, f"GET {queued['poll_url']}"))).get("job", {})
        if job.get("state") == "ready":
            break
        await asyncio.sleep(0.02)
    assert (job["kind"], job["subject"], job["state"], job["error"]) == ("load", "q", "ready", None)
    status = body_of(await raw(target.admin_port, request(target, STATUS)))
    assert status["serving"] is True
    row = status["deployments"][0]
    assert (row["deployment"], row["state"], row["engine"], row["generation"]) == ("q", "ready", "llama_cpp", 1)
    assert row["job_id"] == job["id"]


async def _to_the_end(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


async def test_a_job_s_progress_is_a_stream_that_ends_and_goes_on_behind_a_step(target: Target) -> None:
    asked = request(target, "POST /admin/model-host/pull", "Content-Type: application/json", body=b'{"deployment":"q"}')
    queued = body_of(await raw(target.admin_port, asked))
    stream = f"GET {queued['poll_url']}/stream"
    first = await _to_the_end(target.admin_port, request(target, stream, "Connection: close"))
    assert status_of(first) == 200
    assert b"Content-Type: text/event-stream" in first
    events = [line for line in first.split(b"\n") if line.startswith((b"id: ", b"data: "))]
    assert events[0] == b"id: 1"
    assert b'"state": "queued"' in events[1]
    assert b'"state": "ready"' in events[-1]
    last = events[-2].removeprefix(b"id: ").decode()
    behind = request(target, stream, f"Last-Event-ID: {int(last) - 1}", "Connection: close")
    again = await _to_the_end(target.admin_port, behind)
    assert again.count(b"data: ") == 1
    assert b'"state": "ready"' in again
    bad = await raw(target.admin_port, request(target, "GET /admin/model-host/jobs/01"))
    assert status_of(bad) == 400


async def test_what_cannot_be_done_to_a_deployment_is_the_job_s_end(target: Target) -> None:
    body = b'{"deployment":"q"}'
    for action, says in (("load", None), ("reset", "deployment_healthy"), ("evict", None), ("drain", None)):
        asked = request(target, f"POST /admin/model-host/{action}", "Content-Type: application/json", body=body)
        queued = body_of(await raw(target.admin_port, asked))
        stream = request(target, f"GET {queued['poll_url']}/stream", "Connection: close")
        await _to_the_end(target.admin_port, stream)
        job = body_of(await raw(target.admin_port, request(target, f"GET {queued['poll_url']}")))["job"]
        assert (job["state"], (job["error"] or "").split(":")[0] or None) == ("failed" if says else "ready", says)
    assert target.store.stopped() == {"q"}


async def test_G22_names_from_requests_never_become_labels_or_lines(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        body = json.dumps(
            {"model": f"evil\n{number}", "messages": [{"role": "user", "content": "x\r\nINFO forged"}]}
        ).encode()
        answer = await _chat(target, body, f"X-Request-Id: evil{number}", "X-Priority: interactive")
        assert status_of(answer) == 404
        assert b"evil" not in answer
    answer = await raw(target.admin_port, request(target, "GET /metrics"))
    assert status_of(answer) == 200
    assert b"evil" not in answer
    assert b'sbproxy_model_host_deployment_state{deployment="q"' in answer
    printed = capsys.readouterr()
    assert not any(line.startswith("INFO forged") for line in (printed.out + printed.err).splitlines())


async def test_G23_answers_hold_no_host_port_path_or_engine_text(target: Target) -> None:
    models = await raw(target.data_port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
    refused = await _chat(target, b'{"messages":[{"role":"user","content":"Hi"}]}')
    assert (status_of(models), status_of(refused)) == (200, 503)
    error = body_of(refused)["error"]
    assert error["code"] == "no_ready_replica"
    assert error["retryable"] is True
    assert b"Retry-After: 1" in refused
    assert error["request_id"].encode() in refused.partition(b"\r\n\r\n")[0]
    for answer in (models, refused):
        for leak in (b"/weights", b"/engine", b"127.0.0.1", b'local"', b"aiohttp", b"Python", b"llama"):
            assert leak not in answer, leak


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("GET /v1/chat/completions", 405),
        ("POST /v1/models", 405),
        ("POST /v1/embeddings", 415),
        ("POST /v1/moderations", 404),
        ("POST /v1/completions", 415),
        ("GET /slots", 404),
        ("GET /", 404),
    ],
)
async def test_only_what_is_offered_is_there(target: Target, head: str, expected: int) -> None:
    answer = await raw(target.data_port, f"{head} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
    assert status_of(answer) == expected
    assert set(body_of(answer)) == {"error"}


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("http://evil.example", 403),
        ("http://evil.example:8080", 403),
        ("null", 403),
        ("", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost:3000", 503),
        ("http://[::1]:3000", 503),
        ("https://ai.internal", 503),
    ],
)
async def test_G2_without_keys_a_rebound_page_gets_no_model(target: Target, page: str, status: int) -> None:
    body = b'{"model": "public", "messages": [{"role": "user", "content": "hi"}]}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nOrigin: {page}\r\n"
    rest = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await raw(target.data_port, (head + rest).encode() + body)
    assert status_of(answer) == status


@pytest.mark.parametrize(
    "line",
    [
        b"Authorization: Bearer canary-77aa\x00\r\n",
        b"Authorization: Bearer canary-77aa" + b"x" * 9000 + b"\r\n",
        b"Host: y\r\nX: canary-77aa\r\n",
        b"canary-77aa\r\n",
    ],
)
async def test_G23_a_malformed_request_is_not_repeated(
    target: Target, line: bytes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for port in (target.data_port, target.admin_port):
        answer = await raw(port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + line + b"\r\n")
        assert status_of(answer) == 400
        assert b"canary" not in answer
        assert b"Server: sbctl\r\n" in answer
        assert body_of(answer)["error"]["code"] == "invalid_request"
    said = "".join(capsys.readouterr()) + caplog.text
    assert "canary" not in said


@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_G7_a_large_body_that_comes_at_once_is_read(target: Target, size: int) -> None:
    body = b'{"model": "public", "metadata": "%b", "messages": [{"role": "user", "content": "Hi"}]}' % (b"x" * size)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    answer = await raw(target.data_port, head % len(body) + body)
    assert status_of(answer) == 503
    assert body_of(answer)["error"]["code"] == "no_ready_replica"


async def test_G8_a_header_in_any_pieces_is_counted_once(target: Target) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
    for data, status in ((head + b"X: y\r\n\r\n", 200), (b"\r\n" * 3 + head + b"X: y\r\n" * 4000, 0)):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.data_port)
        try:
            for at in range(0, len(data), 7 if status else 1000):
                writer.write(data[at : at + (7 if status else 1000)])
                await asyncio.sleep(0)
            async with asyncio.timeout(30):
                answer = await reader.read(4096)
        except ConnectionError:
            answer = b""
        writer.close()
        assert (status_of(answer) if answer else 0) in (status, status or 400)
