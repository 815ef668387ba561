"""Host, model and key: who reaches which deployment."""

from __future__ import annotations

import hashlib

import pytest

from sbctl.base.errors import RefusedError
from sbctl.runtime.rate_limit import RateLimiter
from sbctl.runtime.routes import RouteTable, host_name, is_loopback
from sbctl.trust.bundle import ApiKeyEntry, OriginMember


def _key(token: str, **more: object) -> ApiKeyEntry:
    return ApiKeyEntry(sha256=hashlib.sha256(token.encode()).hexdigest(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("AI.Internal", "ai.internal"),
        ("ai.internal:8080", "ai.internal"),
        ("ai.internal.", "ai.internal"),
        ("[::1]:80", "::1"),
        ("", ""),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str) -> None:
    assert host_name(header) == name


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("x", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    ("origins", "host", "loopback", "found"),
    [
        (("a",), "anything", True, True),
        (("a",), "anything", False, False),
        (("a",), "A:80", False, True),
        (("a", "b"), "anything", True, False),
        (("a", "b"), "b", True, True),
        ((), "a", True, False),
    ],
)
def test_a_sole_origin_answers_any_host_on_loopback_only(
    origins: tuple[str, ...], host: str, loopback: bool, found: bool
) -> None:
    table = RouteTable(origins={name: OriginMember(models={}) for name in origins})
    if found:
        table.origin(host, bound_to_loopback=loopback)
    else:
        with pytest.raises(RefusedError, match="nothing is served"):
            table.origin(host, bound_to_loopback=loopback)


@pytest.mark.parametrize(
    ("keys", "public", "loopback", "token", "name"),
    [
        ({}, False, True, None, None),
        ({}, False, True, "ignored", None),
        ({}, False, False, None, "refused"),
        ({}, True, False, None, None),
        ({"app": "t"}, False, True, None, "refused"),
        ({"app": "t"}, False, True, "t", "app"),
        ({"app": "t"}, False, True, "T", "refused"),
        ({"app": "t"}, False, True, "\udcff", "refused"),
        ({"app": "t"}, True, False, None, None),
        ({"app": "t"}, True, False, "t", "app"),
    ],
)
def test_never_an_open_endpoint_unless_it_is_said(
    keys: dict[str, str], public: bool, loopback: bool, token: str | None, name: str | None
) -> None:
    table = RouteTable(api_keys={key: _key(value) for key, value in keys.items()}, public=public)
    if name == "refused":
        with pytest.raises(RefusedError) as caught:
            table.caller(token, bound_to_loopback=loopback)
        assert caught.value.code == "unauthorized"
    else:
        assert table.caller(token, bound_to_loopback=loopback).name == name


def test_requests_a_minute_refill_evenly() -> None:
    limiter = RateLimiter()
    for _ in range(60):
        limiter.take("app", per_minute=60, now_s=0)
    with pytest.raises(RefusedError) as caught:
        limiter.take("app", per_minute=60, now_s=0)
    assert caught.value.code == "rate_limited"
    assert caught.value.detail["retry_after_s"] == pytest.approx(1.0)
    limiter.take("app", per_minute=60, now_s=1.01)
    with pytest.raises(RefusedError):
        limiter.take("app", per_minute=60, now_s=1.02)
    limiter.take("other", per_minute=1, now_s=1.02)
