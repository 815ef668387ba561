"""What the peer plane answers when it refuses, with the status and whether somebody else may be asked instead.

    security    the peer or the envelope is not what it says: never tried again, by nobody
    capacity    this worker is full: another one may not be
    readiness   this worker does not serve that now, or its clock differs from ours: another one may
    transport   the way to it failed before the first byte of an answer: another one may be reached
    terminal    the caller's own fault: it is the same everywhere

Codes and statuses as in SBproxy's model plane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.admission import AdmissionError

__all__ = ["RetryClass", "may_be_asked_elsewhere", "retry_class", "status_of"]

RetryClass = Literal["security", "capacity", "readiness", "transport", "terminal"]

_STATUS: Final[Mapping[str, int]] = {
    "replay_detected": 409,
    "stale_boot_epoch": 409,
    "stale_deployment_generation": 409,
    "deployment_not_assigned": 409,
    "invalid_envelope": 401,
    "envelope_too_large": 401,
    "audience_mismatch": 401,
    "dispatch_expired": 401,
    "dispatch_not_yet_valid": 401,
    "invalid_dispatch_lifetime": 401,
    "hop_limit_exceeded": 401,
    "request_digest_mismatch": 401,
    "peer_authentication_failed": 401,
    "replay_fence_full": 401,
    "peer_revoked": 403,
    "no_eligible_replica": 503,
    "listener_shutdown": 503,
    "upstream_failed": 503,
    "draining": 503,
    "body_too_large": 413,
    "request_body_too_large": 413,
    "transport_failed": 400,
    "tls_failed": 400,
}
_CLASS: Final[Mapping[str, RetryClass]] = {
    "replay_detected": "security",
    "invalid_envelope": "security",
    "envelope_too_large": "security",
    "audience_mismatch": "security",
    "invalid_dispatch_lifetime": "security",
    "hop_limit_exceeded": "security",
    "request_digest_mismatch": "security",
    "peer_authentication_failed": "security",
    "peer_revoked": "security",
    "replay_fence_full": "capacity",
    "queue_full": "capacity",
    "queue_timeout": "capacity",
    "overloaded": "capacity",
    "insufficient_capacity": "capacity",
    "tls_failed": "transport",
    "transport_failed": "transport",
    "upstream_failed": "transport",
}


def status_of(error: SbctlError) -> int:
    """Of an answer on the peer plane. Whatever a gate refuses is 429; what is in no table is this worker's own trouble, 503."""
    if isinstance(error, AdmissionError):
        return 429
    known = _STATUS.get(error.code)
    if known is not None:
        return known
    status = HTTP_STATUS.status(error.code)
    return 503 if status == 500 else status


def retry_class(code: str, status: int) -> RetryClass:
    """Of a refusal by its code and status."""
    known = _CLASS.get(code)
    if known is not None:
        return known
    if status == 429 or status >= 500 or status == 409 or code in ("dispatch_expired", "dispatch_not_yet_valid"):
        return "readiness"
    return "terminal"


def may_be_asked_elsewhere(kind: RetryClass) -> bool:
    return kind in ("capacity", "readiness", "transport")
