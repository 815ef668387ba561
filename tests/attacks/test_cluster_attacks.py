"""A node out of hand against all that the store shows of it (docs/threats.md, sections C, D, G and H): it harms itself, and nobody else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base import strict_json
from sbctl.base.clock import SystemClock
from sbctl.base.display import display_safe
from sbctl.base.errors import SbctlError
from sbctl.base.limits import JSON_INT_MAX
from sbctl.node.cluster_documents import SNAPSHOT_PAYLOAD_TYPE, DeviceReport, LeaseDocument
from sbctl.node.paths import node_paths
from sbctl.placement.model import NO_DIGEST, DeploymentPlacement, PlacementPlan
from sbctl.runtime.cluster.boot_epoch import take_boot_epoch
from sbctl.runtime.cluster.buckets import bucket_config, differs
from sbctl.runtime.cluster.directory import Directory, DirectoryRow, DirectoryView
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.happenings import happened
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.lease import ClusterLease
from sbctl.runtime.cluster.lease_words import SignedLease
from sbctl.runtime.cluster.overview import artifacts_document, metrics_document, vram_document
from sbctl.runtime.cluster.roster import Roster
from sbctl.runtime.cluster.roster_memory import RosterMemory
from sbctl.runtime.cluster.store import CONTROLLER_KEY, Bucket, node_key
from sbctl.runtime.durable_sqlite import opened
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.peer.known import KnownCluster
from sbctl.trust.envelope import sign_with
from sbctl.trust.node_keys import node_signs
from sbctl.trust.peer_kinds import LEASE, SNAPSHOT
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_store import MemoryCluster
from tests.simulators.cluster_trust import NOW, ClusterAuthority
from tests.simulators.engine_world import facts, in_virtual_time
from tests.simulators.peer_snapshots import node, replica
from tests.simulators.runtime_world import member


class SetClock(SystemClock):
    """Stands still."""

    def now(self) -> datetime:
        return NOW

    def monotonic_s(self) -> float:
        return 5.0


CLUSTER = ClusterAuthority()
KIT = CLUSTER.node("evil", "worker")
VERIFIER = CLUSTER.verifier()
MILLIS = int(NOW.timestamp() * 1000)


def words(**changed: Any) -> dict[str, Any]:
    shown = node("evil", published_at_unix_ms=MILLIS, expires_at_unix_ms=MILLIS + 30_000).snapshot
    document = shown.model_dump(mode="json")
    document["node"]["labels"] = {}
    return {**document, **changed}


def signed(document: dict[str, Any]) -> str:
    """Whatever it says, under the node's own key."""
    envelope = sign_with(SNAPSHOT_PAYLOAD_TYPE, json.dumps(document).encode(), {"evil": node_signs(KIT.key)})
    proof = {"certificate_chain": KIT.files.certificate, "identity": KIT.files.identity}
    return json.dumps({"schema_version": 1, "envelope": envelope, "proof": proof})


def refusal(text: str) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        VERIFIER.open(text, SNAPSHOT, now=NOW, marks={}, publisher="evil")
    return caught.value


ODD = "\x1b]0;owned\x07\u202e\x9b31m\n" + "z" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        signed(words(**{ODD: 1})),
        signed(words(figures={ODD: 1})),
        signed(words(node={**words()["node"], "node_id": ODD})),
        signed(words(cluster_id=ODD)),
        signed(words(health={ODD: ODD})),
        signed(words(replicas=[{ODD: 1}])),
        json.dumps({**json.loads(signed(words())), ODD: 1}),
        json.dumps({**json.loads(signed(words())), "proof": {ODD: ODD}}),
        json.dumps({**json.loads(signed(words())), "envelope": json.dumps({ODD: 1})}),
        '{"a":1,"' + "\\u001b[2J" * 9 + '":1,"' + "\\u001b[2J" * 9 + '":2}',
    ],
)
def test_H3_why_a_document_was_refused_is_said_in_words_of_ours(text: str) -> None:
    """What a node calls its fields stands in logs, status and terminals of others."""
    message = refusal(text).message
    assert len(message) < 600
    assert message == display_safe(message)


