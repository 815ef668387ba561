"""Abuse of what nodes sign for each other: C1–C18 and D10–D17 of docs/threats.md, for snapshots, assignments, plans, leases, dispatches."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import SbctlError
from sbctl.base.limits import JSON_INT_MAX
from sbctl.node.cluster_documents import (
    ASSIGNMENT_PAYLOAD_TYPE,
    SNAPSHOT_PAYLOAD_TYPE,
    AssignmentDocument,
    BundleMark,
    CapacityReport,
    ClusterNode,
    HealthReport,
    LeaseDocument,
    NodeSnapshotDocument,
)
from sbctl.trust import peer_documents
from sbctl.trust.certificates import PEM_MAX_BYTES
from sbctl.trust.cluster_fences import (
    AUTHORITY_SILENCE_MAX,
    LeaseFence,
    admit_assignment,
    authority_stale,
)
from sbctl.trust.envelope import sign_with
from sbctl.trust.identity import HighWater
from sbctl.trust.node_keys import node_signs
from sbctl.trust.peer_documents import PeerMark, PeerVerifier, VerifiedDocument
from sbctl.trust.peer_kinds import ASSIGNMENT, DISPATCH, LEASE, PLACEMENT, SNAPSHOT, DocumentKind
from tests.simulators.cluster_trust import NOW, ClusterAuthority, NodeKit

CLUSTER = ClusterAuthority()
WORKER = CLUSTER.node("gpu-a", "worker", labels={"zone": "a"})
OTHER = CLUSTER.node("gpu-b", "worker")
AUTHORITY = CLUSTER.node("gw-a", "authority", "gateway")
VERIFIER = CLUSTER.verifier()
BUNDLE = BundleMark(key_epoch=1, revision=7, content_digest="a" * 64)


def millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def snapshot(**changed: Any) -> NodeSnapshotDocument:
    base: dict[str, Any] = {
        "cluster_id": "prod",
        "identity_epoch": 1,
        "boot_epoch": 5,
        "node": ClusterNode(node_id="gpu-a", roles=("worker",), labels={"zone": "a"}),
        "counter": 3,
        "published_at_unix_ms": millis(NOW),
        "expires_at_unix_ms": millis(NOW + timedelta(seconds=30)),
        "health": HealthReport(state="ready", peer_plane="ready"),
        "capacity": CapacityReport(memory_bytes=1 << 30),
    }
    return NodeSnapshotDocument(**base | changed)


def assignment(**changed: Any) -> AssignmentDocument:
    base: dict[str, Any] = {
        "cluster_id": "prod",
        "identity_epoch": 1,
        "boot_epoch": 2,
        "lease_epoch": 4,
        "lease_holder": "gw-a",
        "counter": 9,
        "issued_at_unix_ms": millis(NOW),
        "bundle": BUNDLE,
        "node_id": "gpu-a",
        "deployments": {},
    }
    return AssignmentDocument(**base | changed)


def lease(**changed: Any) -> LeaseDocument:
    base: dict[str, Any] = {
        "cluster_id": "prod",
        "identity_epoch": 1,
        "boot_epoch": 2,
        "holder": "gw-a",
        "epoch": 4,
        "acquired_at_unix_ms": millis(NOW),
        "renewed_at_unix_ms": millis(NOW),
        "ttl_secs": 15,
    }
    return LeaseDocument(**base | changed)


GOOD = WORKER.signer().sign(SNAPSHOT, snapshot())


def code(call: Callable[[], object]) -> str:
    """`accepted`, or the code of the refusal, whose sentence is there."""
    try:
        call()
    except SbctlError as error:
        assert error.message
        return error.code
    return "accepted"


def verdict(
    text: str,
    kind: DocumentKind[Any] = SNAPSHOT,
    *,
    verifier: PeerVerifier = VERIFIER,
    marks: dict[str, PeerMark] | None = None,
    now: datetime = NOW,
    publisher: str | None = None,
) -> str:
    return code(lambda: verifier.open(text, kind, now=now, marks=marks or {}, publisher=publisher))


def opened(text: str, kind: DocumentKind[Any] = SNAPSHOT, now: datetime = NOW) -> VerifiedDocument[Any]:
    return VERIFIER.open(text, kind, now=now, marks={})


def forged(payload: Any, kit: NodeKit = WORKER, payload_type: str = SNAPSHOT_PAYLOAD_TYPE) -> str:
    """A document that no signer of ours would sign, under the identity of `kit`."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    envelope = sign_with(payload_type, data, {kit.claims.node_id: node_signs(kit.key)})
    proof = {"certificate_chain": kit.files.certificate, "identity": kit.files.identity}
    return json.dumps({"schema_version": 1, "envelope": envelope, "proof": proof})


