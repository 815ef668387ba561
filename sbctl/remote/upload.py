"""A file to the host through the bootstrap's own process: for a login that becomes root, whose SFTP writes as the login.

The process opens the file by the digest alone, in a directory that only root can reach, and goes on where an earlier upload was cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO, Final

from sbctl.base.errors import InputError
from sbctl.base.file_slice import ByteSource
from sbctl.base.fs import disk_error
from sbctl.remote.bootstrap import BootstrapWorker
from sbctl.remote.transport import ChannelBroken, Progress

__all__ = ["send_blob"]

_PIECE_BYTES: Final = 256 * 1024


def send_blob(
    worker: BootstrapWorker, source: ByteSource, target: str, *, deadline_s: float, progress: Progress
) -> None:
    """Bring `source` to `target`, the `part` that `blob_begin` named. Raises UnreachableError, the error the host answers, SbctlError."""
    digest = PurePosixPath(target).name.removesuffix(".part")
    try:
        size, reader = source.stat().st_size, source.open("rb")
    except OSError as error:
        raise disk_error(error, str(source)) from error
    with reader:
        try:
            begun = worker.ask("blob_begin", {"sha256": digest, "size_bytes": size}, deadline_s=deadline_s)
            offset = min(size, int(begun.get("offset", 0)))
            params = {"sha256": digest, "offset": offset, "count": size - offset}
            worker.pour("blob_write", params, _pieces(source, reader, offset, size, progress), deadline_s=deadline_s)
        except ChannelBroken as broken:
            raise broken.cause from broken


def _pieces(source: ByteSource, reader: BinaryIO, offset: int, size: int, progress: Progress) -> Iterator[bytes]:
    reader.seek(offset)
    while offset < size:
        piece = reader.read(min(_PIECE_BYTES, size - offset))
        if not piece:
            raise InputError(
                "put.source_changed",
                "the file became shorter while it was sent",
                place=str(source),
                next_step="let nobody write to the file, then run the command again",
            )
        yield piece
        offset += len(piece)
        progress(offset, size)