def test_C15_a_wrong_list_is_read_to_its_first_wrong_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def counted(error: Any) -> tuple[str, str]:
        counts.append(error.error_count())
        return "somewhere", "wrong"

    monkeypatch.setattr("sbctl.trust.peer_documents.first_fault", counted)
    for name in ("replicas", "engines", "devices", "artifacts"):
        refusal(signed(words(**{name: [{"a": 1}] * 20_000})))
    assert max(counts) < 100


# --- floods


class Slow:
    """A directory that reads, and says that each text took half a second."""

    def __init__(self) -> None:
        self.reads: dict[str, list[str]] = {}
        self.removed: list[str] = []

    def take(self, texts: Mapping[str, str], *, fresh: Collection[str] = ()) -> Mapping[str, float]:
        for name, text in texts.items():
            self.reads.setdefault(name, []).append(text)
        return {name: 0.5 if name == "evil" else 0.001 for name in texts}

    def remove(self, node_id: str) -> None:
        self.removed.append(node_id)

    def contact(self) -> None: ...

    def view(self, _active: object) -> DirectoryView:
        return DirectoryView({}, 0, "")


def test_G17_a_node_that_writes_without_end_is_read_seldom_and_others_in_time(tmp_path: Path) -> None:
    directory = Slow()

    async def scenario() -> None:
        cluster = MemoryCluster()
        evil, good, store = cluster.client("evil"), cluster.client("good"), cluster.client("gw", is_authority=True)
        roster = Roster(
            cast("Any", directory),
            store=store,
            clock=cluster.clock,
            active=lambda: None,
            grace_s=0,
            memory=RosterMemory(tmp_path),
        )
        work = asyncio.create_task(roster.run())
        for number in range(600):
            await evil.put(Bucket.NODES, node_key("evil"), f"evil {number}".encode())
            if number % 20 == 0:
                await good.put(Bucket.NODES, node_key("good"), f"good {number}".encode())
            await asyncio.sleep(0.1)
        await evil.delete(Bucket.NODES, node_key("evil"))
        await asyncio.sleep(30)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    in_virtual_time(scenario)
    assert directory.reads["good"] == [f"good {number}" for number in range(0, 600, 20)]
    assert 6 <= len(directory.reads["evil"]) <= 8, "once in ten seconds"
    assert directory.reads["evil"][-1] == "evil 599", "its last words, before its place is empty"
    assert directory.removed[-1] == "evil"


def test_G22_refusals_of_one_node_fill_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, told = ClusterAuthority(), []
    paths = node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)})
    paths.state.mkdir(parents=True)
    kit, identity = cluster.node("gw-a", "gateway"), IdentityFiles(paths)
    identity.switch(identity.stage(kit.files, kit.key))
    fences = ClusterFences(paths.database)
    directory = Directory(HeldTrust("prod", identity, paths.state, now=NOW), fences, SetClock())

    class Log:
        def warning(self, event: str, **more: Any) -> None:
            told.append((event, more))

    monkeypatch.setattr("sbctl.runtime.cluster.directory.get_log", lambda _part: Log())
    for number in range(200):
        directory.take({"evil": "{" if number % 2 else signed(words())})
    fences.close()
    assert len(told) == 1


# --- what others make of its words


def row_of(name: str, **changed: Any) -> DirectoryRow:
    known = node(name, **changed)
    return DirectoryRow(name, known.snapshot, known.peer, heard_at_ms=1, exclusion="")


def test_H3_sums_over_what_nodes_say_stay_numbers_that_readers_take() -> None:
    """One node that tells of devices without end does not blind those who look at all of them."""
    device = DeviceReport(index=0, accelerator="cuda", total_memory_bytes=JSON_INT_MAX, available_memory_bytes=5)
    figures = {"sbproxy_requests_total": JSON_INT_MAX}
    rows = {name: row_of(name, devices=(device,) * 64, figures=figures) for name in ("evil", "n-a")}
    view = DirectoryView(rows, 1, "")
    for document in (vram_document(view, now_ms=1), metrics_document(view), artifacts_document(view)):
        text = json.dumps(document)
        assert json.dumps(strict_json.loads(text.encode(), max_bytes=1 << 20)) == text