def payload(**changed: Any) -> dict[str, Any]:
    return snapshot().model_dump(mode="json") | changed


def altered(text: str, **changes: Any) -> str:
    return json.dumps(json.loads(text) | changes)


def with_envelope(text: str, **changes: Any) -> str:
    return altered(text, envelope=json.dumps(json.loads(json.loads(text)["envelope"]) | changes))


def with_proof(text: str, **changes: Any) -> str:
    return altered(text, proof=json.loads(text)["proof"] | changes)


def test_what_a_node_signs_about_itself_is_believed() -> None:
    verified = VERIFIER.open(GOOD, SNAPSHOT, now=NOW, marks={}, publisher="gpu-a")
    assert verified.document == snapshot()
    assert verified.peer.claims == WORKER.claims
    assert (verified.mark.identity.boot_epoch, verified.mark.counter) == (5, 3)


# C1-C5, C13, C14: the envelope, the proof


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(forged(payload(), OTHER), "peer.wrong_signer", id="signed by another node"),
        pytest.param(with_envelope(GOOD, signatures=[]), "envelope.invalid", id="unsigned"),
        pytest.param(GOOD[:-30], "json.invalid", id="truncated"),
        pytest.param("", "json.invalid", id="empty"),
        pytest.param("[]", "peer.malformed", id="a list"),
        pytest.param(altered(GOOD, extra=1), "peer.malformed", id="unknown field"),
        pytest.param(altered(GOOD, schema_version=2), "peer.malformed", id="from the future"),
        pytest.param(
            with_envelope(GOOD, signatures=[{"keyid": "gpu-a", "sig": ""}]), "envelope.bad_signature", id="empty"
        ),
        pytest.param(
            with_envelope(GOOD, payload=base64.b64encode(json.dumps(payload(counter=9)).encode()).decode()),
            "envelope.bad_signature",
            id="other payload",
        ),
        pytest.param(
            with_proof(GOOD, certificate_chain=OTHER.files.certificate, identity=OTHER.files.identity),
            "envelope.bad_signature",
            id="another node's proof",
        ),
        pytest.param(with_proof(GOOD, identity=OTHER.files.identity), "identity.mismatch", id="another's document"),
        pytest.param(with_proof(GOOD, identity=None), "identity.incomplete", id="no identity document"),
        pytest.param(with_proof(GOOD, certificate_chain="x"), "certificate.invalid", id="no certificate"),
        pytest.param(
            with_proof(GOOD, certificate_chain=WORKER.files.certificate * 5), "certificate.invalid", id="a long chain"
        ),
    ],
)
def test_C1_wrong_unsigned_truncated_is_refused_and_moves_no_mark(text: str, expected: str) -> None:
    assert verdict(text) == expected


def test_C2_a_document_of_one_kind_never_passes_as_another() -> None:
    told = AUTHORITY.signer().sign(ASSIGNMENT, assignment())
    for kind in (SNAPSHOT, PLACEMENT, LEASE, DISPATCH):
        assert verdict(told, kind) == "envelope.wrong_type"
    swapped = with_envelope(told, payloadType=SNAPSHOT_PAYLOAD_TYPE)
    assert verdict(swapped) == "envelope.bad_signature"


def test_C3_the_key_id_decides_nothing() -> None:
    envelope = json.loads(json.loads(GOOD)["envelope"])
    lying = [{"keyid": "gw-a", "sig": envelope["signatures"][0]["sig"]}]
    assert verdict(with_envelope(GOOD, signatures=lying)) == "accepted"
    stranger = forged(payload(), OTHER)
    named = json.loads(json.loads(stranger)["envelope"])["signatures"][0] | {"keyid": "gpu-a"}
    assert verdict(with_envelope(stranger, signatures=[named])) == "peer.wrong_signer"


