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
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.admission import AdmissionError

__all__ = ["REFUSALS", "Refusal", "RetryClass", "may_be_asked_elsewhere", "retry_class", "status_of"]

RetryClass = Literal["security", "capacity", "readiness", "transport", "terminal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One code that only the peer plane has."""

    status: int
    kind: RetryClass
    says: str


REFUSALS: Final[Mapping[str, Refusal]] = {
    "replay_detected": Refusal(409, "security", "the dispatch was accepted before"),
    "stale_boot_epoch": Refusal(
        409, "readiness", "the worker's process is another one; it says which, and is asked again"
    ),
    "stale_deployment_generation": Refusal(409, "readiness", "the worker serves another generation of the deployment"),
    "deployment_not_assigned": Refusal(409, "readiness", "the deployment is not this worker's"),
    "invalid_envelope": Refusal(401, "security", "the envelope is not one that is read"),
    "envelope_too_large": Refusal(401, "security", "the envelope has more bytes than any has"),
    "audience_mismatch": Refusal(401, "security", "the dispatch is for another node"),
    "dispatch_expired": Refusal(401, "readiness", "the dispatch is over by the worker's clock; look at both clocks"),
    "dispatch_not_yet_valid": Refusal(
        401, "readiness", "the dispatch is ahead of the worker's clock; look at both clocks"
    ),
    "invalid_dispatch_lifetime": Refusal(401, "security", "the dispatch lives for longer than any may"),
    "hop_limit_exceeded": Refusal(401, "security", "the dispatch came over more than one hop"),
    "request_digest_mismatch": Refusal(401, "security", "the body is not the one that was signed for"),
    "peer_authentication_failed": Refusal(
        401,
        "security",
        "who sends it is not proved, has no gateway role, or shows a caller's key; the worker's log says which",
    ),
    "replay_fence_full": Refusal(401, "capacity", "more dispatches than are remembered; none is forgotten early"),
    "peer_revoked": Refusal(403, "security", "the gateway's identity was revoked"),
    "listener_shutdown": Refusal(503, "readiness", "the worker is stopping"),
    "identity_unusable": Refusal(503, "readiness", "the gateway's own identity does not count; its log says why"),
    "body_too_large": Refusal(413, "terminal", "the body has more bytes than a request may have"),
    "tls_failed": Refusal(400, "transport", "the worker shows another certificate than its snapshot was signed with"),
    "transport_failed": Refusal(
        400, "transport", "the worker was not reached, or ended the connection before an answer"
    ),
    "worker_silent": Refusal(
        503,
        "transport",
        "the worker took the connection and said nothing for ten seconds: its process is stopped, stuck or no worker; look at it",
    ),
}
_SHARED_STATUS: Final[Mapping[str, int]] = {"upstream_failed": 503, "draining": 503}
"""Of codes that the public API has too, with another status there."""
_SHARED_CLASS: Final[Mapping[str, RetryClass]] = {
    "queue_full": "capacity",
    "queue_timeout": "capacity",
    "overloaded": "capacity",
    "insufficient_capacity": "capacity",
    "upstream_failed": "transport",
}


def status_of(error: SbctlError) -> int:
    """Of an answer on the peer plane. Whatever a gate refuses is 429; what is in no table is this worker's own trouble, 503."""
    if isinstance(error, AdmissionError):
        return 429
    if error.code in REFUSALS:
        return REFUSALS[error.code].status
    shared = _SHARED_STATUS.get(error.code) or HTTP_STATUS.status(error.code)
    return 503 if shared == 500 else shared


def retry_class(code: str, status: int) -> RetryClass:
    """Of a refusal by its code and status."""
    if code in REFUSALS:
        return REFUSALS[code].kind
    known = _SHARED_CLASS.get(code)
    if known is not None:
        return known
    return "readiness" if status in (409, 429) or status >= 500 else "terminal"


def may_be_asked_elsewhere(kind: RetryClass) -> bool:
    return kind in ("capacity", "readiness", "transport")