def test_G22_names_that_a_node_makes_up_stand_in_no_event() -> None:
    stranger = DeploymentPlacement("made-up", NO_DIGEST, 1, 0)
    former = DeploymentPlacement("q", "d" * 64, 1, 0)
    with_both = PlacementPlan({"made-up": stranger, "q": former})
    assert happened(PlacementPlan(), PlacementPlan({"made-up": stranger})) == ()
    assert [told.deployment for told in happened(with_both, PlacementPlan())] == ["q"]


def test_G14_until_a_plan_names_it_a_deployment_is_asked_of_nodes_that_may_have_it() -> None:
    told = node("evil", replica(deployment="q", deployment_generation=JSON_INT_MAX))
    claims = told.peer.claims
    able = replace(told.peer, claims=claims.model_copy(update={"labels": {"zone": "a"}}))
    other = replace(told, snapshot=node("n-a", replica(deployment="q")).snapshot, peer=able)
    known = KnownCluster("gw", {})
    wanted = clustered(member(facts(), "/engine"), replicas=1).model_copy(update={"required_labels": {"zone": "a"}})
    known.take([told, other], {"q": wanted}, {}, policy_revision=1)
    assert [candidate.node_id for candidate in known.selection("q").candidates] == ["n-a"]


def test_C9_a_lease_that_leaps_counts_as_none_and_is_taken_over(tmp_path: Path) -> None:
    cluster = ClusterAuthority()
    paths = node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)})
    paths.state.mkdir(parents=True)
    kit, identity = cluster.node("gw-a", "gateway", "authority"), IdentityFiles(paths)
    identity.switch(identity.stage(kit.files, kit.key))
    trust, fences = HeldTrust("prod", identity, paths.state, now=NOW), ClusterFences(paths.database)
    fences.take_lease_epoch(7)
    other = cluster.node("gw-b", "authority").signer()

    def lease(epoch: int) -> bytes:
        times: dict[str, Any] = {"acquired_at_unix_ms": MILLIS, "renewed_at_unix_ms": MILLIS, "ttl_secs": 3600}
        document = LeaseDocument(cluster_id="prod", identity_epoch=1, boot_epoch=1, holder="gw-b", epoch=epoch, **times)
        return other.sign(LEASE, document).encode()

    words = SignedLease(trust, fences, SetClock(), boot_epoch=1)
    assert words.open(lease(JSON_INT_MAX)) is None
    found = words.open(lease(8))
    assert found is not None
    assert found.epoch == 8

    async def scenario() -> int | None:
        shared = MemoryCluster()
        evil, store = shared.client("gw-b", is_authority=True), shared.client("gw-a", is_authority=True)
        await evil.put(Bucket.LEASES, CONTROLLER_KEY, lease(JSON_INT_MAX))
        taken = ClusterLease(store, words, fences, holder="gw-a", clock=SetClock())
        return await taken.step()

    epochs: list[int | None] = []

    async def work() -> None:
        epochs.append(await scenario())

    in_virtual_time(work)
    fences.close()
    assert epochs == [8]


def test_H5_what_a_node_remembers_is_its_owner_s_whatever_the_process_masks(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    before = os.umask(0)
    try:
        fences, other = ClusterFences(state / "cluster.db"), opened(state / "runtime.db")
        fences.take_lease_epoch(3)
        other.execute("CREATE TABLE t (a)")
        RosterMemory(state).keep({"a": "b"}, NOW)
        take_boot_epoch(state, NOW)
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in state.iterdir()}
        fences.close()
        other.close()
    finally:
        os.umask(before)
    assert len(modes) >= 8
    assert set(modes.values()) == {"0o600"}, modes


@pytest.mark.parametrize("bucket", Bucket)
def test_G17_ids_that_writers_give_their_messages_are_forgotten_at_once(bucket: Bucket) -> None:
    """The store's server keeps them in memory for its window, two minutes where nobody says another; a store that has that one is brought to ours."""
    wanted = bucket_config(bucket, replicas=1)
    assert wanted["duplicate_window"] == 100_000_000
    assert not differs(wanted, wanted)
    assert differs(wanted, {**wanted, "duplicate_window": 120_000_000_000})
