"""What an enrolling host sends and gets, by the names of SBproxy's cluster enrollment. The documents travel inside TLS.

    POST /admin/cluster/enroll      {token, node_id, roles, labels, csr_pem}
        200                         {certificate_pem, ca_pem, identity {document, signature}, authority_verifying_key, revocations, delegation?}
    POST /admin/cluster/renew       {csr_pem}, by mutual TLS with the present identity: the same answer, of the next epoch
        400 | 401 | 413 | 429 | 503 {code, error}
    GET  /admin/cluster/ca          the CA certificate that tokens pin, PEM: public, and believed only when the pin says so

`identity` is the signed document in two parts: `signature` is that of the DSSE envelope over the canonical JSON of `document`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import InputError
from sbctl.base.limits import ENROLL_ANSWER_MAX_BYTES, ENROLL_BODY_MAX_BYTES, JOIN_TOKEN_MAX_CHARS
from sbctl.trust.certificates import PEM_MAX_BYTES
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.identity import IDENTITY_PAYLOAD_TYPE, Grant

__all__ = [
    "CA_PATH",
    "ENROLL_PATH",
    "RENEW_PATH",
    "EnrollmentAnswer",
    "EnrollmentRequest",
    "parse_answer",
    "parse_renewal",
    "parse_request",
    "renewal_body",
]

ENROLL_PATH: Final = "/admin/cluster/enroll"
CA_PATH: Final = "/admin/cluster/ca"
RENEW_PATH: Final = "/admin/cluster/renew"
_SAME_VERSION: Final = "use the same version of sbctl on the authority and here"
_NODE_ID_MAX_CHARS: Final = 64
"""As much as a certificate's subject holds."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class _Request(_Strict):
    token: str = Field(max_length=JOIN_TOKEN_MAX_CHARS, repr=False)
    node_id: str = Field(max_length=_NODE_ID_MAX_CHARS)
    roles: tuple[str, ...] = Field(max_length=8)
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    csr_pem: str = Field(max_length=PEM_MAX_BYTES)


class _Identity(_Strict):
    document: dict[str, Any]
    signature: str = Field(max_length=256)


class _Renewal(_Strict):
    csr_pem: str = Field(max_length=PEM_MAX_BYTES)


class _Answer(_Strict):
    certificate_pem: str
    ca_pem: str
    identity: _Identity
    authority_verifying_key: str
    revocations: str
    delegation: str | None = None


class EnrollmentRequest:
    """What a host asks for. The token is never shown by `repr`."""

    __slots__ = ("grant", "request", "token")

    def __init__(self, token: str, grant: Grant, request: str) -> None:
        self.token = token
        self.grant = grant
        self.request = request

    def digest(self, key_sha256: str) -> str:
        """Of all that a token is bound to: who asks, for what, with which key."""
        return fingerprint({"grant": self.grant.model_dump(mode="json"), "key": key_sha256})

    def to_json(self) -> bytes:
        grant = self.grant.model_dump(mode="json")
        return canonical_json({"token": self.token, **grant, "csr_pem": self.request})


class EnrollmentAnswer:
    """All that a host gets, as the files of an identity directory; all of it public."""

    __slots__ = ("authority_key", "ca", "certificate", "delegation", "identity", "revocations")

    def __init__(
        self,
        *,
        certificate: str,
        ca: str,
        identity: str,
        authority_key: str,
        revocations: str,
        delegation: str | None = None,
    ) -> None:
        self.certificate = certificate
        self.ca = ca
        self.identity = identity
        self.authority_key = authority_key
        self.revocations = revocations
        self.delegation = delegation

    def to_json(self) -> bytes:
        _type, payload, _keyids = unverified_payload(self.identity, max_bytes=ENROLL_ANSWER_MAX_BYTES)
        signature = json.loads(self.identity)["signatures"][0]["sig"]
        return canonical_json(
            {
                "certificate_pem": self.certificate,
                "ca_pem": self.ca,
                "identity": {"document": json.loads(payload), "signature": signature},
                "authority_verifying_key": self.authority_key,
                "revocations": self.revocations,
                **({} if self.delegation is None else {"delegation": self.delegation}),
            }
        )


def parse_request(data: bytes) -> EnrollmentRequest:
    """Raises InputError `invalid_request`, which repeats nothing of the body."""
    try:
        document = strict_json.loads(data, max_bytes=ENROLL_BODY_MAX_BYTES, max_depth=4)
        read = _Request.model_validate_json(json.dumps(document))
        grant = Grant.model_validate_json(
            json.dumps({"node_id": read.node_id, "roles": read.roles, "labels": read.labels})
        )
    except InputError as error:
        raise InputError("invalid_request", error.message) from None
    except ValidationError as error:
        raise InputError("invalid_request", f"the request is wrong at {_first(error)}") from None
    return EnrollmentRequest(read.token, grant, read.csr_pem)


def parse_answer(data: bytes) -> EnrollmentAnswer:
    """Raises InputError `enroll.bad_answer`. Nothing is verified here."""
    try:
        document = strict_json.loads(data, max_bytes=ENROLL_ANSWER_MAX_BYTES, max_depth=8)
        read = _Answer.model_validate_json(json.dumps(document))
    except InputError as error:
        raise InputError(
            "enroll.bad_answer", f"the authority's answer cannot be read: {error.message}", next_step=_SAME_VERSION
        ) from None
    except ValidationError as error:
        raise InputError(
            "enroll.bad_answer", f"the authority's answer is wrong at {_first(error)}", next_step=_SAME_VERSION
        ) from None
    return EnrollmentAnswer(
        certificate=read.certificate_pem,
        ca=read.ca_pem,
        identity=_envelope(read.identity.document, read.identity.signature),
        authority_key=read.authority_verifying_key,
        revocations=read.revocations,
        delegation=read.delegation,
    )


def renewal_body(request: str) -> bytes:
    """What a host sends that renews."""
    return canonical_json({"csr_pem": request})


def parse_renewal(data: bytes) -> str:
    """The certificate request. Raises InputError `invalid_request`, which repeats nothing of the body."""
    try:
        document = strict_json.loads(data, max_bytes=ENROLL_BODY_MAX_BYTES, max_depth=2)
        return _Renewal.model_validate_json(json.dumps(document)).csr_pem
    except InputError as error:
        raise InputError("invalid_request", error.message) from None
    except ValidationError as error:
        raise InputError("invalid_request", f"the request is wrong at {_first(error)}") from None


def _envelope(document: Mapping[str, Any], signature: str) -> str:
    keyid = str(document.get("authority_key_id", ""))
    payload = base64.b64encode(canonical_json(document)).decode()
    envelope = {
        "payload": payload,
        "payloadType": IDENTITY_PAYLOAD_TYPE,
        "signatures": [{"keyid": keyid, "sig": signature}],
    }
    return json.dumps(envelope, separators=(",", ":"))


def _first(error: ValidationError) -> str:
    """Place and kind of the first mistake; names of unknown fields are the sender's own words, so they stay out."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    known = {*_Request.model_fields, *_Answer.model_fields, "document", "signature"}
    where = str(first["loc"][0]) if first["loc"] and first["loc"][0] in known else "a field that is not known"
    return f"{where}: {first['msg']}"
