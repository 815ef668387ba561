"""How a revocation list reaches a node over the store, and what it does there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.errors import SbctlError
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.trust.identity import HighWater
from sbctl.trust.keys import SigningKey
from sbctl.trust.peer_documents import Peer, PeerMark
from sbctl.trust.revocation import RevocationList, sign_revocations
from tests.simulators.cluster_trust import NOW, ClusterAuthority, NodeKit
from tests.simulators.failing_files import FullAt


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)})
    found.state.mkdir(parents=True)
    return found


def installed(paths: NodePaths, kit: NodeKit) -> IdentityFiles:
    identity = IdentityFiles(paths)
    identity.switch(identity.stage(kit.files, kit.key))
    return identity


def held(paths: NodePaths, kit: NodeKit) -> HeldTrust:
    return HeldTrust("prod", installed(paths, kit), paths.state, now=NOW)


def revision(trust: HeldTrust) -> int:
    assert trust.revocations is not None
    return trust.revocations.revision


def silent_because(trust: HeldTrust) -> str | None:
    """Why the node signs nothing; None: it does."""
    assert (trust.signer is None) == (trust.problem is not None)
    return None if trust.problem is None else trust.problem.code


def peer_of(kit: NodeKit) -> Peer:
    identity = kit.signer().identity
    return Peer(kit.claims, identity.certificate.fingerprint, identity.until)


def code(call: Callable[[], object]) -> str:
    try:
        call()
    except SbctlError as error:
        return error.code
    return "accepted"


def test_D17_a_list_from_the_store_takes_hold_at_once_and_at_every_later_start(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    here, stolen = cluster.node("gw-a", "gateway"), cluster.node("gpu-a", "worker")
    trust = held(paths, here)
    told: list[int] = []
    trust.on_change(lambda: told.append(revision(trust)))
    before = trust.verifier
    assert code(lambda: trust.check(peer_of(stolen), {})) == "accepted"
    cluster.revoke(stolen)
    assert trust.offer_revocations(cluster.revocations_text, now=NOW)
    assert code(lambda: trust.check(peer_of(stolen), {})) == "identity.revoked"
    assert told == [1]
    assert trust.verifier is not before
    assert not trust.offer_revocations(cluster.revocations_text, now=NOW), "the same list again"
    again = HeldTrust("prod", IdentityFiles(paths), paths.state, now=NOW)
    assert code(lambda: again.check(peer_of(stolen), {})) == "identity.revoked"


def test_a_list_never_becomes_older_wherever_it_comes_from(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    here, other = cluster.node("gw-a", "gateway"), cluster.node("gpu-a", "worker")
    empty = cluster.revocations_text
    trust = held(paths, here)
    cluster.revoke(other)
    first = cluster.revocations_text
    cluster.revoke(cluster.node("gpu-b", "worker"))
    trust.offer_revocations(cluster.revocations_text, now=NOW)
    for older in (empty, first):
        assert code(lambda text=older: trust.offer_revocations(text, now=NOW)) == "revocations.stale"  # type: ignore[misc]
    assert revision(trust) == 2
    """An apply by somebody with the list of yesterday, then one with that of tomorrow."""
    trust.reload(now=NOW)
    assert revision(trust) == 2
    cluster.revoke(cluster.node("gpu-c", "worker"))
    installed(paths, cluster.node("gw-a", "gateway", epoch=2))
    trust.reload(now=NOW)
    assert revision(trust) == 3


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"cluster_id": "staging"}, "revocations.wrong_cluster", id="C13 of another cluster"),
        pytest.param({"revision": 0, "entries": ()}, "accepted", id="the same number, the same content"),
    ],
)
def test_C13_a_list_of_another_cluster_is_refused(paths: NodePaths, change: dict[str, object], expected: str) -> None:
    cluster = ClusterAuthority()
    trust = held(paths, cluster.node("gw-a", "gateway"))
    text = sign_revocations(cluster.revocations.model_copy(update=change), {"authority": cluster.key})
    assert code(lambda: trust.offer_revocations(text, now=NOW)) == expected


def test_two_lists_of_one_number_are_an_alarm(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    trust = held(paths, cluster.node("gw-a", "gateway"))
    cluster.revoke(cluster.node("gpu-a", "worker"))
    trust.offer_revocations(cluster.revocations_text, now=NOW)
    other = cluster.revocations.model_copy(update={"entries": ()})
    with pytest.raises(SbctlError) as caught:
        trust.offer_revocations(sign_revocations(other, {"authority": cluster.key}), now=NOW)
    assert (caught.value.code, caught.value.detail["alarm"]) == ("revocations.conflict", True)


def test_C1_a_list_that_no_authority_signed_changes_nothing(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    trust = held(paths, cluster.node("gw-a", "gateway"))
    forged = RevocationList(cluster_id="prod", revision=9)
    text = sign_revocations(forged, {"authority": SigningKey.generate()})
    assert code(lambda: trust.offer_revocations(text, now=NOW)) == "envelope.bad_signature"
    assert revision(trust) == 0
    assert not (paths.state / "revocations.json").exists()


def test_a_kept_list_that_cannot_be_used_leaves_the_installed_one(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    kit = cluster.node("gw-a", "gateway")
    stranger = sign_revocations(RevocationList(cluster_id="prod", revision=9), {"authority": SigningKey.generate()})
    for content in ("", "no json", stranger):
        (paths.state / "revocations.json").write_text(content)
        assert revision(held(paths, kit)) == 0


def test_a_full_disk_applies_no_list_that_a_restart_would_forget(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    stolen = cluster.node("gpu-a", "worker")
    trust = held(paths, cluster.node("gw-a", "gateway"))
    cluster.revoke(stolen)
    number = 1
    while True:
        disk = FullAt(number)
        with fs.use_ops(disk):
            answer = code(lambda: trust.offer_revocations(cluster.revocations_text, now=NOW))
        if disk.left > 0:
            break
        assert answer != "accepted"
        if revision(trust) == 0:
            assert code(lambda: trust.check(peer_of(stolen), {})) == "accepted"
        number += 1
    assert code(lambda: trust.check(peer_of(stolen), {})) == "identity.revoked"


def test_D16_D17_a_node_that_is_revoked_itself_says_so_and_signs_no_more(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    kit = cluster.node("gpu-a", "worker")
    trust = held(paths, kit)
    assert silent_because(trust) is None
    cluster.revoke(kit)
    trust.offer_revocations(cluster.revocations_text, now=NOW)
    assert silent_because(trust) == "identity.revoked"
    installed(paths, cluster.node("gpu-a", "worker", epoch=2))
    trust.reload(now=NOW)
    assert silent_because(trust) is None


def test_D15_an_identity_that_ended_signs_no_more_and_still_judges_others(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    trust = held(paths, cluster.node("gpu-a", "worker", validity=timedelta(hours=1)))
    other = cluster.node("gw-a", "gateway")
    trust.reload(now=NOW + timedelta(hours=2))
    assert silent_because(trust) == "certificate.expired"
    assert code(lambda: trust.check(peer_of(other), {})) == "accepted"


def test_D11_D12_a_connection_of_an_older_or_a_second_identity_gets_no_further_request(paths: NodePaths) -> None:
    cluster = ClusterAuthority()
    trust = held(paths, cluster.node("gw-a", "gateway"))
    peer = peer_of(cluster.node("gpu-a", "worker"))
    newer = {"gpu-a": PeerMark(HighWater(2, "c" * 64, 1))}
    beside = {"gpu-a": PeerMark(HighWater(1, "c" * 64, 1))}
    assert code(lambda: trust.check(peer, newer)) == "identity.epoch_rollback"
    assert code(lambda: trust.check(peer, beside)) == "identity.epoch_conflict"


def test_with_a_PKI_of_the_users_own_there_is_no_list(paths: NodePaths) -> None:
    own = ClusterAuthority(own_pki=True)
    trust = held(paths, own.node("gw-a", "gateway"))
    assert silent_because(trust) is None
    assert trust.revocations is None
    assert code(lambda: trust.offer_revocations(own.revocations_text, now=NOW)) == "revocations.none_here"
