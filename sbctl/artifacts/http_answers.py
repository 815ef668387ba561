"""What a server's answer to a download says: which bytes it holds, whether they are still of the same file, when to come back."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp
from yarl import URL

from sbctl.artifacts.fetch_policy import shown
from sbctl.base.errors import ArtifactError

__all__ = ["OTHER_ADDRESS", "content_range", "pause_s", "size_error", "status_error", "takes_ranges", "validator"]

_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_CAP_S: Final = 30.0
_RETRY_AFTER_CAP_S: Final = 120.0
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
_STEPS: Final = {
    401: "give the host a token or index credentials in egress (on the operator's machine HF_TOKEN), then apply",
    403: "check that your token may read this repository, and that its licence was accepted there",
    404: "check the source and revision in the catalog",
    407: "the proxy asks for a password: set egress.proxy_credentials",
}
_PASSES: Final = frozenset({206, 408, 416, 425, 429})
_BUSY: Final = (
    "run it again later, when the server has recovered, or name a mirror in the catalog: what was fetched is kept"
)
OTHER_ADDRESS: Final = (
    "look at what this address answers (a portal or a proxy on the way?), or name another source or mirror"
)


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int] | None:
    """First byte, byte after the last, and length of the whole file; None when the header is not of that form."""
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return (int(match[1]), int(match[2]) + 1, int(match[3])) if match else None


def validator(headers: Mapping[str, str]) -> str:
    """The strong ETag, or empty; a weak one says nothing about bytes."""
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') and len(etag) <= 256 and etag.isprintable() else ""


def takes_ranges(response: aiohttp.ClientResponse) -> bool:
    """Whether several ranges of this very file can be asked for at once."""
    accepts = response.headers.get("Accept-Ranges", "").strip().lower() == "bytes"
    return validator(response.headers) != "" and (response.status == 206 or accepts)


def status_error(response: aiohttp.ClientResponse, url: URL) -> ArtifactError:
    status = response.status
    return ArtifactError(
        "artifact.http_status",
        f"the server answered {status}",
        place=shown(url),
        next_step=_STEPS.get(status, _BUSY if status in _PASSES or status >= 500 else OTHER_ADDRESS),
        retryable=status in _PASSES or status >= 500,
        detail={"status": status, "retry_after_s": _retry_after_s(response.headers)},
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks for, bounded; a date is read against the server's own clock."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:6]), _RETRY_AFTER_CAP_S)
    try:
        until, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("Date", ""))
        return min(max((until - now).total_seconds(), 0.0), _RETRY_AFTER_CAP_S)
    except (ValueError, TypeError):
        return None


def pause_s(failures: int, error: ArtifactError) -> float:
    """How long to wait before the next attempt: doubled, with jitter, and never less than the server asked for."""
    asked = error.detail.get("retry_after_s")
    backoff = min(_BACKOFF_CAP_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * (0.5 + random.random())  # noqa: S311 - jitter
    return asked + backoff * 0.5 if isinstance(asked, float) else backoff


def size_error(got: int | None, expected: int, place: str) -> ArtifactError:
    """Other bytes than the ones that were asked for, told by their number."""
    said = f"{got} bytes" if got is not None else f"more than {expected} bytes"
    return ArtifactError(
        "artifact.size_mismatch",
        f"the source has {said} where {expected} are expected",
        place=place,
        next_step="the source has another file under this name; correct the catalog, or name another source or mirror",
    )
