"""The daemon's side of the API's public certificate: taken at start, renewed while it serves, told in the status and the metrics.

A renewal comes by the control socket (`POST /control/v1/tls`, from whoever may read the key), or, where the runtime may read files that
somebody else keeps on the host, from looking at them. What cannot be used is refused as a whole and told; the former certificate stays. A
certificate that cannot be used at all keeps nobody from http.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from sbctl.base import strict_json
from sbctl.base.clock import Clock, rfc3339
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.listeners import read_body
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.public_tls_files import NodeFiles, node_files_of, read_pair, write_pair

__all__ = ["HeldCertificate", "with_certificate"]

_BODY_MAX_BYTES: Final = 512 * 1024
_LOOK_EVERY_S: Final = 10.0


class HeldCertificate:
    """Of a runtime that serves TLS. `tls.context` is for its listener."""

    def __init__(
        self, paths: NodePaths, config: RuntimeConfig, environ: Mapping[str, str], clock: Clock, events: EventSink
    ) -> None:
        self.tls = PublicTls("api", clock)
        self._events = events
        self._paths = paths
        self._environ = environ
        as_credential = "CREDENTIALS_DIRECTORY" in environ
        self._files: NodeFiles | None = None if as_credential else node_files_of(config)

    def start(self) -> None:
        """Take what is installed, an expired one too; a problem is logged and told by `status`."""
        try:
            self.tls.take(read_pair(self._paths, self._environ), whatever_the_time=True)
        except SbctlError as error:
            self.tls.tell_problem(error)

    def take(self, pair: Secret) -> None:
        """Show it from now on. Raises InputError `tls.*`, and goes on with the former one."""
        former = self.tls.certificate
        certificate = self.tls.take(pair)
        if former is None or former.fingerprint != certificate.fingerprint:
            said = f"{certificate.subject}, until {rfc3339(certificate.not_after)}, {certificate.fingerprint}"
            self._events.tell(EventKind.PUBLIC_CERTIFICATE_CHANGED, said)

    async def watch(self) -> None:
        """Look at files that somebody else keeps, without end; returns at once where there are none to look at."""
        seen: Any = None
        while self._files is not None:
            stamp = await asyncio.to_thread(self._files.stamp)
            if stamp != seen:
                seen = stamp
                await self._follow(self._files)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _follow(self, files: NodeFiles) -> None:
        """Disks are slow at times, and answers are relayed meanwhile."""
        try:
            pair = await asyncio.to_thread(files.read)
            self.take(pair)
            await asyncio.to_thread(write_pair, self._paths, pair)
        except SbctlError as error:
            self.tls.tell_problem(error)

    def status(self) -> dict[str, Any]:
        """As snapshots hold it (`PublicTlsState`), without what is installed."""
        told = self.tls.status()
        held = self.tls.certificate
        return {
            "used": None if held is None else held.fingerprint,
            "subject": "" if held is None else held.subject,
            "issuer": "" if held is None else held.issuer,
            "not_after": None if held is None else rfc3339(held.not_after),
            "warn_from": None if held is None else rfc3339(held.warn_from()),
            "problem": told["problem"],
        }


def with_certificate(app: web.Application, held: HeldCertificate | None) -> web.Application:
    """The control socket's application, with `POST /control/v1/tls` {pem}: show this pair from now on → `status()`, or the reason at 409."""

    async def take(request: web.Request) -> web.Response:
        try:
            if held is None:
                raise SbctlError("runtime.no_tls", "this runtime is configured without TLS")
            held.take(_pem(await read_body(request, max_bytes=_BODY_MAX_BYTES)))
            return web.json_response(held.status())
        except SbctlError as error:
            return web.json_response({"error": error.to_wire()}, status=409)

    app.router.add_post("/control/v1/tls", take)
    return app


def _pem(data: bytes) -> Secret:
    document = strict_json.loads(data, max_bytes=_BODY_MAX_BYTES)
    pem = document.get("pem") if isinstance(document, dict) else None
    if not isinstance(pem, str):
        raise InputError("invalid_body", "the body is {pem}")
    return Secret(pem.encode())
