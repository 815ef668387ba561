"""Who counts in a cluster, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SystemClock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import BundleMark, CapacityReport, ClusterNode, HealthReport, NodeSnapshotDocument
from sbctl.node.paths import node_paths
from sbctl.placement.documents import LEAVES
from sbctl.runtime.cluster import directory as module
from sbctl.runtime.cluster.directory import Directory, DirectoryRow, origin_of
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.trust.peer_kinds import SNAPSHOT
from tests.simulators.cluster_trust import NOW, ClusterAuthority, NodeKit

BUNDLE = BundleMark(key_epoch=1, revision=7, content_digest="a" * 64)
OLDER = BundleMark(key_epoch=1, revision=6, content_digest="b" * 64)
OTHER = BundleMark(key_epoch=1, revision=7, content_digest="c" * 64)
NEWER = BundleMark(key_epoch=1, revision=8, content_digest="d" * 64)


class SetClock(SystemClock):
    """Says what it is told to."""

    moment = NOW
    set_by_s = 0.0
    """Of its own, beside the time that passes."""

    def now(self) -> datetime:
        return self.moment + timedelta(seconds=self.set_by_s)

    def monotonic_s(self) -> float:
        return (self.moment - NOW).total_seconds()


class World:
    """One reader of a directory, and the nodes of its cluster."""

    def __init__(self, folder: Path) -> None:
        self.cluster = ClusterAuthority()
        self.clock = SetClock()
        self.folder = folder
        paths = node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)})
        paths.state.mkdir(parents=True)
        kit = self.cluster.node("gw-a", "gateway", "authority")
        identity = IdentityFiles(paths)
        identity.switch(identity.stage(kit.files, kit.key))
        self.trust = HeldTrust("prod", identity, paths.state, now=NOW)
        issued = NOW - timedelta(hours=1)
        self.kits = {name: self.cluster.node(name, "worker", now=issued) for name in ("gpu-a", "gpu-b")}
        self.directory = self.started()

    def started(self) -> Directory:
        return Directory(self.trust, ClusterFences(self.folder / "cluster.db", self.clock), self.clock)

    def snapshot(self, name: str = "gpu-a", *, kit: NodeKit | None = None, **changed: Any) -> str:
        signer = (kit or self.kits[name]).signer(self.clock.moment)
        now_ms = int(self.clock.moment.timestamp() * 1000)
        base: dict[str, Any] = {
            "cluster_id": "prod",
            "identity_epoch": signer.identity.claims.identity_epoch,
            "boot_epoch": 5,
            "node": ClusterNode(node_id=name, roles=("worker",)),
            "counter": 1,
            "published_at_unix_ms": now_ms,
            "expires_at_unix_ms": now_ms + 30_000,
            "health": HealthReport(state="ready", peer_plane="ready"),
            "capacity": CapacityReport(memory_bytes=1),
            "active_bundle": BUNDLE,
        }
        return signer.sign(SNAPSHOT, NodeSnapshotDocument(**base | changed))

    def row(self, name: str = "gpu-a", active: BundleMark | None = BUNDLE) -> DirectoryRow:
        return self.directory.view(active).rows[name]

    def pass_s(self, seconds: float) -> None:
        self.clock.moment += timedelta(seconds=seconds)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_node_counts_as_long_as_its_snapshot_does(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot()})
    assert (world.row().exclusion, world.row().heard_at_ms) == ("", int(NOW.timestamp() * 1000))
    world.pass_s(31)
    assert world.row().exclusion == "snapshot_expired"
    world.directory.take({"gpu-a": world.snapshot(counter=2)})
    assert world.row().exclusion == ""


def unhealthy() -> HealthReport:
    return HealthReport(state="unhealthy", peer_plane="ready")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(lambda _w: "garbage", "snapshot_malformed", id="garbage"),
        pytest.param(lambda w: w.snapshot("gpu-b"), "publisher_mismatch", id="another node's"),
        pytest.param(lambda w: w.snapshot(kit=stranger()), "identity_mismatch", id="a stranger's"),
        pytest.param(lambda w: w.snapshot(cluster_id="staging"), "identity_mismatch", id="of another cluster"),
        pytest.param(
            lambda w: w.snapshot(published_at_unix_ms=ms(600), expires_at_unix_ms=ms(630)),
            "clock_skew",
            id="a fast clock",
        ),
        pytest.param(
            lambda w: w.snapshot(published_at_unix_ms=ms(-600), expires_at_unix_ms=ms(-570)),
            "snapshot_expired",
            id="a slow clock",
        ),
        pytest.param(lambda w: w.snapshot(health=unhealthy()), "reported_unhealthy", id="unhealthy"),
        pytest.param(lambda w: w.snapshot(active_bundle=OTHER), "deployment_digest_mismatch", id="other content"),
        pytest.param(lambda w: w.snapshot(active_bundle=OLDER), "", id="an older bundle, for a moment"),
        pytest.param(lambda w: w.snapshot(active_bundle=None), "", id="no bundle yet"),
        pytest.param(lambda w: w.snapshot(active_bundle=NEWER), "", id="a newer bundle than this reader"),
    ],
)
def test_each_reason_excludes_the_node_that_it_is_about_and_no_other(
    world: World, text: Callable[[World], str], expected: str
) -> None:
    world.directory.take({"gpu-a": text(world), "gpu-b": world.snapshot("gpu-b")})
    row = world.row()
    assert row.exclusion == expected
    assert bool(row.problem) == (row.snapshot is None), "who is refused is told why"
    assert world.row("gpu-b").exclusion == ""


def told(world: World, name: str, off_s: float, counter: int) -> str:
    """Written just now by a node whose clock is off."""
    published_ms = int(world.clock.moment.timestamp() * 1000) + int(off_s * 1000)
    return world.snapshot(
        name, counter=counter, published_at_unix_ms=published_ms, expires_at_unix_ms=published_ms + 30_000
    )


@pytest.mark.parametrize(("off_s", "words"), [(600, "600 s ahead of"), (-600, "600 s behind")])
def test_a_clock_that_is_off_excludes_its_node_with_the_seconds_until_it_is_set(
    world: World, off_s: float, words: str
) -> None:
    world.directory.take({name: world.snapshot(name) for name in world.kits}, fresh=world.kits)
    world.directory.take({"gpu-a": told(world, "gpu-a", off_s, 2)}, fresh={"gpu-a"})
    assert world.row().exclusion == "", "what was believed before counts to its end"
    world.pass_s(31)
    world.directory.take(
        {"gpu-a": told(world, "gpu-a", off_s, 3), "gpu-b": told(world, "gpu-b", 0, 2)}, fresh=world.kits
    )
    row = world.row()
    assert row.exclusion == "clock_skew"
    assert words in row.problem
    assert world.row("gpu-b").exclusion == ""
    assert world.directory.view(BUNDLE).own_ahead_s is None, "one of two others says nothing of this clock"
    world.directory.take({"gpu-a": told(world, "gpu-a", 0, 4)}, fresh={"gpu-a"})
    assert (world.row().exclusion, world.row().problem) == ("", "")


@pytest.mark.parametrize("set_by_s", [600.0, -600.0])
def test_a_reader_whose_own_clock_is_off_knows_it_and_nobody_looks_silent(world: World, set_by_s: float) -> None:
    world.directory.take({name: world.snapshot(name) for name in world.kits}, fresh=world.kits)
    world.clock.set_by_s = set_by_s
    world.pass_s(5)
    world.directory.take({name: told(world, name, 0, 2) for name in world.kits}, fresh=world.kits)
    view = world.directory.view(BUNDLE)
    assert view.own_ahead_s == pytest.approx(set_by_s)
    now_ms = int(world.clock.now().timestamp() * 1000)
    assert [row.exclusion for row in view.rows.values()] == ["", ""]
    assert [now_ms - row.heard_at_ms for row in view.rows.values()] == [5000, 5000]
    world.clock.set_by_s = 0.0
    assert [row.heard_at_ms for row in view.redated(origin_of(world.clock)).rows.values()] == [ms(0), ms(0)]
    world.directory.take({name: told(world, name, 0, 3) for name in world.kits}, fresh=world.kits)
    assert world.directory.view(BUNDLE).own_ahead_s is None


def ms(seconds: float) -> int:
    return int((NOW + timedelta(seconds=seconds)).timestamp() * 1000)


def stranger() -> NodeKit:
    return ClusterAuthority().node("gpu-a", "worker")


def test_a_node_that_stays_behind_gets_nothing_new_until_it_follows(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot(active_bundle=OLDER)})
    assert world.row().exclusion == ""
    world.pass_s(29)
    world.directory.take({"gpu-a": world.snapshot(active_bundle=OLDER, counter=2)})
    assert world.row().exclusion == ""
    world.pass_s(2)
    assert world.row().exclusion == "behind_active_generation"
    world.directory.take({"gpu-a": world.snapshot(counter=3)})
    assert world.row().exclusion == ""


def test_what_is_refused_takes_nothing_from_what_was_believed_before(world: World) -> None:
    first, second = world.snapshot(counter=1), world.snapshot(counter=2)
    world.directory.take({"gpu-a": second})
    for replayed in (first, "garbage", world.snapshot("gpu-b")):
        world.directory.take({"gpu-a": replayed})
        row = world.row()
        assert row.exclusion == ""
        assert row.snapshot is not None
        assert row.snapshot.counter == 2
        assert row.problem
    world.pass_s(31)
    assert world.row().exclusion == "publisher_mismatch", "and then the reason is the newest one"


def test_two_snapshots_of_one_number_exclude_at_once(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot()})
    world.directory.take({"gpu-a": world.snapshot(runtime_version="2")})
    assert world.row().exclusion == "snapshot_generation_conflict"


def test_D11_after_a_restart_of_the_reader_an_old_snapshot_is_still_old(world: World) -> None:
    first = world.snapshot(counter=1)
    world.directory.take({"gpu-a": world.snapshot(counter=2)})
    world.directory.fences.close()
    world.directory = world.started()
    world.directory.take({"gpu-a": first})
    assert world.row().exclusion == "old_snapshot_generation"


def test_what_lay_in_the_store_counts_a_minute_beyond_its_end_at_most(world: World) -> None:
    text = world.snapshot()
    world.pass_s(85)
    world.directory.take({"gpu-a": text})
    assert world.row().exclusion == ""
    world.pass_s(6)
    assert world.row().exclusion == "snapshot_expired"


def test_D15_a_snapshot_does_not_outlive_the_identity_that_signed_it(world: World) -> None:
    short = world.cluster.node("gpu-a", "worker", validity=timedelta(hours=1))
    world.directory.take({"gpu-a": world.snapshot(kit=short, expires_at_unix_ms=ms(86_400))})
    world.pass_s(3599)
    assert world.row().exclusion == ""
    world.pass_s(2)
    assert world.row().exclusion == "snapshot_expired"


def test_D17_a_revoked_node_is_out_before_it_says_anything_again(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot(), "gpu-b": world.snapshot("gpu-b")})
    world.cluster.revoke(world.kits["gpu-a"])
    world.trust.offer_revocations(world.cluster.revocations_text, now=NOW)
    assert (world.row().exclusion, world.row("gpu-b").exclusion) == ("identity_revoked", "")
    world.directory.take({"gpu-a": world.snapshot(counter=2)})
    assert world.row().exclusion == "identity_revoked"


def test_D10_the_old_identity_of_a_node_that_was_rotated_is_out(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot()})
    renewed = world.cluster.node("gpu-a", "worker", epoch=2)
    world.directory.take({"gpu-a": world.snapshot(kit=renewed, boot_epoch=1)})
    assert world.row().exclusion == ""
    world.directory.take({"gpu-a": world.snapshot(counter=9)})
    row = world.row()
    assert row.exclusion == ""
    assert row.snapshot is not None
    assert row.snapshot.identity_epoch == 2


def test_D10_whoever_holds_a_revoked_identity_of_a_rotated_node_takes_nothing_from_it(world: World) -> None:
    """The store knows nodes by name: it lets the former certificate write, and delete, in the node's place."""
    stolen = world.kits["gpu-a"]
    world.cluster.revoke(stolen)
    world.trust.offer_revocations(world.cluster.revocations_text, now=NOW)
    renewed = world.cluster.node("gpu-a", "worker", epoch=2)
    world.directory.take({"gpu-a": world.snapshot(kit=renewed, boot_epoch=1)})
    world.directory.take({"gpu-a": world.snapshot(counter=9)})
    assert world.row().exclusion == ""
    assert "revoked" in world.row().problem
    world.directory.remove("gpu-a")
    assert (world.row().exclusion, world.row().removed) == ("", False)
    world.pass_s(31)
    assert world.row().exclusion == "snapshot_expired", "the node is silent, and not out of the cluster"


