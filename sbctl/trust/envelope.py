"""DSSE envelopes (github.com/secure-systems-lab/dsse, protocol 1.0): Ed25519 for people and authorities, ECDSA P-256 for nodes.

What is signed is `DSSEv1 <len type> <type> <len body> <body>`, so a payload of one type never passes as another. Verify, then use that
very byte string: nothing is canonicalised and nothing is parsed twice. `keyid` is a hint for people; keys decide.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.schema_faults import first_fault
from sbctl.trust.keys import SigningKey, parse_public_key

__all__ = [
    "OpenedEnvelope",
    "open_envelope",
    "open_signed",
    "pae",
    "sign_envelope",
    "sign_together",
    "sign_with",
    "unverified_payload",
]

_MAX_SIGNATURES: Final = 8


class _Signature(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    keyid: str = Field(default="", max_length=256)
    sig: str = Field(max_length=128)


class _Envelope(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    payload: str
    payloadType: str = Field(max_length=256)  # noqa: N815 - the protocol's name
    signatures: tuple[_Signature, ...] = Field(min_length=1, max_length=_MAX_SIGNATURES)


@dataclass(frozen=True, slots=True)
class OpenedEnvelope:
    """A payload whose signature was checked, and the name under which its signer is listed."""

    payload: bytes
    signer: str


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: what the signature covers."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign_envelope(payload_type: str, payload: bytes, key: SigningKey, keyid: str) -> str:
    """The envelope as JSON text."""
    return sign_together(payload_type, payload, {keyid: key})


def sign_together(payload_type: str, payload: bytes, keys: Mapping[str, SigningKey]) -> str:
    """The envelope signed by each of `keys` (key id → key): any one of them opens it."""
    return sign_with(payload_type, payload, {keyid: key.sign for keyid, key in keys.items()})


def sign_with(payload_type: str, payload: bytes, signs: Mapping[str, Callable[[bytes], bytes]]) -> str:
    """The envelope with one signature of each (key id → message to signature)."""
    message = pae(payload_type, payload)
    return json.dumps(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [
                {"keyid": keyid, "sig": base64.b64encode(sign(message)).decode()} for keyid, sign in signs.items()
            ],
        },
        separators=(",", ":"),
    )


def _decode(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("envelope.invalid", "the envelope holds text that is not base64") from None
    if base64.b64encode(raw).decode() != text:
        raise InputError("envelope.invalid", "the envelope holds base64 that is not canonical")
    return raw


def _parse(text: str, max_bytes: int) -> tuple[_Envelope, bytes]:
    strict_json.loads(text.encode("utf-8", "surrogatepass"), max_bytes=max_bytes * 4 // 3 + 4096, max_depth=8)
    try:
        envelope = _Envelope.model_validate_json(text)
    except ValidationError as error:
        raise InputError(
            "envelope.invalid",
            f"this is not a signed envelope (at {first_fault(error)[0]})",
            next_step="give a saved plan, or what sbctl bundle export wrote",
        ) from None
    keyids = [signature.keyid for signature in envelope.signatures]
    if len(set(keyids)) != len(keyids):
        raise InputError("envelope.invalid", "the envelope names one key id twice")
    payload = _decode(envelope.payload)
    if len(payload) > max_bytes:
        raise InputError(
            "envelope.too_large", f"the payload has {len(payload)} bytes; at most {max_bytes} are accepted"
        )
    return envelope, payload


def open_envelope(text: str, payload_type: str, signers: Mapping[str, str], *, max_bytes: int) -> OpenedEnvelope:
    """Check and open an envelope signed by one of `signers` (name → public key text).

    Raises InputError `envelope.invalid`, `envelope.too_large`; RefusedError `envelope.wrong_type`, `envelope.bad_signature`.
    """
    return open_signed(
        text,
        payload_type,
        {name: parse_public_key(signers[name]).verifies for name in sorted(signers)},
        max_bytes=max_bytes,
    )


def open_signed(
    text: str, payload_type: str, verifies: Mapping[str, Callable[[bytes, bytes], bool]], *, max_bytes: int
) -> OpenedEnvelope:
    """As `open_envelope`; `verifies` are the signers' tests (name → signature, message to verdict), asked in their order."""
    envelope, payload = _parse(text, max_bytes)
    if envelope.payloadType != payload_type:
        raise RefusedError(
            "envelope.wrong_type",
            f"the envelope holds another kind of document than {payload_type}",
            next_step="give the file that this command reads",
        )
    message = pae(payload_type, payload)
    signatures = [_decode(signature.sig) for signature in envelope.signatures]
    for name, genuine in verifies.items():
        if any(genuine(signature, message) for signature in signatures):
            return OpenedEnvelope(payload, name)
    claimed = envelope.signatures[0].keyid
    raise RefusedError(
        "envelope.bad_signature",
        "no accepted signer signed this document",
        next_step=f"accepted: {', '.join(verifies) or 'nobody'}; the envelope claims {claimed or 'no name'!r}",
    )


def unverified_payload(text: str, *, max_bytes: int) -> tuple[str, bytes, tuple[str, ...]]:
    """Payload type, payload and claimed key ids, for showing only. Nothing may be decided from them."""
    envelope, payload = _parse(text, max_bytes)
    return envelope.payloadType, payload, tuple(signature.keyid for signature in envelope.signatures)