def test_C4_another_form_of_a_signature_changes_neither_what_is_read_nor_its_digest() -> None:
    """ECDSA has two forms of each signature. Fences go by the signed bytes, so the second form is a repeat and nothing else."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    envelope = json.loads(json.loads(GOOD)["envelope"])
    r, s = decode_dss_signature(base64.b64decode(envelope["signatures"][0]["sig"]))
    other = base64.b64encode(encode_dss_signature(r, order - s)).decode()
    twin = with_envelope(GOOD, signatures=[{"keyid": "gpu-a", "sig": other}])
    seen = opened(GOOD)
    again = VERIFIER.open(twin, SNAPSHOT, now=NOW, marks={"gpu-a": seen.mark})
    assert (again.digest, again.mark) == (seen.digest, seen.mark)
    for wrong in (encode_dss_signature(r, s + order), encode_dss_signature(0, 0), base64.b64decode(other) + b"\0"):
        sig = base64.b64encode(wrong).decode()
        refused = with_envelope(GOOD, signatures=[{"keyid": "gpu-a", "sig": sig}])
        assert verdict(refused) == "envelope.bad_signature"


def test_C5_a_key_id_named_twice_is_refused() -> None:
    envelope = json.loads(json.loads(GOOD)["envelope"])
    assert verdict(with_envelope(GOOD, signatures=envelope["signatures"] * 2)) == "envelope.invalid"


def test_C13_a_document_of_another_cluster_is_refused() -> None:
    elsewhere = ClusterAuthority("staging")
    node = elsewhere.node("gpu-a", "worker", labels={"zone": "a"})
    text = node.signer().sign(SNAPSHOT, snapshot(cluster_id="staging"))
    assert verdict(text) == "certificate.untrusted"


def test_C13_with_a_copy_of_the_authority_the_name_of_the_cluster_still_decides() -> None:
    twin = ClusterAuthority("staging")
    twin.ca, twin.key = CLUSTER.ca, CLUSTER.key
    copied = twin.node("gpu-a", "worker", labels={"zone": "a"})
    assert verdict(copied.signer().sign(SNAPSHOT, snapshot(cluster_id="staging"))) == "peer.wrong_cluster"
    assert verdict(forged(payload(), copied)) == "peer.wrong_cluster"
    assert verdict(forged(payload(cluster_id="staging"))) == "peer.wrong_cluster"


def test_C14_what_is_parsed_is_what_was_verified() -> None:
    envelope = json.loads(json.loads(GOOD)["envelope"])
    for variant in (envelope["payload"] + "\n", " " + envelope["payload"], envelope["payload"] + "===="):
        assert verdict(with_envelope(GOOD, payload=variant)) == "envelope.invalid"
    duplicate = json.dumps(payload())[:-1] + ', "counter": 99}'
    assert verdict(forged(duplicate.encode())) == "json.invalid"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("x" * 2_000_000, "peer.too_large", id="much text"),
        pytest.param(forged(b"[" * 100_000), "json.invalid", id="deep"),
        pytest.param(forged(b"x" * (SNAPSHOT.max_bytes + 1)), "envelope.too_large", id="513 KiB"),
        pytest.param(forged(payload(replicas=[{}] * 1025)), "peer.malformed", id="1,025 replicas"),
        pytest.param(with_proof(GOOD, certificate_chain="x" * PEM_MAX_BYTES * 4), "peer.malformed", id="a huge chain"),
    ],
)
def test_C15_size_and_depth_are_bounded(text: str, expected: str) -> None:
    assert verdict(text) == expected


def test_C15_what_would_be_refused_is_not_signed() -> None:
    small = replace(SNAPSHOT, max_bytes=10)
    assert code(lambda: WORKER.signer().sign(small, snapshot())) == "peer.too_large"


@pytest.mark.parametrize("number", [2**53, -1, 0, 1.0, True, "1", None])
@pytest.mark.parametrize("field", ["counter", "boot_epoch", "identity_epoch"])
def test_C9_a_number_that_is_no_number_of_ours_is_refused(field: str, number: Any) -> None:
    assert verdict(forged(payload(**{field: number}))) in {"peer.malformed", "json.invalid"}


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(min_value=0, max_value=len(GOOD) - 1))
def test_C18_arbitrary_bytes_never_verify_and_never_crash(noise: bytes, position: int) -> None:
    text = noise.decode("latin-1")
    assert verdict(text) != "accepted"
    mangled = GOOD[:position] + text + GOOD[position + 1 :]
    if verdict(mangled) == "accepted":
        assert opened(mangled).digest == opened(GOOD).digest


# Roles and names


@pytest.mark.parametrize(
    ("text", "kind", "publisher", "expected"),
    [
        pytest.param(GOOD, SNAPSHOT, "gpu-b", "peer.wrong_publisher", id="in another node's place"),
        pytest.param(forged(payload(schema_version=2)), SNAPSHOT, None, "peer.too_new", id="of a later version"),
        pytest.param(forged(payload(surprise=1)), SNAPSHOT, None, "peer.malformed", id="unknown field"),
        pytest.param(forged(payload(identity_epoch=2)), SNAPSHOT, None, "peer.identity_mismatch", id="other epoch"),
        pytest.param(
            forged(payload(node={"node_id": "gpu-a", "roles": ["worker", "authority"], "labels": {"zone": "a"}})),
            SNAPSHOT,
            None,
            "peer.identity_mismatch",
            id="a role of its own making",
        ),
        pytest.param(
            forged(payload(node={"node_id": "gpu-a", "roles": ["worker"], "labels": {"zone": "b"}})),
            SNAPSHOT,
            None,
            "peer.identity_mismatch",
            id="a label of its own making",
        ),
        pytest.param(
            forged(assignment(lease_holder="gpu-a").model_dump(mode="json"), WORKER, ASSIGNMENT_PAYLOAD_TYPE),
            ASSIGNMENT,
            None,
            "peer.wrong_role",
            id="a worker assigns",
        ),
        pytest.param(
            forged(assignment().model_dump(mode="json"), WORKER, ASSIGNMENT_PAYLOAD_TYPE),
            ASSIGNMENT,
            None,
            "peer.wrong_signer",
            id="a worker assigns in the authority's name",
        ),
    ],
)
def test_a_node_speaks_for_itself_and_within_its_role(
    text: str, kind: DocumentKind[Any], publisher: str | None, expected: str
) -> None:
    assert verdict(text, kind, publisher=publisher) == expected


def test_nobody_signs_in_the_name_of_another() -> None:
    assert code(lambda: OTHER.signer().sign(SNAPSHOT, snapshot())) == "peer.wrong_signer"
    assert code(lambda: WORKER.signer().sign(SNAPSHOT, snapshot(identity_epoch=2))) == "peer.identity_mismatch"


def test_with_a_PKI_of_the_users_own_the_certificate_alone_proves() -> None:
    own = ClusterAuthority(own_pki=True)
    node = own.node("gpu-a", "worker", labels={"zone": "a"})
    text = node.signer().sign(SNAPSHOT, snapshot())
    assert verdict(text, verifier=own.verifier()) == "accepted"
    assert verdict(with_proof(text, identity=WORKER.files.identity), verifier=own.verifier()) == "identity.incomplete"


# C6-C8 and D10-D12: marks and fences


def marked(epoch: int = 1, boot: int = 5, counter: int = 3, digest: str = "", kit: NodeKit = WORKER) -> PeerMark:
    fingerprint = opened(kit.signer().sign(SNAPSHOT, snapshot())).peer.certificate_sha256
    return PeerMark(HighWater(epoch, fingerprint, boot), counter, digest)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(marked(counter=2), "accepted", id="the next"),
        pytest.param(marked(counter=3, digest=opened(GOOD).digest), "accepted", id="C8 the same again"),
        pytest.param(marked(counter=4), "peer.old_counter", id="C6 an older one"),
        pytest.param(
            marked(counter=3, digest="b" * 64), "peer.counter_conflict", id="C7 the same number, other content"
        ),
        pytest.param(marked(boot=4, counter=900), "accepted", id="after a restart the count begins anew"),
        pytest.param(marked(boot=6, counter=1), "identity.boot_rollback", id="of a process that ended"),
        pytest.param(marked(epoch=2, boot=1, counter=1), "identity.epoch_rollback", id="D11 of an older identity"),
        pytest.param(
            replace(marked(), identity=HighWater(1, "c" * 64, 5)), "identity.epoch_conflict", id="D12 other certificate"
        ),
    ],
)
def test_C6_to_C8_D11_D12_behind_or_beside_what_was_seen_is_refused(seen: PeerMark, expected: str) -> None:
    assert verdict(GOOD, marks={"gpu-a": seen}) == expected


def test_D12_a_second_certificate_of_one_epoch_is_an_alarm() -> None:
    seen = replace(marked(), identity=HighWater(1, "c" * 64, 5))
    with pytest.raises(SbctlError) as caught:
        VERIFIER.open(GOOD, SNAPSHOT, now=NOW, marks={"gpu-a": seen})
    assert caught.value.detail["alarm"] is True


def test_D10_D11_every_peer_that_saw_the_new_identity_refuses_the_old_one() -> None:
    renewed = CLUSTER.node("gpu-a", "worker", labels={"zone": "a"}, epoch=2)
    new = renewed.signer().sign(SNAPSHOT, snapshot(identity_epoch=2, boot_epoch=1, counter=1))
    for _ in range(3):
        peer = CLUSTER.verifier()
        marks = {"gpu-a": peer.open(GOOD, SNAPSHOT, now=NOW, marks={}).mark}
        marks["gpu-a"] = peer.open(new, SNAPSHOT, now=NOW, marks=marks).mark
        assert verdict(GOOD, verifier=peer, marks=marks) == "identity.epoch_rollback"
        """The marks are all that a restart needs to keep."""
        assert verdict(GOOD, verifier=CLUSTER.verifier(), marks=marks) == "identity.epoch_rollback"


def obeys(
    document: AssignmentDocument,
    *,
    fence: LeaseFence | None = None,
    held: BundleMark | None = BUNDLE,
    seen: int = 0,
    now: datetime = NOW,
    node_id: str = "gpu-a",
) -> str:
    verified = opened(AUTHORITY.signer().sign(ASSIGNMENT, document), ASSIGNMENT)

    def call() -> None:
        admit_assignment(verified, node_id=node_id, held=held, fence=fence, lease_epoch_seen=seen, now=now)

    return code(call)


DIGEST = opened(AUTHORITY.signer().sign(ASSIGNMENT, assignment()), ASSIGNMENT).digest


@pytest.mark.parametrize(
    ("fence", "seen", "expected"),
    [
        pytest.param(None, 0, "accepted", id="the first"),
        pytest.param(LeaseFence(4, "gw-a", 8, "x"), 4, "accepted", id="the next"),
        pytest.param(LeaseFence(3, "gw-b", 99, "x"), 3, "accepted", id="of a new holder"),
        pytest.param(LeaseFence(4, "gw-a", 9, DIGEST), 4, "accepted", id="C8 the same again"),
        pytest.param(LeaseFence(4, "gw-a", 10, "x"), 4, "lease.stale", id="C6 an older number"),
        pytest.param(LeaseFence(5, "gw-b", 1, "x"), 5, "lease.stale", id="C6 of a holder that lost the lease"),
        pytest.param(LeaseFence(4, "gw-a", 8, "x"), 5, "lease.stale", id="C6 a newer lease was seen elsewhere"),
        pytest.param(LeaseFence(4, "gw-a", 9, "x"), 4, "lease.conflict", id="C7 the same number, other content"),
        pytest.param(LeaseFence(4, "gw-b", 1, "x"), 4, "lease.two_holders", id="C7 one epoch, two holders"),
    ],
)
def test_C6_to_C8_only_the_newest_word_of_the_lease_holder_counts(
    fence: LeaseFence | None, seen: int, expected: str
) -> None:
    assert obeys(assignment(), fence=fence, seen=seen) == expected


@pytest.mark.parametrize(
    ("epoch", "seen", "expected"),
    [
        (5, 4, "accepted"),
        (4 + (1 << 20), 4, "accepted"),
        (5 + (1 << 20), 4, "lease.leap"),
        (JSON_INT_MAX, 4, "lease.leap"),
        (1 << 40, 0, "accepted"),
        (1 + (1 << 52), 0, "lease.leap"),
        (JSON_INT_MAX, 0, "lease.leap"),
    ],
)
def test_C9_no_authority_takes_the_last_lease_of_all(epoch: int, seen: int, expected: str) -> None:
    """After it is revoked, another one can still speak with a higher epoch."""
    assert obeys(assignment(lease_epoch=epoch), seen=seen) == expected
    if seen:
        fence = LeaseFence(seen, "gw-b", 1, "x")
        assert obeys(assignment(lease_epoch=epoch), fence=fence) == expected


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        pytest.param(None, "assignment.bundle_missing", id="no bundle yet"),
        pytest.param(BUNDLE.model_copy(update={"revision": 6}), "assignment.bundle_missing", id="an older bundle"),
        pytest.param(BUNDLE.model_copy(update={"revision": 8}), "assignment.bundle_old", id="a newer bundle"),
        pytest.param(
            BUNDLE.model_copy(update={"content_digest": "b" * 64}), "assignment.bundle_conflict", id="other content"
        ),
        pytest.param(BUNDLE.model_copy(update={"key_epoch": 2}), "assignment.bundle_old", id="of an older key epoch"),
    ],
)
def test_C12_an_assignment_goes_with_exactly_one_bundle(held: BundleMark | None, expected: str) -> None:
    assert obeys(assignment(), held=held) == expected


def test_an_assignment_of_another_node_is_not_obeyed() -> None:
    assert obeys(assignment(), node_id="gpu-b") == "assignment.wrong_node"


# C10, C11, D13-D16: times


@pytest.mark.parametrize(
    ("published_s", "ttl_s", "expected"),
    [
        pytest.param(0, 30, "accepted", id="now"),
        pytest.param(59, 30, "accepted", id="D14 a minute ahead"),
        pytest.param(-85, 30, "accepted", id="D14 a minute behind"),
        pytest.param(61, 30, "peer.clock_skew", id="C10 from the future"),
        pytest.param(600, 30, "peer.clock_skew", id="D14 ten minutes ahead"),
        pytest.param(-600, 30, "peer.expired", id="D14 ten minutes behind"),
        pytest.param(-121, 30, "peer.expired", id="D13 replayed after 120 s"),
        pytest.param(10 * 365 * 86400, 30, "peer.clock_skew", id="D14 ten years ahead"),
        pytest.param(0, 7 * 86400 + 1, "peer.lifetime", id="C10 for more than seven days"),
        pytest.param(0, -1, "peer.lifetime", id="expired before it began"),
    ],
)
def test_C10_D13_D14_a_snapshot_counts_in_its_time_only(published_s: int, ttl_s: int, expected: str) -> None:
    published = NOW + timedelta(seconds=published_s)
    document = snapshot(
        published_at_unix_ms=millis(published), expires_at_unix_ms=millis(published + timedelta(seconds=ttl_s))
    )
    assert verdict(WORKER.signer().sign(SNAPSHOT, document)) == expected


def test_D14_a_date_that_no_calendar_holds_is_refused_in_words() -> None:
    text = forged(payload(published_at_unix_ms=2**53 - 1, expires_at_unix_ms=2**53 - 1))
    with pytest.raises(SbctlError) as caught:
        opened(text)
    assert caught.value.code == "peer.clock_skew"
    for written in ("9999-12-31", "2026-11-30"):
        assert written in caught.value.message


def test_D13_D15_what_was_proven_once_is_not_believed_after_the_identity_ended() -> None:
    short = CLUSTER.node("gpu-a", "worker", labels={"zone": "a"}, validity=timedelta(hours=1))
    peer = CLUSTER.verifier()
    later = NOW + timedelta(hours=2)
    document = snapshot(published_at_unix_ms=millis(later), expires_at_unix_ms=millis(later + timedelta(seconds=30)))
    text = short.signer().sign(SNAPSHOT, document)
    early = short.signer().sign(SNAPSHOT, snapshot())
    assert verdict(early, verifier=peer) == "accepted"
    assert verdict(text, verifier=peer, now=later) == "certificate.expired"
    assert code(lambda: short.signer(later)) == "certificate.expired"


def test_D13_a_captured_document_is_nobody_elses() -> None:
    """From the place of another node, and by another's proof."""
    assert verdict(GOOD, publisher="gpu-b") == "peer.wrong_publisher"
    assert verdict(with_proof(GOOD, certificate_chain=OTHER.files.certificate, identity=OTHER.files.identity)) == (
        "envelope.bad_signature"
    )


