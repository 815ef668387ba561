"""`/admin/login`, `/admin/logout`, `/admin/session`: from a password to a cookie, and its end."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import ADMIN_BODY_MAX_BYTES
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.admin_access import COOKIE, SESSION_S, Accounts, Principal, Sessions
from sbctl.runtime.admin_guard import PRINCIPAL, AdminGuard, basic_of
from sbctl.runtime.audit import Note
from sbctl.runtime.listeners import json_headers, read_body

__all__ = ["AdminLogin"]

_CHECKS_AT_ONCE: Final = 2
_PASSWORD_MAX_CHARS: Final = 1024


class AdminLogin:
    """`note` writes into the audit and never raises. At most two passwords are checked at a time, since each takes memory."""

    def __init__(self, guard: AdminGuard, accounts: Accounts, sessions: Sessions, note: Note) -> None:
        self._guard = guard
        self._accounts = accounts
        self._sessions = sessions
        self._note = note
        self._checks = asyncio.Semaphore(_CHECKS_AT_ONCE)

    async def login(self, request: web.Request) -> web.Response:
        """Raises InputError `invalid_body`, RefusedError `unauthorized`, `rate_limited`."""
        name, password = await self._credentials(request)
        self._guard.check_wait(request)
        async with self._checks:
            self._guard.check_wait(request)
            principal = await asyncio.to_thread(self._accounts.login, name, password)
        if principal is None:
            self._guard.failed(request, name)
            raise RefusedError("unauthorized", "no account has this name and password")
        self._guard.succeeded(request, principal)
        ACTING.set(Actor(principal.name, principal.role, f"admin {request.remote or 'unix'}"))
        await asyncio.to_thread(self._note, "login", principal.name, {})
        token, nonce = self._sessions.open(principal)
        shown = Principal(principal.name, principal.role, nonce)
        response = web.json_response(_shown(shown), headers=json_headers({"X-CSRF-Token": nonce}))
        response.set_cookie(
            COOKIE, token, max_age=SESSION_S, path="/", httponly=True, samesite="Strict", secure=request.secure
        )
        return response

    async def _credentials(self, request: web.Request) -> tuple[str, bytes]:
        presented = basic_of(request)
        if presented is not None:
            return presented
        document = self._guard.parse(await read_body(request, max_bytes=ADMIN_BODY_MAX_BYTES))
        name, password = document.get("username"), document.get("password")
        if set(document) != {"username", "password"} or not isinstance(name, str) or not isinstance(password, str):
            raise InputError("invalid_body", 'the body is {"username": "…", "password": "…"}')
        if len(name) > _PASSWORD_MAX_CHARS or len(password) > _PASSWORD_MAX_CHARS:
            raise InputError("invalid_body", f"a name and a password have at most {_PASSWORD_MAX_CHARS} characters")
        return name, password.encode()

    async def logout(self, request: web.Request) -> web.Response:
        """Ends the session that the cookie names, if one does."""
        principal = request.get(PRINCIPAL)
        if principal is not None and principal.nonce is not None:
            self._sessions.end(principal.nonce)
        response = web.json_response({"authenticated": False}, headers=json_headers())
        response.del_cookie(COOKIE, path="/")
        return response

    async def session(self, request: web.Request) -> web.Response:
        """Who asks by cookie, or nobody."""
        principal = request.get(PRINCIPAL)
        return web.json_response(
            {"authenticated": False} if principal is None else _shown(principal), headers=json_headers()
        )


def _shown(principal: Principal) -> dict[str, Any]:
    return {
        "authenticated": True,
        "username": principal.name,
        "role": principal.role,
        "via_session": principal.nonce is not None,
        "csrf_token": principal.nonce,
    }