def test_a_refusal_that_passes_by_itself_is_not_kept(world: World) -> None:
    ahead = world.snapshot(published_at_unix_ms=ms(100), expires_at_unix_ms=ms(130))
    world.directory.take({"gpu-a": ahead})
    assert world.row().exclusion == "clock_skew"
    world.pass_s(50)
    world.directory.take({"gpu-a": ahead})
    assert world.row().exclusion == ""


def test_a_node_that_left_the_store_stays_in_the_roster_and_takes_no_member_s_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = HealthReport(state="degraded", reason_codes=(LEAVES,), peer_plane="ready")
    text = world.snapshot(health=leaving)
    world.directory.take({"gpu-a": text})
    world.directory.remove("gpu-a")
    assert (world.row().exclusion, world.row().removed) == ("snapshot_missing", True)
    world.directory.take({"gpu-a": text})
    assert (world.row().exclusion, world.row().removed) == ("", False)
    monkeypatch.setattr(module, "MEMBERS_MAX", 1)
    monkeypatch.setattr(module, "_LEFT_MAX", 1)
    world.directory.remove("gpu-a")
    world.directory.take({"gpu-b": world.snapshot("gpu-b", health=leaving)})
    assert {name: row.removed for name, row in world.directory.view(BUNDLE).rows.items()} == {
        "gpu-a": True,
        "gpu-b": False,
    }
    world.directory.remove("gpu-b")
    assert set(world.directory.view(BUNDLE).rows) == {"gpu-b"}, "the oldest tombstone goes first"


