"""The header of weights that stay where they are: enough of each file's beginning is fetched to read it, and no more.

A file of gigabytes has a header of some megabytes. What comes is read as any header is, against the size that the hub tells, and a
header that goes on behind what was fetched is fetched again, longer.
"""

from __future__ import annotations

import io
from typing import Final

import aiohttp
from yarl import URL

from sbctl.artifacts.fetch_policy import shown
from sbctl.artifacts.fetcher import Fetcher, transport_error
from sbctl.artifacts.formats.architectures import model_shape
from sbctl.artifacts.formats.gguf import GgufHeader, parse_gguf
from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.http_answers import status_error
from sbctl.artifacts.hub import HubRepository, file_url
from sbctl.base.errors import ArtifactError
from sbctl.base.limits import GGUF_HEADER_MAX_BYTES, MIB

__all__ = ["remote_shape"]

_PREFIXES_BYTES: Final = (2 * MIB, 16 * MIB, GGUF_HEADER_MAX_BYTES + MIB)


class _MoreNeededError(Exception):
    """The header goes on behind what was fetched."""


class _Beginning(io.RawIOBase):
    """The first bytes of a file of `size_bytes`."""

    def __init__(self, data: bytes, size_bytes: int) -> None:
        self._data = data
        self._size_bytes = size_bytes
        self._position = 0

    def fileno(self) -> int:
        raise OSError("no file of this machine")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = self._size_bytes if whence == io.SEEK_END else offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        part = self._data[self._position : self._position + size]
        if not part:
            raise _MoreNeededError
        self._position += len(part)
        return part


async def remote_shape(fetcher: Fetcher, found: HubRepository, paths: list[str]) -> ModelShape | None:
    """What the GGUF files at `paths` say together; None where they describe no model that can be sized.

    Raises DamagedHeaderError `artifact.header_damaged` for a file that is no GGUF or lies about itself, ArtifactError of the transport.
    """
    return model_shape([await _header(fetcher, found, path) for path in paths])


async def _header(fetcher: Fetcher, found: HubRepository, path: str) -> GgufHeader:
    url = file_url(fetcher, found.repository, found.commit, path)
    size_bytes = found.files[path].size_bytes
    for wanted in _PREFIXES_BYTES:
        data = await _beginning(fetcher, url, min(wanted, size_bytes))
        try:
            return parse_gguf(_Beginning(data, size_bytes), shown(url))  # type: ignore[arg-type]  # all that a header needs of a file
        except _MoreNeededError:
            continue
    raise ArtifactError(
        "artifact.header_damaged",
        f"the header is longer than {GGUF_HEADER_MAX_BYTES} bytes",
        place=shown(url),
        next_step="choose another file or repository: no engine of ours reads such a header",
    )


async def _beginning(fetcher: Fetcher, url: URL, wanted: int) -> bytes:
    """The first bytes; a server that sends the whole file is left once it has sent enough."""
    async with fetcher.open(url, {"Range": f"bytes=0-{wanted - 1}"}) as response:
        if response.status not in (200, 206):
            raise status_error(response, url)
        data = bytearray()
        try:
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) >= wanted:
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise transport_error(url, error) from error
    return bytes(data[:wanted])
