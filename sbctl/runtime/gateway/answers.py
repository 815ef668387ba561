"""What the gateway says itself: heads, JSON, errors in the shape that OpenAI's clients read; statuses come from the one table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import to_json

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.admission import AdmissionError

__all__ = [
    "JSON_LINE",
    "Answer",
    "compact",
    "error_answer",
    "error_document",
    "head_bytes",
    "header_lines",
    "internal_answer",
    "json_answer",
    "public_code",
]

_NOT_AVAILABLE: Final = "no_ready_replica"
_RETRY_STATUSES: Final = frozenset({429, 503})
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}
_COMMON: Final = b"Server: sbctl\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
JSON_LINE: Final = b"Content-Type: application/json\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() + _COMMON for status in HTTPStatus
}


@dataclass(slots=True)
class Answer:
    """A whole answer. `lines`: of its head, beside those that every answer has and those that frame it."""

    status: int
    body: bytes
    lines: bytes


def header_lines(headers: Mapping[str, str]) -> bytes:
    """As they stand in a head."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")


def head_bytes(status: int, lines: bytes, *, closing: bool, length: int | None, chunked: bool, old: bool) -> bytes:
    """A whole head with its empty line. `old`: the caller speaks HTTP/1.0 and keeps a connection only when told so."""
    framing = b""
    if length is not None:
        framing = b"Content-Length: %d\r\n" % length
    elif chunked:
        framing = b"Transfer-Encoding: chunked\r\n"
    if closing:
        framing += b"Connection: close\r\n"
    elif old:
        framing += b"Connection: keep-alive\r\n"
    return b"".join((_STATUS_LINES[status], lines, framing, b"\r\n"))


def compact(document: Any) -> bytes:
    """JSON without spaces; half characters, which engines may write, stay the escapes that they were."""
    try:
        return to_json(document)
    except ValueError:
        return json.dumps(document, separators=(",", ":")).encode()


def json_answer(
    document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, lines: str = ""
) -> Answer:
    """`headers`, and what stands in the head as it is, beside the content's type."""
    return Answer(status, compact(document), JSON_LINE + header_lines(headers or {}) + lines.encode("latin-1"))


def error_document(error: SbctlError, request_id: str) -> dict[str, Any]:
    """`code` is stable; `sbproxy_reason` is the finer reason behind it; `param` the field of the request that is meant, where one is. The message never
    holds a host, port, path or engine output.
    """
    code, reason = public_code(error), error.code
    status = HTTP_STATUS.status(code)
    message = error.message if code == error.code and status < 500 else _message(code)
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "managed_model_error"),
            "param": error.detail.get("param") if code == error.code else None,
            "code": code,
            "sbproxy_reason": reason,
            "request_id": request_id,
            "retryable": error.retryable or status in _RETRY_STATUSES,
        }
    }


def error_answer(error: SbctlError, request_id: str, limits: str = "") -> Answer:
    """The whole answer; 429 and 503 say when to come back. `limits`: lines about the limits of the caller's key."""
    document = error_document(error, request_id)
    status = HTTP_STATUS.status(document["error"]["code"])
    headers = {"X-Request-Id": request_id}
    if status in _RETRY_STATUSES:
        after_s = (
            error.retry_after_s if isinstance(error, AdmissionError) else float(error.detail.get("retry_after_s", 1))
        )
        headers["Retry-After"] = str(max(1, math.ceil(after_s)))
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="sbctl"'
    if status == 405:
        headers["Allow"] = str(error.detail.get("allow", ""))
    return json_answer(document, status=status, headers=headers, lines=limits)


def internal_answer(request_id: str) -> Answer:
    """For a fault of ours that has no code."""
    error = {"message": "internal error", "type": "managed_model_error", "param": None, "code": "internal"}
    return json_answer(
        {"error": {**error, "request_id": request_id, "retryable": False}},
        status=500,
        headers={"X-Request-Id": request_id},
    )


def public_code(error: SbctlError) -> str:
    """A code of the table. Engine and host failures are one thing to a caller: the model is not available."""
    if HTTP_STATUS.status(error.code) == 500 or error.code == "draining":
        return _NOT_AVAILABLE
    return error.code


def _message(code: str) -> str:
    if code == "upstream_failed":
        return "the model stopped answering"
    return "the model is temporarily unavailable"
