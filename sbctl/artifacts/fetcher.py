"""One HTTP session of ours: redirects followed by our own rules, credentials to their first origin only, bodies as they were sent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Self

import aiohttp
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from sbctl.artifacts.fetch_policy import (
    FetchSettings,
    GuardedResolver,
    Origins,
    basic_credentials,
    check_url,
    origin_of,
    parse_url,
    shown,
    tls_context,
)
from sbctl.artifacts.http_answers import OTHER_ADDRESS, status_error
from sbctl.base.errors import ArtifactError
from sbctl.base.limits import DOWNLOAD_MAX_REDIRECTS, DOWNLOAD_STALL_S

__all__ = ["Fetcher", "transport_error"]

_CONNECT_S: Final = 30.0
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_READ_BUFFER_BYTES: Final = 1 << 20
_USER_AGENT: Final = "sbctl"


def transport_error(url: URL, error: BaseException) -> ArtifactError:
    """A connection that failed, in one retryable error."""
    what = "no byte came for a minute" if isinstance(error, TimeoutError) else (str(error) or type(error).__name__)
    return ArtifactError(
        "artifact.transport",
        f"the connection failed: {what}",
        place=shown(url),
        next_step="check the network and the proxy (egress.proxy of the host; HTTPS_PROXY on the operator's machine), then run again: what was fetched is kept",
        retryable=True,
    )


class Fetcher:
    """An async context manager. One per run; not shared between event loops."""

    def __init__(self, settings: FetchSettings | None = None, *, stall_s: float = DOWNLOAD_STALL_S) -> None:
        self.settings = settings if settings is not None else FetchSettings.from_environ(os.environ)
        self.origins: Origins = self.settings.origins()
        self.stall_s = stall_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made when first needed: loading the authorities takes longer than a local copy."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=GuardedResolver(self.origins, ThreadedResolver()),
                use_dns_cache=False,
                ssl=tls_context(self.settings),
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self.stall_s),
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": _USER_AGENT},
                read_bufsize=_READ_BUFFER_BYTES,
            )
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def authorization_for(self, url: URL) -> str | None:
        """The credential that belongs to an origin: the index's, or the model hub's token."""
        settings = self.settings
        if settings.index_credentials is not None and origin_of(url) == origin_of(settings.index):
            return settings.index_credentials.reveal().decode()
        if settings.hf_token is not None and origin_of(url) == origin_of(settings.hf_endpoint):
            return f"Bearer {settings.hf_token.reveal().decode()}"
        return None

    @contextlib.asynccontextmanager
    async def open(
        self, start: URL, headers: Mapping[str, str] | None = None, *, at: URL | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET with redirects; yields the first response that is none, whatever its status. Raises ArtifactError.

        `at` is where an earlier answer to the same `start` came from: the redirects are not walked again.
        """
        url, trusted = at or start, at is None or origin_of(at) == origin_of(start)
        for _ in range(DOWNLOAD_MAX_REDIRECTS + 1):
            check_url(url, self.origins)
            async with self._request(url, headers or {}, self.authorization_for(url) if trusted else None) as response:
                if response.status not in _REDIRECTS:
                    encoding = response.headers.get("Content-Encoding", "identity")
                    if encoding != "identity":
                        raise ArtifactError(
                            "artifact.encoding_refused",
                            "the server compressed what was asked for as it is",
                            place=shown(url),
                            next_step=OTHER_ADDRESS,
                        )
                    yield response
                    return
                following = _next_hop(url, response.headers.get("Location", ""))
            if url.scheme == "https" and following.scheme != "https":
                raise ArtifactError(
                    "artifact.url_refused",
                    "a redirect from https to plain http is not followed",
                    place=shown(url),
                    next_step=OTHER_ADDRESS,
                )
            trusted = trusted and origin_of(following) == origin_of(start)
            url = following
        raise ArtifactError(
            "artifact.too_many_redirects",
            f"more than {DOWNLOAD_MAX_REDIRECTS} redirects were answered",
            place=shown(start),
            next_step=OTHER_ADDRESS,
        )

    @contextlib.asynccontextmanager
    async def post(self, url: URL, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """POST to exactly this address: no redirect is followed and no credential of ours goes along. Raises ArtifactError."""
        check_url(url, self.origins)
        async with self._request(url, headers, None, body=body) as response:
            yield response

    @contextlib.asynccontextmanager
    async def _request(
        self, url: URL, headers: Mapping[str, str], credential: str | None, *, body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        sent = {"Accept-Encoding": "identity", **headers}
        if credential is not None:
            sent["Authorization"] = credential
        proxy = self.settings.proxy_for(url)
        proxy_headers: dict[str, str] | None = None
        if proxy is not None and proxy.user is not None:
            credentials = {"Proxy-Authorization": basic_credentials(proxy).reveal().decode()}
            if url.scheme == "http":
                sent |= credentials
            else:
                proxy_headers = credentials
            proxy = proxy.with_user(None)
        try:
            response = await self._opened().request(
                "GET" if body is None else "POST",
                url,
                data=body,
                headers=sent,
                allow_redirects=False,
                proxy=proxy,
                proxy_headers=proxy_headers,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise transport_error(url, error) from error
        async with response:
            yield response

    async def page(self, url: URL, *, accept: str, max_bytes: int) -> tuple[bytes, str, URL]:
        """A whole small document: bytes, content type, final URL. Raises ArtifactError, `artifact.http_status` for all but 200."""
        async with self.open(url, {"Accept": accept}) as response:
            if response.status != 200:
                raise status_error(response, url)
            body = bytearray()
            try:
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > max_bytes:
                        raise ArtifactError(
                            "artifact.page_too_large",
                            f"the page has more than {max_bytes} bytes",
                            place=shown(url),
                            next_step=OTHER_ADDRESS,
                        )
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise transport_error(url, error) from error
            return bytes(body), response.content_type, response.url


def _next_hop(url: URL, location: str) -> URL:
    if not location:
        raise _nowhere(url)
    if "://" in location.partition("?")[0] or location.startswith("//"):
        return parse_url(f"{url.scheme}:{location}" if location.startswith("//") else location)
    try:
        joined = url.join(URL(location))
    except ValueError as error:
        raise _nowhere(url) from error
    return parse_url(str(joined))


def _nowhere(url: URL) -> ArtifactError:
    return ArtifactError(
        "artifact.url_refused", "a redirect names no address", place=shown(url), next_step=OTHER_ADDRESS
    )
