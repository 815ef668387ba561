"""Who may use the admin API: checked before any route, the same for every route, in this order.

Host        exactly one, naming this listener with its port (DNS rebinding)
cross-site  no foreign Origin, Referer or Sec-Fetch-Site: a page in a browser never gets through
probes      /health, /healthz, /readyz, /livez need nothing more
credentials HTTP Basic, compared in constant time; after 5 failures of a source, it waits (1 s, doubled, at most 60 s)
changes     application/json only, which a form or a simple cross-site request cannot send
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections import OrderedDict
from typing import Any, Final

from aiohttp import web
from yarl import URL

from sbctl.base import strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.listeners import PROBE_ROUTES, Handler
from sbctl.runtime.routes import is_loopback

__all__ = ["AdminGuard"]

_FREE_FAILURES: Final = 5
_BACKOFF_CAP_S: Final = 60.0
_SOURCES_MAX: Final = 1024
_READING: Final = frozenset({"GET", "HEAD"})
_HEADER_MAX_CHARS: Final = 2048


class AdminGuard:
    """Stateless but for the failures of each source."""

    def __init__(self, username: str, password: Secret, *, bind: str, port: int) -> None:
        self._username = username
        self._expected = hashlib.sha256(username.encode() + b":" + password.reveal()).digest()
        names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(bind) else []
        if not is_loopback(bind) or bind not in ("127.0.0.1", "::1"):
            names.append(f"[{bind}]" if ":" in bind else bind)
        self._hosts = frozenset(f"{name}:{port}" for name in names)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def middleware(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_host(request)
            self._check_site(request)
            if request.match_info.route.resource is None or _path(request) not in PROBE_ROUTES:
                self._check_credentials(request)
                ACTING.set(Actor(self._username, "admin", f"admin {request.remote or 'unix'}"))
                if request.method not in _READING and request.content_type != "application/json":
                    raise RefusedError("unsupported_media_type", "changes are application/json")
            return await handler(request)

        return guard

    def parse(self, data: bytes) -> dict[str, Any]:
        """A JSON object, strictly. Raises InputError `invalid_body`."""
        try:
            document = strict_json.loads(data, max_bytes=ADMIN_BODY_MAX_BYTES)
        except InputError as error:
            raise InputError("invalid_body", error.message) from None
        if not isinstance(document, dict):
            raise InputError("invalid_body", "the body is a JSON object")
        return document

    def _check_host(self, request: web.Request) -> None:
        given = request.headers.getall("Host", [])
        if len(given) != 1 or given[0].lower() not in self._hosts or request.raw_path[:1] != "/":
            raise RefusedError("bad_host", "this is not a name of the admin API")

    def _check_site(self, request: web.Request) -> None:
        origins = request.headers.getall("Origin", [])
        referers = request.headers.getall("Referer", [])
        site = request.headers.get("Sec-Fetch-Site", "none")
        foreign = any(origin not in self._origins for origin in origins)
        foreign = foreign or any(_origin(referer) not in self._origins for referer in referers)
        if foreign or site not in ("none", "same-origin"):
            raise RefusedError("cross_site_refused", "requests from another site are refused")

    def _check_credentials(self, request: web.Request) -> None:
        source = request.remote or ""
        now_s = asyncio.get_running_loop().time()
        count, blocked_until_s = self._failures.get(source, (0, 0.0))
        if now_s < blocked_until_s:
            wait_s = max(1, round(blocked_until_s - now_s))
            raise RefusedError("rate_limited", "too many wrong credentials", detail={"retry_after_s": wait_s})
        if hmac.compare_digest(_presented(request), self._expected):
            self._failures.pop(source, None)
            return
        count += 1
        delay_s = 0.0 if count < _FREE_FAILURES else min(_BACKOFF_CAP_S, 2.0 ** (count - _FREE_FAILURES))
        self._failures[source] = (count, now_s + delay_s)
        self._failures.move_to_end(source)
        if len(self._failures) > _SOURCES_MAX:
            self._failures.popitem(last=False)
        raise RefusedError("unauthorized", "credentials are needed")


def _path(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def _presented(request: web.Request) -> bytes:
    """A digest of what was presented, so that every comparison is of 32 bytes; of nothing when it is no Basic header."""
    header = request.headers.get("Authorization", "")
    scheme, _, encoded = header.partition(" ")
    try:
        usable = scheme.lower() == "basic" and len(header) <= _HEADER_MAX_CHARS
        pair = base64.b64decode(encoded.strip(), validate=True) if usable else b""
    except (binascii.Error, ValueError):
        pair = b""
    return hashlib.sha256(pair).digest()


def _origin(url: str) -> str:
    try:
        return str(URL(url).origin())
    except ValueError:
        return ""
