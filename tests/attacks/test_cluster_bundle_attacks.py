"""Abuse of the bundle of a cluster: C1–C18 of docs/threats.md. What a host's bundle shares with it is in `test_bundle_attacks`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, BundleContent, BundlePayload, content_digest
from sbctl.trust.cluster_bundle import CLUSTER_BUNDLE_PAYLOAD_TYPE, verify_cluster_bundle
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from sbctl.trust.verifier import Fence, verify_bundle
from tests.simulators.cluster_bundles import OPS, TRUST, cluster_payload, deployment, signed_bundle
from tests.simulators.cluster_trust import NOW

GOOD = signed_bundle()
DIGEST = cluster_payload()["content_digest"]
FENCE = Fence(key_epoch=3, revision=7, content_digest=DIGEST)
MALLORY = SigningKey.generate()


def code(call: Callable[[], Any]) -> str:
    """`accepted`, `repeat`, or the code of the refusal, whose sentence is there."""
    try:
        found = call()
    except SbctlError as error:
        assert error.message
        return error.code
    return "repeat" if found.repeat else "accepted"


def verdict(text: str, *, fence: Fence | None = None, cluster_id: str = "prod") -> str:
    return code(lambda: verify_cluster_bundle(text, trust=TRUST, cluster_id=cluster_id, fence=fence, now=NOW))


def host_bundle(scope: str = "prod") -> str:
    content = BundleContent(deployments={}, origins={}, api_keys={}, public=False)
    payload = BundlePayload(
        lineage="fleet-1",
        scope=scope,
        key_epoch=3,
        revision=99,
        issued_at=rfc3339(NOW),
        content=content,
        content_digest=content_digest(content),
    )
    return sign_envelope(BUNDLE_PAYLOAD_TYPE, payload.model_dump_json().encode(), OPS, "ops")


def renamed(text: str, payload_type: str) -> str:
    return json.dumps(json.loads(text) | {"payloadType": payload_type})


def test_a_bundle_signed_by_a_listed_signer_is_accepted() -> None:
    verified = verify_cluster_bundle(GOOD, trust=TRUST, cluster_id="prod", fence=None, now=NOW)
    assert (verified.signer, verified.fence, verified.repeat) == ("ops", FENCE, False)


def test_C1_a_stranger_or_nobody_signed_it() -> None:
    assert verdict(signed_bundle(key=MALLORY)) == "envelope.bad_signature"
    assert verdict(json.dumps(json.loads(GOOD) | {"signatures": []})) == "envelope.invalid"
    assert verdict(GOOD[:-20]) == "json.invalid"


def test_C2_a_host_s_bundle_is_no_cluster_s_though_a_host_has_the_cluster_s_name() -> None:
    empty = host_bundle("prod")
    assert code(lambda: verify_bundle(empty, trust=TRUST, scope="prod", fence=None, now=NOW)) == "accepted"
    assert verdict(empty) == "envelope.wrong_type"
    assert verdict(renamed(empty, CLUSTER_BUNDLE_PAYLOAD_TYPE)) == "envelope.bad_signature"
    assert code(lambda: verify_bundle(GOOD, trust=TRUST, scope="prod", fence=None, now=NOW)) == "envelope.wrong_type"


@pytest.mark.parametrize(
    ("document", "fence", "expected"),
    [
        pytest.param(cluster_payload(revision=6), FENCE, "bundle.stale_revision", id="C6 lower revision"),
        pytest.param(
            cluster_payload(deployments={"chat": deployment(replicas=3)}),
            FENCE,
            "bundle.revision_conflict",
            id="C7 same revision, other content",
        ),
        pytest.param(cluster_payload(), FENCE, "repeat", id="C8 same revision, same content"),
        pytest.param(cluster_payload(revision=8), FENCE, "accepted", id="the next"),
        pytest.param(cluster_payload(revision=2**53 - 1), FENCE, "accepted", id="C9 fast-forward by a valid signer"),
        *(
            pytest.param(cluster_payload(revision=wrong), None, "bundle.invalid", id=f"C9 {wrong!r}")
            for wrong in (0, -1, True, "1", None)
        ),
        pytest.param(
            cluster_payload(revision=1), Fence(2, 2**53 - 1, DIGEST), "accepted", id="C9 recovered by a key epoch"
        ),
        pytest.param(cluster_payload(key_epoch=2), None, "bundle.key_epoch", id="C16 older key epoch"),
        pytest.param(cluster_payload(content_digest="b" * 64), None, "bundle.wrong_digest", id="C12 other content"),
        pytest.param(cluster_payload(catalog_digest=None), None, "bundle.invalid", id="C12 of no catalog"),
        pytest.param(cluster_payload(lineage="fleet-2"), None, "bundle.wrong_lineage", id="C13 another fleet"),
        pytest.param(
            cluster_payload(scope="staging", cluster_id="staging"), None, "bundle.wrong_scope", id="C13 another cluster"
        ),
        pytest.param(cluster_payload(scope="staging"), None, "bundle.invalid", id="C13 of two names"),
        pytest.param(cluster_payload(surprise=1), None, "bundle.invalid", id="unknown field"),
        pytest.param(cluster_payload(schema_version=2), None, "bundle.too_new", id="from the future"),
    ],
)
def test_C6_to_C13_the_fence_and_the_scope(document: dict[str, Any], fence: Fence | None, expected: str) -> None:
    assert verdict(signed_bundle(document), fence=fence) == expected


def test_C9_a_revision_that_is_a_real_number_is_refused() -> None:
    text = json.dumps(cluster_payload()).replace('"revision": 7', '"revision": 7.0')
    assert verdict(sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, text.encode(), OPS, "ops")) == "bundle.invalid"


@pytest.mark.parametrize(
    ("issued_s", "lifetime_s", "fence", "expected"),
    [
        pytest.param(0, 7 * 86400, None, "accepted", id="seven days"),
        pytest.param(0, 7 * 86400 + 60, None, "accepted", id="seven days and the leeway"),
        pytest.param(0, 7 * 86400 + 61, None, "bundle.lifetime", id="more"),
        pytest.param(-600, 500, None, "bundle.expired", id="expired"),
        pytest.param(-600, 500, FENCE, "repeat", id="C11 what was accepted is served without limit"),
        pytest.param(61, None, None, "bundle.issued_in_future", id="from the future"),
        pytest.param(-400 * 86400, None, None, "accepted", id="an old one without an expiry"),
    ],
)
def test_C10_C11_times_limit_the_first_acceptance_only(
    issued_s: int, lifetime_s: int | None, fence: Fence | None, expected: str
) -> None:
    issued = NOW + timedelta(seconds=issued_s)
    expires = None if lifetime_s is None else rfc3339(issued + timedelta(seconds=lifetime_s))
    document = cluster_payload(issued_at=rfc3339(issued), expires_at=expires)
    assert verdict(signed_bundle(document), fence=fence) == expected


def swapped(document: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """The bundle with other facts about its weights, and the digest that it had."""
    changed: dict[str, Any] = json.loads(json.dumps(document))
    changed["content"]["deployments"]["chat"]["artifact"] |= facts
    return changed


def test_C12_facts_of_another_catalog_do_not_go_with_the_digest() -> None:
    """There is no catalog beside a bundle: what it says of weights is inside, so bytes of another revision cannot be mixed in."""
    assert verdict(signed_bundle(swapped(cluster_payload(), revision="older"))) == "bundle.wrong_digest"
    assert verdict(signed_bundle(swapped(cluster_payload(), source="hf:somebody/else"))) == "bundle.wrong_digest"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spread_by": ["zone", "zone"]}, id="spread over one label twice"),
        pytest.param({"spread_by": ["k" * 129]}, id="a long label"),
        pytest.param({"required_labels": {"a b": "c"}}, id="no label"),
        pytest.param({"replicas": 0}, id="no replica"),
        pytest.param({"replicas": 1025}, id="1,025 replicas"),
        pytest.param({"tensor_parallel": 0}, id="over no device"),
        pytest.param({"alternatives": [None]}, id="no variant"),
    ],
)
def test_a_deployment_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    document = cluster_payload()
    document["content"]["deployments"]["chat"] |= change
    assert verdict(signed_bundle(document)) == "bundle.invalid"


def test_a_variant_is_offered_once() -> None:
    document = cluster_payload()
    chat = document["content"]["deployments"]["chat"]
    own = {name: chat[name] for name in ("variant", "artifact", "engine", "context_length", "memory_bytes")}
    chat["alternatives"] = [own]
    assert verdict(signed_bundle(document)) == "bundle.invalid"


def test_C15_size_depth_and_number_are_bounded() -> None:
    big = json.dumps({"x": "y" * BUNDLE_MAX_BYTES}).encode()
    assert verdict(sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, big, OPS, "ops")) == "envelope.too_large"
    deep = b"[" * 100_000
    assert verdict(sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, deep, OPS, "ops")) == "json.invalid"
    many = cluster_payload()
    many["content"]["deployments"] = dict.fromkeys((f"d{number}" for number in range(10_000)), 1)
    assert verdict(signed_bundle(many)) == "bundle.invalid"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100), st.integers(min_value=0, max_value=len(GOOD) - 1))
def test_C18_arbitrary_bytes_never_verify_and_never_crash(noise: bytes, position: int) -> None:
    assert verdict(noise.decode("latin-1")) not in ("accepted", "repeat")
    mangled = GOOD[:position] + noise.decode("latin-1") + GOOD[position + 1 :]
    if verdict(mangled) == "accepted":
        assert json.loads(mangled)["payload"] == json.loads(GOOD)["payload"]
