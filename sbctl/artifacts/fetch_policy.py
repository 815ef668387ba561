"""Where bytes may come from: which URLs are followed, which addresses are connected to, what the environment configures.

Rules: https only, except an origin that the operator configured; no user part, no IDN in its raw form, no number that only looks like a
host; a name must resolve to public addresses, checked on the addresses that are then connected to. Exempt are the configured origins: the
package index, listed hosts, and an address that a source itself names (plain http on loopback only). The one URL parser is yarl.

Environment, where `from_environ` is asked for it (`egress` says when a host asks): SBCTL_PACKAGE_INDEX, UV_INDEX_URL, PIP_INDEX_URL (the
first that is set); HF_ENDPOINT, HF_TOKEN, HUGGING_FACE_HUB_TOKEN; HTTPS_PROXY, HTTP_PROXY, NO_PROXY; SBCTL_DOWNLOAD_HOSTS; PIP_CERT for a
private authority, SSL_CERT_FILE and SSL_CERT_DIR by the TLS library.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.secret import Secret

__all__ = [
    "FetchSettings",
    "GuardedResolver",
    "Origins",
    "basic_authorization",
    "basic_credentials",
    "check_url",
    "origin_of",
    "parse_url",
    "shown",
    "tls_context",
]

_HF_ENDPOINT: Final = "https://huggingface.co"
_DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\.?\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.?"
)
_NUMERIC_LABEL: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\.?")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_URL_MAX_CHARS: Final = 8192
_SAFE_URL: Final = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without space and backslash."""


def shown(url: URL) -> str:
    """A URL for messages: without user part, query and fragment, where credentials live."""
    bare = url.with_query(None).with_fragment(None)
    if bare.host is not None and (bare.user is not None or bare.password is not None):
        bare = bare.with_user(None)
    return display_safe(str(bare), max_chars=300)


def parse_url(text: str) -> URL:
    """An absolute http(s) URL with a host. Raises ArtifactError `artifact.url_refused`."""
    if len(text) > _URL_MAX_CHARS or _SAFE_URL.fullmatch(text) is None:
        raise _refused(display_safe(text, max_chars=200), "it has characters that no URL of ours has, or is too long")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise _refused(display_safe(text, max_chars=200), "it is not a URL") from error
    if url.scheme not in ("http", "https") or not url.host or port is None:
        raise _refused(display_safe(text.partition("?")[0], max_chars=200), "only https URLs with a host are fetched")
    return url


def _refused(place: str, why: str) -> ArtifactError:
    return ArtifactError(
        "artifact.url_refused",
        f"this address is not fetched: {why}",
        place=place,
        next_step="correct it; a host of yours inside is listed in egress.allowed_hosts (on the operator's machine: SBCTL_DOWNLOAD_HOSTS)",
    )


Origin = tuple[str, str, int]


def origin_of(url: URL) -> Origin:
    """Scheme, host, port: what decides whether a credential may go along."""
    return url.scheme, (url.raw_host or "").rstrip("."), url.port or 0


class Origins:
    """The origins that the operator configured; exempt from the address rules. Grows by what the configured index names."""

    def __init__(self, origins: frozenset[Origin] = frozenset(), hosts: frozenset[str] = frozenset()) -> None:
        self._origins = set(origins)
        self._hosts = hosts
        self._addresses: set[Origin] = set()

    def add(self, url: URL) -> None:
        self._origins.add(origin_of(url))

    def add_source(self, url: URL) -> None:
        """A source that the operator configured: its address may be private when it is written as one, over plain http only on loopback."""
        literal = _literal(url.raw_host or "")
        if url.host == "localhost" or (literal is not None and literal.is_loopback):
            self.add(url)
        elif literal is not None:
            self._addresses.add(origin_of(url))

    def allows_address(self, url: URL) -> bool:
        """Whether a source names this very address."""
        return origin_of(url) in self._addresses

    def allows(self, url: URL) -> bool:
        return origin_of(url) in self._origins or self.allows_host(url.raw_host or "")

    def allows_host(self, host: str) -> bool:
        """Whether `SBCTL_DOWNLOAD_HOSTS` lists the host."""
        return host in self._hosts

    def allows_connection(self, host: str, port: int) -> bool:
        return host in self._hosts or any(
            (host.rstrip("."), port) == (known, number) for _, known, number in self._origins
        )


