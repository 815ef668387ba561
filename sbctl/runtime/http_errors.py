"""Errors on the data plane, in the shape that OpenAI's clients read; the status comes from the one table in `base.errors`."""

from __future__ import annotations

import math
from typing import Any, Final

from aiohttp import web

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.listeners import json_headers

__all__ = ["error_document", "error_response"]

_NOT_AVAILABLE: Final = "no_ready_replica"
_RETRY_STATUSES: Final = frozenset({429, 503})
_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}


def error_document(error: SbctlError, request_id: str) -> dict[str, Any]:
    """`code` is stable; `sbproxy_reason` is the finer reason behind it; the message never holds a host, port, path or engine output."""
    code, reason = _public(error)
    status = HTTP_STATUS.status(code)
    message = error.message if code == error.code and status < 500 else _message(code)
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status, "managed_model_error"),
            "param": None,
            "code": code,
            "sbproxy_reason": reason,
            "request_id": request_id,
            "retryable": error.retryable or status in _RETRY_STATUSES,
        }
    }


def error_response(error: SbctlError, request_id: str) -> web.Response:
    """The whole answer; 429 and 503 say when to come back."""
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
    return web.json_response(document, status=status, headers=json_headers(headers))


def _public(error: SbctlError) -> tuple[str, str]:
    """A code of the table, and the reason. Engine and host failures are one thing to a caller: the model is not available."""
    if HTTP_STATUS.status(error.code) == 500 or error.code == "draining":
        return _NOT_AVAILABLE, error.code
    return error.code, error.code


def _message(code: str) -> str:
    if code == "upstream_failed":
        return "the model stopped answering"
    return "the model is temporarily unavailable"
