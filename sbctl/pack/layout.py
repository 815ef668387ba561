"""Where everything is in a pack: an uncompressed tar whose every byte outside the files' contents follows from the manifest.

    manifest.json, signature.json (when signed), blobs/<sha256> in the order of the manifest, two blocks of zeros

A reader therefore never obeys a header: it compares each with the only one that can stand there. A member more, a link, another name or
another size is a difference, whatever it is. `tar -xf` reads the file all the same.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BLOCK", "END", "MANIFEST", "SIGNATURE", "blob_name", "header", "padded"]

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "signature.json"

_OCTAL_MAX: Final = 8**11 - 1


def blob_name(sha256: str) -> str:
    return f"blobs/{sha256}"


def padded(size_bytes: int) -> int:
    """Bytes that a member's content takes, filled up to whole blocks."""
    return -(-size_bytes // BLOCK) * BLOCK


def header(name: str, size_bytes: int) -> bytes:
    """The header of a regular file of nobody, readable by all, of no date (POSIX.1-1988 ustar; sizes beyond 8 GiB as GNU writes them)."""
    size = b"%011o\0" % size_bytes if size_bytes <= _OCTAL_MAX else b"\x80" + size_bytes.to_bytes(11, "big")
    block = bytearray(BLOCK)
    fields = (
        (0, name.encode("ascii")),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size),
        (136, b"00000000000\0"),
        (148, b"        "),
        (156, b"0"),
        (257, b"ustar\x0000"),
        (329, b"0000000\0"),
        (337, b"0000000\0"),
    )
    for offset, value in fields:
        block[offset : offset + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)