def check_url(url: URL, origins: Origins) -> None:
    """Refuse what must not be fetched, before any connection. Raises ArtifactError `artifact.url_refused`."""
    if url.user is not None or url.password is not None:
        raise _refused(shown(url), "it carries a user or password")
    host = url.raw_host or ""
    literal = _literal(host)
    if literal is None and (
        _DNS_NAME.fullmatch(host) is None or _NUMERIC_LABEL.fullmatch(host.rstrip(".").rpartition(".")[2])
    ):
        raise _refused(shown(url), "its host is neither a name nor an address in its usual form")
    if origins.allows(url):
        return
    if url.scheme != "https":
        raise _refused(shown(url), "only https is fetched")
    if literal is not None and not _is_public(literal) and not origins.allows_address(url):
        raise _refused(shown(url), "its address is not public")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _literal(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return _is_public(inner)
    return address.is_global and not address.is_multicast


class GuardedResolver(AbstractResolver):
    """Resolves a name once and hands out only addresses that may be connected to: a name that changes its mind gains nothing."""

    def __init__(self, origins: Origins, inner: AbstractResolver) -> None:
        self._origins = origins
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if self._origins.allows_connection(host, port):
            return found
        refused = [entry["host"] for entry in found if not _public_text(entry["host"])]
        if refused:
            raise ArtifactError(
                "artifact.address_refused",
                f"{display_safe(host)} resolves to {display_safe(refused[0])}, which is not a public address",
                place=host,
                next_step="if this host is yours, list it in egress.allowed_hosts (on the operator's machine: SBCTL_DOWNLOAD_HOSTS)",
            )
        return found

    async def close(self) -> None:
        await self._inner.close()


def _public_text(host: str) -> bool:
    literal = _literal(host.partition("%")[0])
    return literal is not None and _is_public(literal)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """What the environment says about fetching. `index_credentials` and `hf_token` go to their own origin only."""

    index: URL
    hf_endpoint: URL
    index_credentials: Secret | None = None
    hf_token: Secret | None = None
    hosts: frozenset[str] = frozenset()
    proxies: Mapping[str, URL] = field(default_factory=dict, repr=False)
    no_proxy: str = ""
    extra_authority: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> FetchSettings:
        """Raises InputError `artifact.setting_invalid` naming the variable, never its value."""
        names = ("SBCTL_PACKAGE_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
        name = next((name for name in names if environ.get(name)), "")
        index = _setting(name, environ[name]) if name else URL(_default_index())
        endpoint = _setting("HF_ENDPOINT", environ.get("HF_ENDPOINT") or _HF_ENDPOINT)
        token = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
        credentials = None
        if index.user is not None:
            credentials = basic_credentials(index)
            index = index.with_user(None)
        proxies = {}
        for scheme in ("https", "http"):
            variable = f"{scheme.upper()}_PROXY"
            if value := environ.get(variable) or environ.get(variable.lower()):
                proxies[scheme] = _setting(variable, value if "://" in value else f"http://{value}")
        return cls(
            index=index,
            hf_endpoint=endpoint,
            index_credentials=credentials,
            hf_token=Secret(token.encode()) if token else None,
            hosts=frozenset(
                filter(None, (host.strip().lower() for host in environ.get("SBCTL_DOWNLOAD_HOSTS", "").split(",")))
            ),
            proxies=proxies,
            no_proxy=environ.get("NO_PROXY") or environ.get("no_proxy") or "",
            extra_authority=environ.get("PIP_CERT", ""),
        )

    def origins(self) -> Origins:
        """The configured origins: index, model hub, proxies."""
        configured = (self.index, self.hf_endpoint, *self.proxies.values())
        default = URL(_HF_ENDPOINT)
        return Origins(
            frozenset(origin_of(url) for url in configured if origin_of(url) != origin_of(default)), self.hosts
        )

    def proxy_for(self, url: URL) -> URL | None:
        """The proxy for a request; loopback never takes one."""
        proxy = self.proxies.get(url.scheme)
        literal = _literal(url.host or "")
        if proxy is None or url.host == "localhost" or (literal is not None and literal.is_loopback):
            return None
        bypass = urllib.request.proxy_bypass_environment(url.host or "", {"no": self.no_proxy})  # type: ignore[attr-defined]
        return None if bypass else proxy


def basic_authorization(user: str, password: str) -> Secret:
    """The value of an Authorization header."""
    return Secret(aiohttp.encode_basic_auth(user, password).encode())


def basic_credentials(url: URL) -> Secret:
    """The Authorization value for the user part of a configured address."""
    return basic_authorization(url.user or "", url.password or "")


def _setting(name: str, value: str) -> URL:
    try:
        return parse_url(value)
    except ArtifactError as error:
        raise InputError(
            "artifact.setting_invalid",
            f"{name} is not an http or https address",
            place=name,
            next_step="correct this variable of the environment, or unset it",
        ) from error


def _default_index() -> str:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def tls_context(settings: FetchSettings) -> ssl.SSLContext:
    """Verifies names and chains against the system's authorities, or the certifi set where the system has none, and the configured one.

    Raises InputError `egress.ca_unreadable`.
    """
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    directory = Path(str(paths.capath))
    if not Path(str(paths.cafile)).is_file() and not (directory.is_dir() and any(directory.iterdir())):
        import certifi

        context.load_verify_locations(certifi.where())
    if settings.extra_authority:
        try:
            context.load_verify_locations(settings.extra_authority)
        except OSError as error:
            raise InputError(
                "egress.ca_unreadable",
                f"the certificates of the configured authority cannot be read: {error.strerror or 'they are not PEM'}",
                place=settings.extra_authority,
                next_step="put a PEM file of certificates there, or correct egress.ca_file (PIP_CERT on the operator's machine)",
            ) from error
    return context
