"""What a partial plan and a rollback make of bundle and runtime specs."""

from __future__ import annotations

from typing import Any

import pytest

from providers.bundle.spec import merged, restored
from providers.runtime.spec import restored as runtime_restored
from sbctl.base.ids import Address

KEY = {"sha256": "aa" * 32, "priority": "standard", "models": None, "requests_per_minute": None}


def spec(**more: Any) -> dict[str, Any]:
    return {
        "lineage": "L",
        "key_epoch": 0,
        "deployments": {"chat": {"n": 1}, "draft": {"n": 1}},
        "origins": {},
        "api_keys": {},
        "public": False,
        **more,
    }


def test_a_target_is_signed_under_todays_epoch() -> None:
    desired = spec(key_epoch=2, deployments={"chat": {"n": 2}, "draft": {"n": 2}}, public=True)
    found = merged(spec(), desired, [Address("deployment", "local", "chat")], False)
    assert found == spec(key_epoch=2, deployments={"chat": {"n": 2}, "draft": {"n": 1}})


def test_a_target_that_is_gone_leaves_the_rest_as_recorded() -> None:
    assert merged(spec(), None, [Address("deployment", "local", "chat")], False) == spec(
        deployments={"draft": {"n": 1}}
    )


@pytest.mark.parametrize(
    ("then", "today", "expected"),
    [
        ({}, {"app": KEY}, {}),
        ({"app": KEY}, {}, {}),
        ({"app": KEY}, {"app": {**KEY, "sha256": "bb" * 32}}, {"app": {**KEY, "sha256": "bb" * 32}}),
        ({"app": {**KEY, "priority": "batch"}}, {"app": KEY}, {"app": {**KEY, "priority": "batch"}}),
    ],
    ids=["added since", "taken away since", "exchanged since", "other rights then"],
)
def test_a_rollback_brings_back_no_revoked_key(then: Any, today: Any, expected: Any) -> None:
    found = restored(spec(api_keys=then), spec(api_keys=today, key_epoch=3))
    assert found == spec(api_keys=expected, key_epoch=3)


PASSWORD = {"reference": "env:ADMIN", "fingerprint": "aa"}


@pytest.mark.parametrize(
    ("then", "today", "expected"),
    [
        (None, PASSWORD, None),
        (PASSWORD, None, {**PASSWORD, "fingerprint": None}),
        (PASSWORD, {**PASSWORD, "fingerprint": "bb"}, {**PASSWORD, "fingerprint": "bb"}),
        (PASSWORD, {"reference": "file:pw", "fingerprint": "cc"}, {**PASSWORD, "fingerprint": None}),
    ],
)
def test_a_rollback_keeps_todays_trust_and_no_old_password(then: Any, today: Any, expected: Any) -> None:
    found = runtime_restored(
        {"version": "1", "trust": {"key_epoch": 0}, "admin_password": then},
        {"version": "2", "trust": {"key_epoch": 4}, "admin_password": today},
    )
    assert {name: found[name] for name in ("version", "trust", "admin_password")} == {
        "version": "1",
        "trust": {"key_epoch": 4},
        "admin_password": expected,
    }


@pytest.mark.parametrize(
    ("then", "today", "expected"),
    [(None, {"certificate": "new"}, None), ({"certificate": "old"}, {"certificate": "new"}, {"certificate": "new"})],
)
def test_a_rollback_brings_no_old_public_certificate_back(then: Any, today: Any, expected: Any) -> None:
    common = {"version": "1", "trust": {}, "admin_password": None}
    assert runtime_restored({**common, "tls": then}, {**common, "tls": today})["tls"] == expected
