"""Abuse of signed bundles: C1–C18 of docs/threats.md, as far as one node goes."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.trust.bundle import (
    BUNDLE_PAYLOAD_TYPE,
    TRUST_PAYLOAD_TYPE,
    BundleContent,
    BundlePayload,
    DeploymentMember,
    EnginePolicy,
    TrustSet,
    content_digest,
)
from sbctl.trust.envelope import open_envelope, sign_envelope, unverified_payload
from sbctl.trust.keys import SigningKey, parse_public_key
from sbctl.trust.verifier import Fence, verify_bundle, verify_trust

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
OPS = SigningKey.generate()
CI = SigningKey.generate()
MALLORY = SigningKey.generate()
TRUST = TrustSet(lineage="fleet-1", key_epoch=3, signers={"ops": OPS.public_text, "ci": CI.public_text})


def member(max_concurrency: int = 2) -> DeploymentMember:
    files = (ArtifactFile(path="w.gguf", sha256="a" * 64, size_bytes=10),)
    facts = ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source="file:/weights",
        model="m",
        variant="v",
        context_length=512,
    )
    return DeploymentMember(
        model="m",
        variant="v",
        artifact=facts,
        engine=EnginePolicy(engine="llama_cpp", launch="wheel", version="1"),
        replicas=1,
        pull="on_boot",
        warm=True,
        cold_start="wait",
        max_concurrency=max_concurrency,
        max_queue_depth=128,
        queue_timeout_ms=30_000,
        rollout="rolling",
        context_length=512,
    )


def payload_of(**overrides: Any) -> dict[str, Any]:
    content = BundleContent(
        deployments={"chat": member(overrides.pop("max_concurrency", 2))}, origins={}, api_keys={}, public=False
    )
    base = BundlePayload(
        lineage="fleet-1",
        scope="gpu-a",
        key_epoch=3,
        revision=7,
        issued_at=rfc3339(NOW),
        content=content,
        content_digest=content_digest(content),
    ).model_dump(mode="json")
    return base | overrides


def signed(document: Any, key: SigningKey = OPS, payload_type: str = BUNDLE_PAYLOAD_TYPE, keyid: str = "ops") -> str:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return sign_envelope(payload_type, data, key, keyid)


def verdict(text: str, fence: Fence | None = None, now: datetime = NOW) -> str:
    """`accepted`, `repeat`, or the code of the refusal."""
    try:
        result = verify_bundle(text, trust=TRUST, scope="gpu-a", fence=fence, now=now)
    except SbctlError as error:
        return error.code
    return "repeat" if result.repeat else "accepted"


def altered(text: str, **changes: Any) -> str:
    return json.dumps(json.loads(text) | changes)


GOOD = signed(payload_of())
DIGEST = payload_of()["content_digest"]


def test_a_bundle_signed_by_any_listed_signer_is_accepted() -> None:
    assert verdict(GOOD) == "accepted"
    assert verify_bundle(signed(payload_of(), CI), trust=TRUST, scope="gpu-a", fence=None, now=NOW).signer == "ci"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(signed(payload_of(), MALLORY), "envelope.bad_signature", id="wrong key"),
        pytest.param(altered(GOOD, signatures=[]), "envelope.invalid", id="unsigned"),
        pytest.param(GOOD[:-20], "json.invalid", id="truncated"),
        pytest.param("", "json.invalid", id="empty"),
        pytest.param(
            altered(GOOD, payload=json.loads(GOOD)["payload"][:-8]), "envelope.bad_signature", id="payload cut"
        ),
        pytest.param(altered(GOOD, extra=1), "envelope.invalid", id="unknown envelope field"),
        pytest.param(
            altered(GOOD, signatures=[{"keyid": "ops", "sig": ""}]), "envelope.bad_signature", id="empty signature"
        ),
    ],
)
def test_C1_wrong_unsigned_truncated_is_refused(text: str, code: str) -> None:
    assert verdict(text) == code


def test_C2_a_signature_over_another_payload_type_is_refused() -> None:
    assert verdict(signed(payload_of(), payload_type=TRUST_PAYLOAD_TYPE)) == "envelope.wrong_type"
    swapped = altered(signed(payload_of(), payload_type=TRUST_PAYLOAD_TYPE), payloadType=BUNDLE_PAYLOAD_TYPE)
    assert verdict(swapped) == "envelope.bad_signature"


def test_C3_the_key_id_decides_nothing() -> None:
    assert verdict(signed(payload_of(), MALLORY, keyid="ops")) == "envelope.bad_signature"
    assert (
        verify_bundle(signed(payload_of(), keyid="nobody"), trust=TRUST, scope="gpu-a", fence=None, now=NOW).signer
        == "ops"
    )


def test_C4_a_malleable_signature_is_refused() -> None:
    envelope = json.loads(GOOD)
    raw = base64.b64decode(envelope["signatures"][0]["sig"])
    order = 2**252 + 27742317777372353535851937790883648493
    scalar = int.from_bytes(raw[32:], "little") + order
    forged = raw[:32] + scalar.to_bytes(32, "little")
    envelope["signatures"][0]["sig"] = base64.b64encode(forged).decode()
    assert verdict(json.dumps(envelope)) == "envelope.bad_signature"


@pytest.mark.parametrize(
    "raw",
    ["00" * 32, "01" + "00" * 31, "01" + "00" * 30 + "80", "ec" + "ff" * 30 + "7f", "ed" + "ff" * 30 + "7f", "ff" * 32],
)
def test_C4_a_key_that_verifies_anything_is_refused(raw: str) -> None:
    text = "ed25519:" + base64.b64encode(bytes.fromhex(raw)).decode()
    with pytest.raises(SbctlError) as caught:
        parse_public_key(text)
    assert caught.value.code == "key.weak"


def test_C5_a_key_id_named_twice_is_refused() -> None:
    envelope = json.loads(GOOD)
    envelope["signatures"] *= 2
    assert verdict(json.dumps(envelope)) == "envelope.invalid"


FENCE = Fence(key_epoch=3, revision=7, content_digest=DIGEST)


@pytest.mark.parametrize(
    ("document", "fence", "expected"),
    [
        pytest.param(payload_of(revision=6), FENCE, "bundle.stale_revision", id="C6 lower revision"),
        pytest.param(
            payload_of(max_concurrency=9), FENCE, "bundle.revision_conflict", id="C7 same revision, other digest"
        ),
        pytest.param(payload_of(), FENCE, "repeat", id="C8 same revision, same digest"),
        pytest.param(payload_of(revision=8), FENCE, "accepted", id="next revision"),
        pytest.param(payload_of(revision=2**53 - 1), FENCE, "accepted", id="C9 fast-forward by a valid signer"),
        pytest.param(payload_of(revision=2**53), FENCE, "json.invalid", id="C9 beyond 2^53-1"),
        pytest.param(payload_of(revision=0), FENCE, "bundle.invalid", id="C9 zero"),
        pytest.param(payload_of(revision=-1), FENCE, "bundle.invalid", id="C9 negative"),
        pytest.param(payload_of(revision=1.0), FENCE, "bundle.invalid", id="C9 real"),
        pytest.param(payload_of(revision=True), FENCE, "bundle.invalid", id="C9 boolean"),
        pytest.param(payload_of(revision="1"), FENCE, "bundle.invalid", id="C9 text"),
        pytest.param(
            payload_of(revision=1), Fence(2, 2**53 - 1, DIGEST), "accepted", id="C9 recovered by a higher key epoch"
        ),
        pytest.param(payload_of(key_epoch=2), None, "bundle.key_epoch", id="older key epoch"),
        pytest.param(payload_of(key_epoch=4), None, "bundle.key_epoch", id="key epoch before its signer set"),
        pytest.param(payload_of(lineage="fleet-2"), None, "bundle.wrong_lineage", id="C13 other fleet"),
        pytest.param(payload_of(scope="gpu-b"), None, "bundle.wrong_scope", id="other host"),
        pytest.param(
            payload_of(content_digest="b" * 64), None, "bundle.wrong_digest", id="C12 digest of other content"
        ),
        pytest.param(payload_of(surprise=1), None, "bundle.invalid", id="unknown field"),
        pytest.param(payload_of(schema_version=2), None, "bundle.too_new", id="A18 from the future"),
    ],
)
def test_C6_to_C13_the_fence_and_the_scope(document: dict[str, Any], fence: Fence | None, expected: str) -> None:
    assert verdict(signed(document), fence) == expected


@pytest.mark.parametrize(
    ("issued", "expires", "fence", "expected"),
    [
        pytest.param(-600, -120, None, "bundle.expired", id="expired"),
        pytest.param(-600, -30, None, "accepted", id="expired within the leeway"),
        pytest.param(-600, -120, FENCE, "repeat", id="C11 an accepted bundle is served without limit"),
        pytest.param(120, None, None, "bundle.issued_in_future", id="issued in the future"),
        pytest.param(30, None, None, "accepted", id="future within the leeway"),
    ],
)
def test_C10_times_limit_the_first_acceptance_only(
    issued: int, expires: int | None, fence: Fence | None, expected: str
) -> None:
    document = payload_of(
        issued_at=rfc3339(NOW + timedelta(seconds=issued)),
        expires_at=None if expires is None else rfc3339(NOW + timedelta(seconds=expires)),
    )
    assert verdict(signed(document), fence) == expected


@pytest.mark.parametrize("text", ["2026-11-29T12:00:00", "yesterday", ""])
def test_C10_a_time_without_zone_or_sense_is_refused(text: str) -> None:
    assert verdict(signed(payload_of(issued_at=text))) == "bundle.invalid"


def test_C14_what_is_parsed_is_what_was_verified() -> None:
    envelope = json.loads(GOOD)
    for variant in (envelope["payload"] + "\n", " " + envelope["payload"], envelope["payload"].rstrip("=") + "=="):
        if variant != envelope["payload"]:
            assert verdict(altered(GOOD, payload=variant)) in {"envelope.invalid", "envelope.bad_signature"}
    duplicate = json.dumps(payload_of())[:-1] + ', "revision": 99}'
    assert verdict(signed(duplicate.encode())) == "json.invalid"


def test_C15_size_and_depth_are_bounded() -> None:
    assert verdict(signed(b"[" * 100_000)) == "json.invalid"
    assert verdict(signed(b"x" * (BUNDLE_MAX_BYTES + 1))) == "envelope.too_large"
    assert verdict("x" * (BUNDLE_MAX_BYTES * 2)) == "json.too_large"


NEXT = {"ops": OPS.public_text, "new": CI.public_text}


@pytest.mark.parametrize(
    ("signer", "current", "epoch", "signers", "expected"),
    [
        pytest.param(OPS, TRUST, 4, NEXT, "accepted", id="a member of the old set changes it"),
        pytest.param(MALLORY, TRUST, 4, NEXT, "envelope.bad_signature", id="a stranger changes it"),
        pytest.param(
            MALLORY, TRUST, 4, {"m": MALLORY.public_text}, "envelope.bad_signature", id="only the new key signs"
        ),
        pytest.param(OPS, TRUST, 3, NEXT, "trust.stale_epoch", id="changed without a new epoch"),
        pytest.param(OPS, TRUST, 2, NEXT, "trust.stale_epoch", id="an older set"),
        pytest.param(CI, TRUST, 3, dict(TRUST.signers), "accepted", id="the same set again"),
        pytest.param(OPS, None, 0, {"ops": OPS.public_text}, "accepted", id="the first set, signed by its member"),
        pytest.param(
            MALLORY, None, 0, {"ops": OPS.public_text}, "envelope.bad_signature", id="the first set, signed by none"
        ),
        pytest.param(
            OPS, TRUST, 4, {"x": "ed25519:" + base64.b64encode(bytes(32)).decode()}, "key.weak", id="a weak key"
        ),
        pytest.param(OPS, TRUST, 4, {}, "trust.invalid", id="nobody"),
    ],
)
def test_C16_the_signer_set_changes_only_by_its_members(
    signer: SigningKey, current: TrustSet | None, epoch: int, signers: dict[str, str], expected: str
) -> None:
    document = {"schema_version": 1, "lineage": "fleet-1", "key_epoch": epoch, "signers": signers}
    text = sign_envelope(TRUST_PAYLOAD_TYPE, json.dumps(document).encode(), signer, "x")
    try:
        result = verify_trust(text, current=current, lineage="fleet-1")
    except SbctlError as error:
        assert error.code == expected
    else:
        assert expected == "accepted"
        assert dict(result.signers) == signers


def test_C16_a_signer_set_of_another_fleet_is_refused() -> None:
    document = {"schema_version": 1, "lineage": "fleet-2", "key_epoch": 9, "signers": {"ops": OPS.public_text}}
    with pytest.raises(SbctlError) as caught:
        verify_trust(
            sign_envelope(TRUST_PAYLOAD_TYPE, json.dumps(document).encode(), OPS, "x"), current=TRUST, lineage="fleet-1"
        )
    assert caught.value.code == "trust.wrong_lineage"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(min_value=0, max_value=len(GOOD) - 1))
def test_C18_arbitrary_bytes_never_verify_and_never_crash(noise: bytes, position: int) -> None:
    assert verdict(noise.decode("latin-1")) != "accepted"
    mangled = GOOD[:position] + noise.decode("latin-1") + GOOD[position + 1 :]
    if mangled != GOOD:
        assert verdict(mangled) != "accepted" or json.loads(mangled)["payload"] == json.loads(GOOD)["payload"]


def test_showing_an_envelope_trusts_nothing() -> None:
    kind, payload, keyids = unverified_payload(signed(payload_of(), MALLORY, keyid="ops"), max_bytes=BUNDLE_MAX_BYTES)
    assert (kind, keyids) == (BUNDLE_PAYLOAD_TYPE, ("ops",))
    assert json.loads(payload)["revision"] == 7
    assert open_envelope(GOOD, BUNDLE_PAYLOAD_TYPE, TRUST.signers, max_bytes=BUNDLE_MAX_BYTES).signer == "ops"
