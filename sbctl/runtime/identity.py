"""The identity that a running daemon holds: read at start and again when asked, verified as a whole, swapped at once.

A node whose identity is broken or expired goes on serving its own callers; it holds none, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from sbctl.base.clock import Clock, rfc3339
from sbctl.base.errors import SbctlError
from sbctl.node.paths import NodePaths
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.log import get_log
from sbctl.runtime.renewal_state import renewal_problem
from sbctl.trust.node_identity import NodeIdentity

__all__ = ["HeldIdentity", "with_identity"]


class HeldIdentity:
    """`current` is None while there is none that counts."""

    def __init__(self, paths: NodePaths, clock: Clock) -> None:
        self._files = IdentityFiles(paths)
        self._clock = clock
        self._log = get_log("identity")
        self._problem: SbctlError | None = None
        self._listeners: list[Callable[[], None]] = []
        self.current: NodeIdentity | None = None

    def start(self) -> None:
        """Read it; a problem is logged and told by `status`."""
        try:
            self.reload()
        except SbctlError as error:
            self._problem = error
            self._log.error("identity not usable", code=error.code, reason=error.message)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Told after another identity was taken up; it raises what keeps it from that."""
        self._listeners.append(listener)

    def reload(self) -> dict[str, Any]:
        """Take up what the files hold now. Raises what verifying raises, and goes on with what was held."""
        self.current = self._files.verified(self._clock.now())
        self._problem = None
        self._log.info(
            "identity taken up",
            node=self.current.claims.node_id,
            epoch=self.current.claims.identity_epoch,
            not_after=rfc3339(self.current.certificate.not_after),
        )
        for listener in self._listeners:
            listener()
        return self.status()

    def status(self) -> dict[str, Any]:
        """What the status document says of it."""
        held = self.current
        return {
            "fingerprint": None if held is None else held.certificate.fingerprint,
            "identity_epoch": None if held is None else held.claims.identity_epoch,
            "not_after": None if held is None else rfc3339(held.certificate.not_after),
            "problem": None if self._problem is None else self._problem.message,
            "renewal_problem": None
            if held is None
            else renewal_problem(self._files.paths, held.certificate.fingerprint),
        }


def with_identity(app: web.Application, held: HeldIdentity | None) -> web.Application:
    """The control socket's application, with `POST /control/v1/identity`: read the files anew → `status()`, or the reason at 409."""

    async def reload_identity(_request: web.Request) -> web.Response:
        try:
            if held is None:
                raise SbctlError("runtime.no_identity", "this runtime is configured without an identity")
            return web.json_response(held.reload())
        except SbctlError as error:
            return web.json_response({"error": error.to_wire()}, status=409)

    app.router.add_post("/control/v1/identity", reload_identity)
    return app
