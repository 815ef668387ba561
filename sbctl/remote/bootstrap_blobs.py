"""Blobs on their way to a host: a place for each by its digest, written from where it stopped, and named only when its bytes are right.

Sent to hosts as part of `bootstrap_script`: only the standard library of Python 3.8, and modules that have only it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from sbctl.base import fs
from sbctl.base.errors import HostError, SbctlError
from sbctl.node.paths import NodePaths

__all__ = ["blob_begin", "blob_finish", "blob_write", "forget_blob", "present_blob", "sha256_of"]

_PIECE_BYTES: Final = 1 << 20


def blob_begin(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Make room for a blob: `complete` when it is there, else `part`, the path to upload to, which may hold a beginning already."""
    fs.ensure_directory(paths.state, mode=0o755)
    fs.ensure_directory(paths.staging, mode=0o700)
    fs.ensure_directory(paths.blobs, mode=0o700)
    blob, part = _blob(paths, str(params["sha256"]))
    size = int(params["size_bytes"])
    complete = blob.is_file() and blob.stat().st_size == size
    free = fs.free_bytes(paths.blobs)
    have = part.stat().st_size if part.is_file() else 0
    if not complete and free is not None and free < size - have:
        raise SbctlError(
            "disk.full",
            f"{size - have} bytes have to be sent, and {free} are free",
            place=str(paths.blobs),
            next_step="free space on this filesystem, then run the command again",
            retryable=True,
        )
    return {"complete": complete, "part": str(part), "offset": have if have <= size else 0}


def blob_write(paths: NodePaths, params: Mapping[str, Any], body: BinaryIO) -> dict[str, Any]:
    """Append `count` bytes of `body` to the beginning of a blob, from `offset` on. Raises HostError `put.cut` when there are fewer."""
    _blob_path, part = _blob(paths, str(params["sha256"]))
    offset, left = int(params["offset"]), int(params["count"])
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.truncate(offset)
        file.seek(offset)
        while left:
            piece = body.read1(min(left, _PIECE_BYTES))  # type: ignore[attr-defined]
            if not piece:
                raise HostError(
                    "put.cut",
                    f"{left} bytes did not arrive",
                    place=str(part),
                    next_step="run the command again: it goes on where this stopped",
                    retryable=True,
                )
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
            left -= len(piece)
    return {"part": str(part)}


def blob_finish(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Verify an uploaded blob and give it its name, durably; one with other bytes is removed. Raises HostError `put.digest_mismatch`."""
    digest = str(params["sha256"])
    blob, part = _blob(paths, digest)
    if sha256_of(part) != digest:
        fs.remove_file(part)
        raise HostError(
            "put.digest_mismatch",
            "the bytes that arrived are not the bytes that were sent",
            place=str(part),
            next_step="run the command again; if it stays so, test memory and disk of both machines",
            retryable=True,
        )
    fs.install_file(part, blob, mode=0o444)
    return {"path": str(blob)}


def present_blob(paths: NodePaths, wheel: Mapping[str, Any]) -> Path:
    """Where a wheel lies that was sent. Raises HostError `put.missing`."""
    blob, _part = _blob(paths, str(wheel["sha256"]))
    if not blob.is_file():
        raise HostError(
            "put.missing",
            f"{wheel['filename']} was not sent to this host",
            place=str(blob),
            next_step="run the command again: it is sent then",
            retryable=True,
        )
    return blob


def forget_blob(paths: NodePaths, digest: str) -> None:
    """Remove it; nothing where it is not there."""
    fs.remove_file(_blob(paths, digest)[0])


def sha256_of(path: Path) -> str:
    """Of the file's bytes, in hexadecimal; a link is not followed."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _blob(paths: NodePaths, digest: str) -> tuple[Path, Path]:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise HostError("put.invalid", "a blob is named by 64 hexadecimal characters")
    return paths.blobs / digest, paths.blobs / f"{digest}.part"