def test_without_the_store_the_directory_goes_on_and_says_since_when(world: World) -> None:
    assert world.directory.view(None).collected_at_ms == 0
    world.directory.take({"gpu-a": world.snapshot(expires_at_unix_ms=ms(3600))})
    assert world.directory.view(BUNDLE).stale_since_ms is None
    world.pass_s(16)
    view = world.directory.view(BUNDLE)
    assert (view.stale_since_ms, view.rows["gpu-a"].exclusion) == (ms(0), "")
    world.directory.contact()
    assert world.directory.view(BUNDLE).stale_since_ms is None


def test_the_digest_names_one_state_of_the_directory(world: World) -> None:
    world.directory.take({"gpu-a": world.snapshot()})
    first = world.directory.view(BUNDLE).digest
    assert world.directory.view(BUNDLE).digest == first
    world.directory.take({"gpu-a": world.snapshot(counter=2)})
    assert world.directory.view(BUNDLE).digest != first


def test_no_more_nodes_than_a_cluster_may_have(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMBERS_MAX", 1)
    world.directory.take({"gpu-a": world.snapshot()})
    world.directory.take({"gpu-b": world.snapshot("gpu-b")})
    assert set(world.directory.view(BUNDLE).rows) == {"gpu-a"}


def test_nothing_is_used_whose_mark_could_not_be_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_marks: object) -> None:
        raise SbctlError("cluster.state_not_written", "no space left", retryable=True)

    monkeypatch.setattr(world.directory.fences, "advance", full)
    with pytest.raises(SbctlError) as caught:
        world.directory.take({"gpu-a": world.snapshot()})
    assert caught.value.code == "cluster.state_not_written"
    assert world.directory.view(BUNDLE).rows == {}
