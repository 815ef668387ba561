"""From where the admin API may be asked, and under which names: checked before anything else of a request.

address   this machine, or one that `allow_ips` lists
Host      exactly one, naming this listener with its port: the address it is bound to, the one that the connection came to, or over TLS a
          name of its certificate. A name that somebody lets point here (DNS rebinding) is none of them
site      no Origin or Referer but this listener's own, by the very name that was asked; no Sec-Fetch-Site of another site
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from yarl import URL

from sbctl.base.errors import RefusedError
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.routes import is_loopback

__all__ = ["Reach"]

_HTTPS_PORT: Final = 443
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Reach:
    """Of one listener. `certificate`: it is served over TLS alone. What of `allow_ips` is no address and no network lets nobody in."""

    def __init__(
        self, bind: str, port: int, allow_ips: Iterable[str] = (), *, certificate: PublicTls | None = None
    ) -> None:
        self._port = port
        self._tls = certificate
        self._networks = tuple(found for entry in allow_ips if (found := _network(entry)) is not None)
        names = ["127.0.0.1", "localhost", "::1"] if is_loopback(bind) else []
        self._names = frozenset((*names, bind.lower()))

    def check(self, request: web.Request) -> None:
        """Raises RefusedError `address_refused`, `bad_host`, `cross_site_refused`."""
        if not self._lets_in(request.remote or ""):
            raise RefusedError("address_refused", "the admin API is not open to this address")
        given = request.headers.getall("Host", [])
        if len(given) != 1 or request.raw_path[:1] != "/" or not self._is_ours(given[0].lower(), request):
            raise RefusedError("bad_host", "this is not a name of the admin API")
        self._check_site(request, given[0].lower())

    def _lets_in(self, remote: str) -> bool:
        try:
            address = ipaddress.ip_address(remote.partition("%")[0])
        except ValueError:
            return False
        found = getattr(address, "ipv4_mapped", None) or address
        return found.is_loopback or any(found in network for network in self._networks)

    def _is_ours(self, host: str, request: web.Request) -> bool:
        name, colon, port = host.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit():
            # The port of https need not be written.
            name, port = host, str(_HTTPS_PORT) if self._tls is not None else ""
        if port != str(self._port):
            return False
        if ":" in name and not (name.startswith("[") and name.endswith("]")):
            return False
        name = name.strip("[]")
        return name in self._names or name == _came_to(request) or self._is_certified(name)

    def _is_certified(self, name: str) -> bool:
        held = None if self._tls is None else self._tls.certificate
        return held is not None and bool(name) and held.covers(name)

    def _check_site(self, request: web.Request, host: str) -> None:
        own = f"{'http' if self._tls is None else 'https'}://{host}"
        foreign = any(origin.lower() != own for origin in request.headers.getall("Origin", []))
        foreign = foreign or any(_origin(referer) != own for referer in request.headers.getall("Referer", []))
        if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RefusedError("cross_site_refused", "requests from another site are refused")


def _network(entry: str) -> _Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def _came_to(request: web.Request) -> str | None:
    """The address of this machine that the connection was made to."""
    name = None if request.transport is None else request.transport.get_extra_info("sockname")
    return str(name[0]).partition("%")[0] if isinstance(name, tuple) else None


def _origin(url: str) -> str:
    """With its port as the Host header has it: a default one is not written."""
    try:
        return str(URL(url).origin())
    except ValueError:
        return ""
