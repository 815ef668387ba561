"""Reading a pack that may come from anywhere: structure against the manifest, the manifest against its signature, contents against digests.

Opening reads headers only; contents are read when they are used or by `verify`, and compared then. Nothing is ever unpacked to a path that
the file names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sbctl.base import fs
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.file_slice import FileSlice
from sbctl.base.limits import PACK_MANIFEST_MAX_BYTES
from sbctl.pack.layout import BLOCK, END, MANIFEST, SIGNATURE, blob_name, header, padded
from sbctl.pack.manifest import PACK_PAYLOAD_TYPE, PackEntry, PackManifest, parse_manifest
from sbctl.trust.envelope import open_envelope, unverified_payload

__all__ = ["Pack", "Progress", "open_pack"]

Progress = Callable[[int, int | None], None]

_SIGNATURE_MAX_BYTES: Final = PACK_MANIFEST_MAX_BYTES * 4 // 3 + 64 * 1024
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Pack:
    """A pack whose structure holds. `claimed`: names that its signature gives itself; who signed it is `require_signer`'s answer."""

    path: Path
    manifest: PackManifest
    envelope: str | None
    claimed: tuple[str, ...]
    offsets: Mapping[str, int]
    entries: Mapping[str, PackEntry]

    def entry(self, sha256: str) -> PackEntry | None:
        return self.entries.get(sha256)

    def slice_of(self, entry: PackEntry) -> FileSlice:
        """The bytes of one file, where they are. Nothing was compared yet."""
        return FileSlice(self.path, self.offsets[entry.sha256], entry.size_bytes)

    def verify(self, progress: Progress) -> None:
        """Read and compare every file. Raises InputError `pack.damaged` naming the first that differs."""
        done = 0
        for entry in self.manifest.entries:
            before = done
            self.verify_entry(entry, lambda count, before=before: progress(before + count, self.manifest.total_bytes))  # type: ignore[misc]
            done += entry.size_bytes
        progress(done, self.manifest.total_bytes)

    def verify_entry(self, entry: PackEntry, report: Callable[[int], None]) -> None:
        """Read and compare one file. Raises InputError `pack.damaged`."""
        digest = hashlib.sha256()
        done = 0
        with _reading(self.path) as file:
            file.seek(self.offsets[entry.sha256])
            while done < entry.size_bytes:
                piece = file.read(min(_PIECE_BYTES, entry.size_bytes - done))
                if not piece:
                    raise _damaged(self.path, f"it ends within {entry.name}")
                digest.update(piece)
                done += len(piece)
                report(done)
            filling = file.read(padded(entry.size_bytes) - entry.size_bytes)
        if digest.hexdigest() != entry.sha256:
            raise _damaged(self.path, f"{entry.name} has other bytes than its digest says")
        if any(filling):
            raise _damaged(self.path, f"something stands behind the end of {entry.name}")

    def require_signer(self, signers: Mapping[str, str]) -> str:
        """The name of the accepted key that signed it. Raises RefusedError `pack.unsigned`, `envelope.bad_signature`."""
        if self.envelope is None:
            raise RefusedError(
                "pack.unsigned",
                "nobody signed this pack",
                place=str(self.path),
                next_step="make it where the operator's key is, or accept it as it is: --unsigned",
            )
        try:
            opened = open_envelope(self.envelope, PACK_PAYLOAD_TYPE, signers, max_bytes=PACK_MANIFEST_MAX_BYTES)
        except RefusedError as error:
            error.place = str(self.path)
            raise
        return opened.signer


def open_pack(path: Path) -> Pack:
    """Check the structure of a pack. Raises InputError `file.*`, `pack.not_a_pack`, `pack.damaged`, `pack.invalid`, `pack.unsupported`."""
    with _reading(path) as file:
        manifest_bytes = _member(file, path, MANIFEST, PACK_MANIFEST_MAX_BYTES)
        assert manifest_bytes is not None
        manifest = parse_manifest(manifest_bytes, str(path))
        signature = _member(file, path, SIGNATURE, _SIGNATURE_MAX_BYTES)
        envelope, claimed = _envelope(signature, manifest_bytes, path)
        at = file.tell()
        offsets: dict[str, int] = {}
        for entry in manifest.entries:
            file.seek(at)
            if file.read(BLOCK) != header(blob_name(entry.sha256), entry.size_bytes):
                raise _damaged(path, f"what stands at byte {at} is not {entry.name}")
            offsets[entry.sha256] = at + BLOCK
            at += BLOCK + padded(entry.size_bytes)
        file.seek(at)
        if file.read(len(END) + 1) != END:
            raise _damaged(path, "it does not end where its manifest says")
    return Pack(path, manifest, envelope, claimed, offsets, {entry.sha256: entry for entry in manifest.entries})


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """The file for the length of the block, in which a medium that fails is an InputError."""
    with _opened(path) as file:
        try:
            yield file
        except OSError as error:
            raise InputError(
                "file.unreadable",
                f"the file cannot be read: {error.strerror}",
                place=str(path),
                next_step="look at the disk or the medium that holds it, or fetch the pack anew",
            ) from error


def _opened(path: Path) -> BinaryIO:
    """A regular file. Raises InputError."""
    return os.fdopen(fs.open_regular(path, right_path="check the path; sbctl pack writes such a file"), "rb")


def _member(file: BinaryIO, path: Path, name: str, max_bytes: int) -> bytes | None:
    """The content of the next member when it is `name`; None, and nothing read, when a signature may stand there and does not."""
    start = file.tell()
    block = file.read(BLOCK)
    size = _octal(block[124:135])
    if name == SIGNATURE and not block.startswith(name.encode() + b"\0"):
        file.seek(start)
        return None
    if size is None or size > max_bytes or block != header(name, size):
        raise InputError(
            "pack.not_a_pack" if name == MANIFEST else "pack.damaged",
            f"this is not a pack: {name} does not stand where it belongs",
            place=str(path),
            next_step="sbctl pack makes one",
        )
    content = file.read(padded(size))
    if len(content) != padded(size) or any(content[size:]):
        raise _damaged(path, f"{name} is not whole")
    return content[:size]


def _octal(field: bytes) -> int | None:
    return int(field, 8) if field and all(0x30 <= byte <= 0x37 for byte in field) else None


def _envelope(signature: bytes | None, manifest: bytes, path: Path) -> tuple[str | None, tuple[str, ...]]:
    """The envelope must hold the very manifest that stands before it."""
    if signature is None:
        return None, ()
    try:
        text = signature.decode("ascii")
        kind, payload, claimed = unverified_payload(text, max_bytes=PACK_MANIFEST_MAX_BYTES)
    except (UnicodeDecodeError, InputError) as error:
        raise _damaged(path, "its signature cannot be read") from error
    if kind != PACK_PAYLOAD_TYPE or payload != manifest:
        raise _damaged(path, "its signature is that of something else")
    return text, claimed


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        "pack.damaged", f"the pack is damaged: {what}", place=str(path), next_step="copy it again, or make it again"
    )