def test_D16_D17_a_revoked_node_is_refused_from_the_next_document_on() -> None:
    cluster = ClusterAuthority()
    node = cluster.node("gpu-a", "worker", labels={"zone": "a"})
    text = node.signer().sign(SNAPSHOT, snapshot())
    assert verdict(text, verifier=cluster.verifier()) == "accepted"
    cluster.revoke(node)
    assert verdict(text, verifier=cluster.verifier()) == "identity.revoked"
    again = cluster.node("gpu-a", "worker", labels={"zone": "a"}, epoch=2)
    assert verdict(again.signer().sign(SNAPSHOT, snapshot(identity_epoch=2)), verifier=cluster.verifier()) == "accepted"


def test_D17_another_list_or_CA_leaves_no_proof_that_it_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClusterAuthority()
    stolen = cluster.node("gpu-a", "worker", labels={"zone": "a"})
    other = cluster.node("gpu-b", "worker")
    texts = {
        "gpu-a": stolen.signer().sign(SNAPSHOT, snapshot()),
        "gpu-b": other.signer().sign(SNAPSHOT, snapshot(node=ClusterNode(node_id="gpu-b", roles=("worker",)))),
    }
    peer = cluster.verifier()
    assert [verdict(text, verifier=peer) for text in texts.values()] == ["accepted", "accepted"]
    cluster.revoke(stolen)
    after = peer.followed_by(cluster.material())
    assert verdict(texts["gpu-a"], verifier=after) == "identity.revoked"
    with monkeypatch.context() as patch:
        patch.delattr(peer_documents, "verify_certificate")
        assert verdict(texts["gpu-b"], verifier=after) == "accepted", "it does not prove itself all over"
    assert verdict(texts["gpu-b"], verifier=after, now=NOW + 100 * DAY) == "certificate.expired"
    moved = after.followed_by(replace(cluster.material(), ca=ClusterAuthority().ca.certificate))
    assert verdict(texts["gpu-b"], verifier=moved) == "certificate.untrusted"


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("heard", "stale"),
    [
        pytest.param(None, False, id="a new node"),
        pytest.param(NOW, False, id="now"),
        pytest.param(NOW - 7 * DAY, False, id="seven days"),
        pytest.param(NOW - 7 * DAY - timedelta(seconds=61), True, id="more"),
        pytest.param(NOW + DAY, False, id="a clock that went back"),
    ],
)
def test_C11_an_authority_that_is_silent_for_seven_days_is_stale(heard: datetime | None, stale: bool) -> None:
    assert authority_stale(heard, NOW) is stale
    assert AUTHORITY_SILENCE_MAX == 7 * DAY


def test_C11_what_a_silent_authority_left_behind_places_nothing_new_and_stops_nothing() -> None:
    old = assignment(issued_at_unix_ms=millis(NOW - 8 * DAY))
    digest = opened(AUTHORITY.signer().sign(ASSIGNMENT, old), ASSIGNMENT).digest
    assert obeys(old) == "assignment.authority_stale"
    assert obeys(old, fence=LeaseFence(4, "gw-a", 9, digest)) == "accepted"


def test_C10_a_lease_counts_by_its_epoch_whatever_its_date() -> None:
    for minutes in (10, -10):
        dated = lease(renewed_at_unix_ms=millis(NOW + timedelta(minutes=minutes)))
        assert verdict(AUTHORITY.signer().sign(LEASE, dated), LEASE) == "accepted", "else two would take one epoch"


def test_a_proof_that_was_good_is_looked_at_again_when_the_clock_goes_back() -> None:
    peer = CLUSTER.verifier()
    assert verdict(GOOD, verifier=peer) == "accepted"
    before = datetime(2020, 1, 1, tzinfo=UTC)
    assert verdict(GOOD, verifier=peer, now=before) == "certificate.not_yet_valid"
