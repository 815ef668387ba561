"""Marks and fences of a node: durable before use, never back, one transaction with the document that moved them."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.clock import SystemClock
from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster import fences
from sbctl.runtime.cluster.boot_epoch import next_boot_epoch, take_boot_epoch
from sbctl.runtime.cluster.fences import COPY_NAME, ClusterFences
from sbctl.trust.cluster_bundle import replica_digest, verify_cluster_bundle
from sbctl.trust.cluster_fences import LeaseFence
from sbctl.trust.identity import HighWater
from sbctl.trust.peer_documents import PeerMark
from tests.simulators.cluster_bundles import TRUST, host_member, signed_bundle
from tests.simulators.cluster_trust import NOW
from tests.simulators.power_cut import CutPoint, PowerCut
from tests.simulators.sqlite_disk import is_possible, told_to
from tests.simulators.state_world import fast_directory


class SetClock(SystemClock):
    """Says what it is told to."""

    moment = NOW

    def now(self) -> datetime:
        return self.moment


@pytest.fixture
def root() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


def mark(boot: int, counter: int = 1) -> PeerMark:
    return PeerMark(HighWater(1, "f" * 64, boot), counter, "d" * 64)


def code(call: Callable[[], object]) -> str:
    with pytest.raises(SbctlError) as caught:
        call()
    return caught.value.code


def test_what_was_kept_is_there_after_a_restart(root: Path) -> None:
    first = ClusterFences(root / "cluster.db")
    first.advance({"gpu-a": mark(5)})
    first.note("gpu-b", mark(6))
    first.accept("assignment", LeaseFence(4, "gw-a", 9, "x"), "the text", issued_at=NOW)
    first.take_lease_epoch(7)
    first.close()
    again = ClusterFences(root / "cluster.db")
    assert dict(again.known()) == {"gpu-a": mark(5), "gpu-b": mark(6)}
    assert again.fence("assignment") == LeaseFence(4, "gw-a", 9, "x")
    assert (again.accepted("assignment"), again.accepted("placement"), again.fence("lease")) == ("the text", None, None)
    assert again.lease_epoch_seen == 7
    assert again.authority_heard_at() == NOW


def test_C6_C11_bundle_and_fence_are_there_after_a_restart_without_a_store(root: Path) -> None:
    text = signed_bundle()
    verified = verify_cluster_bundle(text, trust=TRUST, cluster_id="prod", fence=None, now=NOW)
    first = ClusterFences(root / "cluster.db")
    assert (first.bundle(), first.bundle_fence()) == (None, None)
    first.accept_bundle(verified, text)
    first.close()
    again = ClusterFences(root / "cluster.db")
    kept = again.bundle()
    assert kept is not None
    assert (kept.payload, kept.signer, kept.envelope) == (verified.payload, "ops", text)
    assert again.bundle_fence() == verified.fence
    assert again.authority_heard_at() == NOW
    again.close()


def test_members_that_ran_here_are_kept_the_newest_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "_MEMBERS_KEPT", 2)
    members = [host_member(max_concurrency=number) for number in (1, 2, 3)]
    digests = [replica_digest(member) for member in members]
    kept = ClusterFences(root / "cluster.db")
    for number in (0, 1, 0, 2):
        kept.remember({digests[number]: members[number]})
    assert kept.remembered() == {digests[0]: members[0], digests[2]: members[2]}


def test_what_was_heard_never_goes_back(root: Path) -> None:
    kept = ClusterFences(root / "cluster.db")
    assert (kept.authority_heard_at(), kept.lease_epoch_seen) == (None, 0)
    kept.hear(NOW)
    kept.hear(NOW - timedelta(days=1))
    kept.accept("lease", LeaseFence(3, "gw-a", 0, "x"), "t", issued_at=NOW - timedelta(hours=1))
    kept.take_lease_epoch(2)
    assert (kept.authority_heard_at(), kept.lease_epoch_seen) == (NOW, 3)


def changed(root: Path, statement: str) -> None:
    """In both files, as damage that nobody sealed."""
    for name in ("cluster.db", COPY_NAME):
        with closing(sqlite3.connect(root / name, isolation_level=None)) as other:
            other.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fence SET document = 'another'",
        "UPDATE fence SET lease_epoch = 0",
        "UPDATE peer SET identity_epoch = 0",
        "UPDATE heard SET lease_epoch = 0",
        "DELETE FROM written",
    ],
)
def test_a_memory_that_is_lost_lets_nothing_in_and_stops_nothing(root: Path, statement: str) -> None:
    kept = ClusterFences(root / "cluster.db")
    kept.note("gpu-a", mark(5))
    kept.accept("assignment", LeaseFence(1, "gw-a", 1, "x"), "the text", issued_at=NOW)
    kept.close()
    changed(root, statement)
    again = ClusterFences(root / "cluster.db")
    assert again.problem is not None
    assert (again.problem.code, bool(again.problem.next_step)) == ("cluster.state_damaged", True)
    assert (again.accepted("assignment"), dict(again.known())) == (None, {})
    for write in (
        lambda: again.note("gpu-a", mark(4)),
        lambda: again.accept("assignment", LeaseFence(1, "gw-a", 1, "x"), "the text", issued_at=NOW),
        lambda: again.hear(NOW),
        lambda: again.take_lease_epoch(1),
        lambda: again.keep_signers(TRUST),
    ):
        assert code(write) == "cluster.state_damaged"
    again.close()
    for name in ("cluster.db", COPY_NAME):
        (root / name).unlink()
    anew = ClusterFences(root / "cluster.db")
    assert anew.problem is None
    anew.note("gpu-a", mark(6))


def test_a_memory_of_a_newer_version_is_left_alone(root: Path) -> None:
    ClusterFences(root / "cluster.db").close()
    changed(root, "PRAGMA user_version=3")
    assert code(lambda: ClusterFences(root / "cluster.db")) == "cluster.state_too_new"
    assert not list(root.glob("*.damaged"))


def test_peers_are_forgotten_only_when_none_of_their_certificates_can_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fences, "PEERS_MAX", 2)
    clock = SetClock()
    kept = ClusterFences(root / "cluster.db", clock)
    kept.advance({"a": mark(1), "b": mark(1)})
    assert code(lambda: kept.advance({"c": mark(1)})) == "cluster.too_many_peers"
    assert set(kept.known()) == {"a", "b"}
    clock.moment = NOW + timedelta(days=800)
    kept.advance({"b": mark(2)})
    clock.moment = NOW + timedelta(days=826)
    kept.advance({"c": mark(1)})
    assert set(kept.known()) == {"b", "c"}
    kept.close()
    assert set(ClusterFences(root / "cluster.db").known()) == {"b", "c"}


@pytest.mark.skipif(not is_possible(), reason="optional: this Python brings a SQLite of its own")
def test_C17_F13_a_power_cut_anywhere_leaves_what_was_acknowledged_and_nothing_half(root: Path) -> None:
    node = root / "node"
    node.mkdir()
    disk = PowerCut(node)
    disk.begin()
    script: list[Callable[[ClusterFences], None]] = [
        lambda kept: kept.advance({"gpu-a": mark(5)}),
        lambda kept: kept.accept("assignment", LeaseFence(1, "gw-a", 1, "1"), "one", issued_at=NOW),
        lambda kept: kept.advance({"gpu-a": mark(6), "gpu-b": mark(1)}),
        lambda kept: kept.accept("assignment", LeaseFence(1, "gw-a", 2, "2"), "two", issued_at=NOW),
        lambda kept: kept.take_lease_epoch(9),
    ]

    def seen(kept: ClusterFences) -> tuple[object, ...]:
        fence = kept.fence("assignment")
        return dict(kept.known()), fence, kept.accepted("assignment"), kept.lease_epoch_seen

    trace: list[tuple[object, ...]] = []
    with told_to(disk), fs.use_ops(disk):
        kept = ClusterFences(node / "cluster.db")
        disk.acknowledged = 1
        trace.append(seen(kept))
        for step in script:
            step(kept)
            disk.acknowledged += 1
            trace.append(seen(kept))
        kept.close()
    unlike: dict[tuple[object, ...], CutPoint] = {(point.acknowledged, *point.key): point for point in disk.points}
    left = root / "left"
    for number, point in enumerate(unlike.values()):
        directory = left / str(number)
        left.mkdir(exist_ok=True)
        point.rebuild(directory)
        for shared in directory.rglob("*-shm"):
            shared.unlink()
        again = ClusterFences(directory / "cluster.db")
        allowed = trace[max(point.acknowledged - 1, 0) : point.acknowledged + 1]
        assert seen(again) in allowed, (point.call, point.policy)
        again.close()
    assert len(unlike) > 20


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        pytest.param(0, int(NOW.timestamp()), id="the first start, or a lost file"),
        pytest.param(int(NOW.timestamp()) - 50, int(NOW.timestamp()), id="after a while"),
        pytest.param(int(NOW.timestamp()), int(NOW.timestamp()) + 1, id="twice in a second"),
        pytest.param(2**50, 2**50 + 1, id="with a clock that went back"),
    ],
)
def test_a_boot_epoch_comes_after_the_last_and_after_the_clock(last: int, expected: int) -> None:
    assert next_boot_epoch(last, NOW) == expected


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="no number"),
        pytest.param(b'{"schema_version":1,"boot_epoch":"7"}', id="text"),
        pytest.param(b'{"schema_version":1,"boot_epoch":9007199254740991}', id="no room above"),
        pytest.param(b"\xff\x00" * 9000, id="noise"),
    ],
)
def test_a_boot_epoch_that_cannot_be_read_is_made_up_for_by_the_clock(root: Path, content: bytes | None) -> None:
    if content is not None:
        (root / "boot-epoch.json").write_bytes(content)
    first = take_boot_epoch(root, NOW)
    assert first == int(NOW.timestamp())
    assert take_boot_epoch(root, NOW) == first + 1


def test_F13_no_two_starts_have_one_number_whatever_is_cut_between_them(root: Path) -> None:
    """The clock stands still, so the file alone has to tell them apart."""
    node = root / "node"
    node.mkdir()
    disk = PowerCut(node)
    disk.begin()
    taken: list[int] = []
    with fs.use_ops(disk):
        for _ in range(3):
            taken.append(take_boot_epoch(node, NOW))
            disk.acknowledged += 1
    assert all(after == before + 1 for before, after in itertools.pairwise(taken))
    for number, point in enumerate(disk.points):
        left = root / str(number)
        point.rebuild(left)
        used = taken[: point.acknowledged]
        assert take_boot_epoch(left, NOW) not in used, (point.call, point.policy)
