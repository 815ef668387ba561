"""One member out of a wheel or zip, by our own policy: the exact name, once, a regular stored or deflated file, never more than expected.

Nothing else of the archive is looked at or written, so hostile names elsewhere in it have nowhere to go. The size is capped while
unpacking, whatever the archive claims, and the digest decides.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sbctl.artifacts.member_path import is_safe_member
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError
from sbctl.base.fs import disk_error

__all__ = ["read_member"]

_READ_BYTES: Final = 1 << 20
_MAX_DIRECTORY_BYTES: Final = 8 << 20
_END_RECORD: Final = b"PK\x05\x06"
_ZIP64_LOCATOR: Final = b"PK\x06\x07"
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


def _refused(archive: Path, member: str, why: str) -> ArtifactError:
    return ArtifactError(
        "artifact.archive_refused",
        f"{display_safe(member)} is not taken out: {why}",
        place=str(archive),
        next_step="name another source or mirror for it: this archive is not what was expected",
    )


def read_member(archive: Path, member: str, *, max_bytes: int) -> Iterator[bytes]:
    """The member's bytes in pieces of at most 1 MiB. Raises ArtifactError `artifact.member_missing`, `artifact.archive_refused`."""
    if not is_safe_member(member):
        raise _refused(archive, member, "its name is not a plain relative path")
    _check_directory(archive, member)
    try:
        with zipfile.ZipFile(archive) as opened:
            info = _find(opened, archive, member)
            if info.file_size > max_bytes:
                raise _refused(archive, member, f"it claims {info.file_size} bytes where {max_bytes} are expected")
            total = 0
            with opened.open(info) as reader:
                while chunk := reader.read(min(_READ_BYTES, max_bytes + 1 - total)):
                    total += len(chunk)
                    if total > max_bytes:
                        raise _refused(
                            archive, member, f"it unpacks to more than the {max_bytes} bytes that are expected"
                        )
                    yield chunk
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OverflowError,
    ) as error:
        raise _refused(archive, member, "the archive is damaged or of a kind that is not read") from error


def _check_directory(archive: Path, member: str) -> None:
    """Bound the list of members before the library reads it into memory."""
    try:
        with archive.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 65_600))
            tail = file.read()
    except OSError as error:
        raise disk_error(error, archive) from error
    end = tail.rfind(_END_RECORD)
    if end < 0 or len(tail) < end + 22:
        raise _refused(archive, member, "this is no zip archive")
    if tail[max(0, end - 20) : end].startswith(_ZIP64_LOCATOR):
        raise _refused(archive, member, "archives beyond 4 GiB are not read")
    if struct.unpack_from("<I", tail, end + 12)[0] > _MAX_DIRECTORY_BYTES:
        raise _refused(archive, member, "its list of members is too long")


def _find(opened: zipfile.ZipFile, archive: Path, member: str) -> zipfile.ZipInfo:
    named = [entry for entry in opened.infolist() if entry.filename == member]
    if not named:
        raise ArtifactError(
            "artifact.member_missing",
            f"the archive has no member {display_safe(member)}",
            place=str(archive),
            next_step="correct what stands behind # in the source, or the version of the archive",
        )
    if len(named) > 1:
        raise _refused(archive, member, "the archive has it twice")
    info = named[0]
    mode = info.external_attr >> 16
    if info.is_dir() or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
        raise _refused(archive, member, "it is not a regular file")
    if info.compress_type not in _METHODS or info.flag_bits & 0x1:
        raise _refused(archive, member, "it is encrypted or packed by a method that is not read")
    return info
