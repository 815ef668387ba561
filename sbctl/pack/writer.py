"""Writing a pack: the same inputs give the same bytes; it appears under its name whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from sbctl.artifacts.disk_space import require_space
from sbctl.base import fs
from sbctl.base.errors import ArtifactError, SbctlError
from sbctl.pack.layout import BLOCK, END, MANIFEST, SIGNATURE, blob_name, header, padded
from sbctl.pack.manifest import PackEntry, PackManifest, render_manifest

__all__ = ["write_pack"]

_PIECE_BYTES: Final = 1 << 20


def write_pack(
    target: Path,
    manifest: PackManifest,
    sources: Mapping[str, Path],
    *,
    sign: Callable[[bytes], str] | None,
    progress: Callable[[int, int | None], None],
) -> int:
    """Write `manifest` and its files (`sources`: digest → file) to `target`; returns the size in bytes.

    `sign` makes an envelope of the manifest's bytes; None leaves the pack unsigned. Every file is compared with its digest while it is
    copied. Raises ArtifactError `artifact.digest_mismatch`, SbctlError `disk.*`; `target` is then as it was before.
    """
    rendered = render_manifest(manifest)
    members = [(MANIFEST, rendered)]
    if sign is not None:
        members.append((SIGNATURE, sign(rendered).encode("ascii")))
    total = sum(BLOCK + padded(len(content)) for _, content in members) + len(END)
    total += sum(BLOCK + padded(entry.size_bytes) for entry in manifest.entries)
    fs.ensure_directory(target.parent, mode=0o755)
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise SbctlError(
            "disk.not_a_file",
            "something that is not a regular file stands here",
            place=str(target),
            next_step="name another file with --out",
        )
    require_space(target.parent, total)
    temporary = fs.temporary_path(target.parent)
    try:
        with _created(temporary, target) as write:
            for name, content in members:
                write(header(name, len(content)))
                write(_filled(content, len(content)))
            _copy_entries(manifest.entries, sources, write, progress, manifest.total_bytes)
            write(END)
        fs.install_file(temporary, target, mode=0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return total


@contextlib.contextmanager
def _created(temporary: Path, target: Path) -> Iterator[Callable[[bytes], None]]:
    try:
        fd = fs.OPS.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise fs.disk_error(error, target) from error

    def write(data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[fs.OPS.write(fd, view) :]
        except OSError as error:
            raise fs.disk_error(error, target) from error

    try:
        yield write
    finally:
        os.close(fd)


def _filled(content: bytes, size: int) -> bytes:
    return content + bytes(padded(size) - size)


def _copy_entries(
    entries: tuple[PackEntry, ...],
    sources: Mapping[str, Path],
    write: Callable[[bytes], None],
    progress: Callable[[int, int | None], None],
    total: int,
) -> None:
    done = 0
    for entry in entries:
        write(header(blob_name(entry.sha256), entry.size_bytes))
        digest, copied = hashlib.sha256(), 0
        for piece in _pieces(sources[entry.sha256], entry.size_bytes):
            digest.update(piece)
            write(piece)
            copied += len(piece)
            progress(done + copied, total)
        if copied != entry.size_bytes or digest.hexdigest() != entry.sha256:
            raise ArtifactError(
                "artifact.digest_mismatch",
                f"{entry.name} changed while it was packed",
                place=str(sources[entry.sha256]),
                next_step="remove it from the cache, then run sbctl pack again: it is fetched anew",
            )
        write(bytes(padded(copied) - copied))
        done += copied


def _pieces(source: Path, size: int) -> Iterator[bytes]:
    """At most `size` bytes of `source`. Raises SbctlError `disk.*`."""
    try:
        with source.open("rb", buffering=0) as reader:
            while size > 0 and (piece := reader.read(min(_PIECE_BYTES, size))):
                size -= len(piece)
                yield piece
    except OSError as error:
        raise fs.disk_error(error, source) from error
