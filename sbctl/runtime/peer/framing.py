"""The body of a dispatch: four bytes with the length of the envelope, most significant first, the envelope, then the caller's body as it is."""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import RefusedError
from sbctl.base.limits import DATA_BODY_MAX_BYTES, KIB

__all__ = ["CONTENT_TYPE", "DISPATCH_PATH", "ENVELOPE_MAX_BYTES", "FRAME_MAX_BYTES", "frame", "unframe"]

DISPATCH_PATH: Final = "/_sbproxy/model-plane/v1/dispatch"
CONTENT_TYPE: Final = "application/vnd.sbproxy.model-dispatch"
ENVELOPE_MAX_BYTES: Final = 128 * KIB
_LENGTH_BYTES: Final = 4
FRAME_MAX_BYTES: Final = _LENGTH_BYTES + ENVELOPE_MAX_BYTES + DATA_BODY_MAX_BYTES


def frame(envelope: bytes, body: bytes) -> bytes:
    return b"".join((len(envelope).to_bytes(_LENGTH_BYTES, "big"), envelope, body))


def unframe(data: bytes) -> tuple[bytes, bytes]:
    """Envelope and body. Raises RefusedError `envelope_too_large`, `invalid_envelope`."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    if length > ENVELOPE_MAX_BYTES:
        raise RefusedError("envelope_too_large", f"an envelope has at most {ENVELOPE_MAX_BYTES} bytes")
    end = _LENGTH_BYTES + length
    if not length or len(data) < end:
        raise RefusedError("invalid_envelope", "the dispatch holds no whole envelope")
    return data[_LENGTH_BYTES:end], data[end:]
