"""Origins that are served over https alone (`force_ssl`), on the listener that speaks http.

A request that carries nothing is led to the same path over https (308). One with a key or a body is refused: following a redirect would hide
that the key went over the network in the clear, request after request.
"""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.runtime.gateway.answers import Answer, header_lines
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.ports import Desired, Work
from sbctl.runtime.gateway.server import App
from sbctl.runtime.gateway.surface import PROBE_PATHS
from sbctl.runtime.routes import host_name

__all__ = ["HttpsOnly"]

_CODE: Final = "https_required"
_DEFAULT_PORT: Final = 443


class HttpsOnly:
    """`app` as the http listener offers it. `port` is that of https."""

    def __init__(self, app: App, desired: Desired, *, port: int, bound_to_loopback: bool) -> None:
        self._app = app
        self._desired = desired
        self._port = port
        self._on_loopback = bound_to_loopback

    def check(self, head: RequestHead) -> None:
        if head.path not in PROBE_PATHS:
            name = self._forced(head)
            if name is not None:
                raise self._led_away(head, name)
        self._app.check(head)

    def serve(self, head: RequestHead, body: bytes, caller: ClientConnection) -> Work | None:
        return self._app.serve(head, body, caller)

    def refusal(self, error: SbctlError, head: RequestHead | None) -> Answer:
        location = error.detail.get("location") if error.code == _CODE else None
        if location is None:
            return self._app.refusal(error, head)
        return Answer(308, b"", header_lines({"Location": str(location)}))

    def _forced(self, head: RequestHead) -> str | None:
        """The origin's name when it is served over https alone."""
        table = self._desired.routes
        try:
            origin = table.origin(head.text(b"host") or "", bound_to_loopback=self._on_loopback)
        except RefusedError:
            return None
        if not origin.force_ssl:
            return None
        name = host_name(head.text(b"host") or "")
        return name if name in table.origins else next(iter(table.origins))

    def _led_away(self, head: RequestHead, name: str) -> RefusedError:
        host = f"[{name}]" if ":" in name else name
        url = f"https://{host}{'' if self._port == _DEFAULT_PORT else f':{self._port}'}"
        if head.method in ("GET", "HEAD") and not head.has_body and head.text(b"authorization") is None:
            return RefusedError(_CODE, "this is served over https alone", detail={"location": url + head.path})
        return RefusedError(
            _CODE,
            f"this is served over https alone, at {url}; what was sent came in the clear, so replace a key that was with it",
        )
