"""The body of a dispatch on the wire, and what refusals mean."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import EngineError, InputError, RefusedError, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.peer.client import refusal_of
from sbctl.runtime.peer.codes import may_be_asked_elsewhere, retry_class, status_of
from sbctl.runtime.peer.framing import ENVELOPE_MAX_BYTES, frame, unframe


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=300))
def test_what_was_framed_comes_back(envelope: bytes, body: bytes) -> None:
    assert unframe(frame(envelope, body)) == (envelope, body)


@settings(max_examples=100)
@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    with contextlib.suppress(RefusedError):
        envelope, body = unframe(data)
        assert frame(envelope, body) == data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_envelope"),
        (b"\0\0", "invalid_envelope"),
        (b"\0\0\0\0rest", "invalid_envelope"),
        (b"\0\0\0\x05four", "invalid_envelope"),
        (b"\xff\xff\xff\xff", "envelope_too_large"),
        ((ENVELOPE_MAX_BYTES + 1).to_bytes(4, "big"), "envelope_too_large"),
    ],
)
def test_frames_that_are_refused(data: bytes, code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        unframe(data)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RefusedError("replay_detected", ""), 409, "security"),
        (RefusedError("peer_authentication_failed", ""), 401, "security"),
        (RefusedError("peer_revoked", ""), 403, "security"),
        (RefusedError("dispatch_expired", ""), 401, "readiness"),
        (RefusedError("replay_fence_full", ""), 401, "capacity"),
        (RefusedError("stale_deployment_generation", ""), 409, "readiness"),
        (RefusedError("stale_boot_epoch", ""), 409, "readiness"),
        (AdmissionError("queue_full", "", retry_after_s=3), 429, "capacity"),
        (AdmissionError("engine_unhealthy", "", retry_after_s=3), 429, "readiness"),
        (EngineError("no_ready_replica", ""), 503, "readiness"),
        (EngineError("draining", ""), 503, "readiness"),
        (EngineError("crash_loop", ""), 503, "readiness"),
        (EngineError("engine_health_failed", ""), 503, "readiness"),
        (EngineError("upstream_failed", ""), 503, "transport"),
        (EngineError("transport_failed", ""), 400, "transport"),
        (InputError("context_length_exceeded", ""), 400, "terminal"),
        (InputError("request_body_too_large", ""), 413, "terminal"),
    ],
)
def test_status_and_class_of_a_refusal(error: SbctlError, status: int, kind: str) -> None:
    assert status_of(error) == status
    assert retry_class(error.code, status) == kind
    assert may_be_asked_elsewhere(retry_class(error.code, status)) == (kind not in ("security", "terminal"))


@pytest.mark.parametrize(
    ("status", "code", "family", "told"),
    [
        (429, "queue_full", AdmissionError, "queue_full"),
        (429, "engine_unhealthy", AdmissionError, "engine_unhealthy"),
        (401, "replay_fence_full", AdmissionError, "replay_fence_full"),
        (400, "context_length_exceeded", InputError, "context_length_exceeded"),
        (400, "transport_failed", EngineError, "transport_failed"),
        (404, "not_found", EngineError, "upstream_failed"),
        (415, "unsupported_media_type", EngineError, "upstream_failed"),
        (503, "no_ready_replica", EngineError, "no_ready_replica"),
        (503, "", EngineError, "upstream_failed"),
        (503, "x" * 65, EngineError, "upstream_failed"),
        (503, "a b", EngineError, "upstream_failed"),
        (503, "\xe9", EngineError, "upstream_failed"),
        (302, "", EngineError, "upstream_failed"),
    ],
)
def test_a_worker_s_refusal_as_the_gateway_takes_it(status: int, code: str, family: type, told: str) -> None:
    fields = {b"x-sbproxy-error-code": code.encode("latin-1"), b"retry-after": b"7"}
    error = refusal_of(status, fields, b'{"error":{"code":"x","message":"too \\u001b[31m long"}}')
    assert (type(error), error.code) == (family, told)
    if isinstance(error, AdmissionError):
        assert error.retry_after_s == 7
    if isinstance(error, InputError):
        assert "\x1b" not in error.message
        assert "long" in error.message


@settings(max_examples=60)
@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from([b"x-sbproxy-error-code", b"retry-after"]), st.binary(max_size=80)),
    st.binary(max_size=80),
)
def test_no_answer_of_a_worker_is_more_than_a_refusal(status: int, fields: dict[bytes, bytes], body: bytes) -> None:
    error = refusal_of(status, fields, body)
    assert isinstance(error, SbctlError)
    json.dumps(error.to_wire())
