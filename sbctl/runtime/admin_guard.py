"""Who may use the admin API: checked before any route, the same for every route, in this order.

reach       the address, the Host header, no other site's page (`admin_reach`)
probes      /health, /healthz, /readyz, /livez need nothing more
rate        so many requests a minute from one address, ten times as many from all
credentials a session's cookie, or HTTP Basic of the main account, compared in constant time; a source that keeps failing waits
            (`guessing`). Routes for anyone need none
CSRF        a change by cookie shows the session's token in X-CSRF-Token
rights      the role that the table of routes asks for
changes     application/json only, which a form or a simple cross-site request cannot send
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from typing import Any, Final

from aiohttp import web

from sbctl.base import strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.admin_access import COOKIE, Accounts, Principal, Sessions
from sbctl.runtime.admin_reach import Reach
from sbctl.runtime.admin_routes import route_of
from sbctl.runtime.failed_logins import FailedLogins
from sbctl.runtime.guessing import Guessing
from sbctl.runtime.listeners import PROBE_ROUTES, Handler
from sbctl.runtime.rate_limit import RateLimiter

__all__ = ["PRINCIPAL", "AdminGuard", "basic_of"]

PRINCIPAL: Final = web.RequestKey("principal", Principal)
"""Of a request that showed who asks."""

_READING: Final = frozenset({"GET", "HEAD"})
_HEADER_MAX_CHARS: Final = 2048
_ALL_ADDRESSES: Final = 10
"""Together, in requests of one address."""


class AdminGuard:
    """Keeps the failures and the rate of each source, and the sessions."""

    def __init__(
        self,
        accounts: Accounts,
        sessions: Sessions,
        *,
        reach: Reach,
        requests_per_minute: int,
        failed_logins: FailedLogins,
    ) -> None:
        self._accounts = accounts
        self._sessions = sessions
        self._per_minute = requests_per_minute
        self._reach = reach
        self._guessing = Guessing()
        self._rates = RateLimiter()
        self._failed_logins = failed_logins

    def middleware(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._reach.check(request)
            if request.match_info.route.resource is not None and _path(request) in PROBE_ROUTES:
                return await handler(request)
            self._check_rate(request)
            self._admit(request)
            if request.method not in _READING and request.content_type != "application/json":
                raise RefusedError(
                    "unsupported_media_type",
                    "changes are application/json",
                    next_step="send Content-Type: application/json, also where there is no body",
                )
            return await handler(request)

        return guard

    def _admit(self, request: web.Request) -> None:
        route = route_of(request.method, _path(request))
        principal = self._session(request)
        if route is not None and route.role == "anyone":
            if principal is not None:
                request[PRINCIPAL] = principal
            return
        if principal is None:
            self.check_wait(request)
            presented = basic_of(request)
            principal = None if presented is None else self._accounts.basic(*presented)
            if principal is None:
                self.failed(request, None if presented is None else presented[0])
                raise RefusedError(
                    "unauthorized",
                    "credentials are needed that hold here",
                    next_step="HTTP Basic with the main account; operators log in by POST /admin/login",
                )
            self.succeeded(request, principal)
        request[PRINCIPAL] = principal
        ACTING.set(Actor(principal.name, principal.role, f"admin {request.remote or 'unix'}"))
        if request.method in _READING:
            return
        shown = request.headers.get("X-CSRF-Token", "")
        if principal.nonce is not None and not hmac.compare_digest(shown.encode(), principal.nonce.encode()):
            raise RefusedError(
                "csrf_missing",
                "CSRF token missing or invalid",
                next_step="send the csrf_token of the login, or of GET /admin/session, as X-CSRF-Token",
            )
        if principal.role != "admin" and (route is None or route.role == "admin"):
            raise RefusedError("forbidden", "this account may read, and change nothing")

    def _session(self, request: web.Request) -> Principal | None:
        token = request.cookies.get(COOKIE)
        return None if token is None else self._sessions.of(token)

    def parse(self, data: bytes, *, max_bytes: int = ADMIN_BODY_MAX_BYTES) -> dict[str, Any]:
        """A JSON object, strictly. Raises InputError `invalid_body`."""
        try:
            document = strict_json.loads(data, max_bytes=max_bytes)
        except InputError as error:
            raise InputError("invalid_body", error.message) from None
        if not isinstance(document, dict):
            raise InputError("invalid_body", "the body is a JSON object")
        return document

    def _check_rate(self, request: web.Request) -> None:
        now_s = asyncio.get_running_loop().time()
        self._rates.take(f"address {request.remote or ''}", per_minute=self._per_minute, now_s=now_s)
        self._rates.take("all", per_minute=self._per_minute * _ALL_ADDRESSES, now_s=now_s)

    def check_wait(self, request: web.Request) -> None:
        """Raises RefusedError `rate_limited` while a source has to wait after wrong credentials."""
        self._guessing.check(request.remote or "", now_s=asyncio.get_running_loop().time())

    def succeeded(self, request: web.Request, principal: Principal) -> None:
        self._guessing.succeeded(request.remote or "", principal.name)

    def failed(self, request: web.Request, name: str | None) -> None:
        """Wrong credentials are told in the audit, and their source may have to wait. Whoever shows none (`name` None) guesses at nothing."""
        if name is None:
            return
        self._failed_logins.tell(name, request.remote or "unix")
        account = name if self._accounts.has(name) else ""
        self._guessing.failed(request.remote or "", account, now_s=asyncio.get_running_loop().time())


def basic_of(request: web.Request) -> tuple[str, bytes] | None:
    """Name and password of a Basic header; None for everything else."""
    header = request.headers.get("Authorization", "")
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(header) > _HEADER_MAX_CHARS:
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _path(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical
