"""The same work on many machines: rows in the order of the hosts, what fails told beside what worked, and hosts that are sent what they need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sbctl.artifacts.answers import CachedArtifact, CacheListing, Pruned, Pulled, Removed, Verified
from sbctl.artifacts.download import Progress
from sbctl.artifacts.lockfile import WantedModel, lock_of
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import ExitCode, InputError, UnreachableError, UsageError
from sbctl.catalog.loader import Catalog, builtin_catalog
from sbctl.catalog.resolve import resolve
from sbctl.cli.models_lock import verified
from sbctl.cli.models_places import Place
from sbctl.cli.models_work import PullRequest, exit_code, listed, pruned, pulled, removed, shown
from sbctl.config.load import load
from sbctl.node.snapshot import NodeSnapshot

SMALL = "smollm2-135m-instruct"


class FakeDoor:
    """A cache that remembers what it was asked."""

    def __init__(self, *, lost: bool = False, damaged: bool = False) -> None:
        self.lost = lost
        self.damaged = damaged
        self.asked: list[tuple[str, object]] = []
        self.cached: list[CachedArtifact] = []

    def listing(self, wanted: Sequence[ArtifactFacts]) -> CacheListing:
        if self.lost:
            raise UnreachableError("ssh.unreachable", "no answer")
        return CacheListing(root="/c", disk_bytes=0, artifacts=tuple(self.cached))

    def pull(
        self, facts: ArtifactFacts, *, offline: bool, pinned: bool | None, push: bool, progress: Progress
    ) -> Pulled:
        if self.lost:
            raise UnreachableError("ssh.unreachable", "no answer")
        self.asked.append((facts.model, "push" if push else "pull"))
        return Pulled(
            artifact=facts.artifact, snapshot_path="/c/x", was_present=len(self.asked) == 1, downloaded_bytes=1
        )

    def verify(self, artifact: str, size_bytes: int) -> Verified:
        if self.damaged:
            return Verified(is_good=False, reasons=("w changed",), quarantined=("/c/quarantine/w",))
        return Verified(is_good=True)

    def remove(self, artifact: str) -> Removed:
        self.asked.append(("remove", artifact))
        return Removed(removed=True, reclaimed_bytes=1)

    def prune(self, *, dry_run: bool, everything: bool) -> Pruned:
        return Pruned(dry_run=dry_run, before_bytes=0, reclaimed_bytes=0)

    def snapshot(self) -> NodeSnapshot | None:
        return None


def place(name: str, door: FakeDoor) -> Place:
    return Place(name, door, builtin_catalog())


def begin(_title: str) -> Progress:
    return lambda _done, _total: None


def test_one_host_that_is_lost_does_not_keep_the_others() -> None:
    doors = [FakeDoor(), FakeDoor(lost=True), FakeDoor()]
    places = [place(f"h{number}", door) for number, door in enumerate(doors)]
    rows, errors = pulled(places, PullRequest((SMALL,)), begin)
    assert [row.host for row in rows] == ["h0", "h2"]
    assert [(one.host, one.model) for one in errors] == [("h1", f"{SMALL}:q4_1")]
    assert exit_code(errors) is ExitCode.UNREACHABLE
    assert exit_code([]) is ExitCode.DONE
    assert [one.host for one in listed(places)[0]] == ["h0", "h2"]
    assert len(pruned(places, dry_run=True, everything=False)[0]) == 3


def test_a_lock_is_held_against_the_hosts_that_answer() -> None:
    lock = lock_of([WantedModel(resolve(builtin_catalog(), SMALL).facts, "llama_cpp")], now_ms=0)
    rows, errors = verified(None, lock, [place("h0", FakeDoor(lost=True)), place("h1", FakeDoor())])
    assert [(host, row.status) for host, row in rows] == [("h1", "missing")]
    assert [one.host for one in errors] == ["h0"]


def test_a_model_that_only_some_hosts_have_in_their_catalogs_is_shown_of_these() -> None:
    bare = Place("h0", FakeDoor(), Catalog({}))
    entry, (rows, errors) = shown([bare, place("h1", FakeDoor())], SMALL, verify=False)
    assert entry.id == SMALL
    assert {row.host for row, _ in rows} == {"h1"}
    assert [(one.host, one.error.code) for one in errors] == [("h0", "catalog.unknown_model")]
    with pytest.raises(InputError, match="unknown_model"):
        shown([bare], SMALL, verify=False)


def test_damage_that_verify_finds_is_fetched_again() -> None:
    door = FakeDoor(damaged=True)
    (row,), errors = pulled([place("h", door)], PullRequest((SMALL,), verify=True), begin)
    assert not errors
    assert len(door.asked) == 2
    assert row.pulled.quarantined == ("/c/quarantine/w",)
    assert row.verified is not None
    assert not row.verified.is_good


@pytest.mark.parametrize(
    ("block", "way"), [("", "pull"), ("delivery: push", "push"), ("proxy: {model_host: {offline: true}}", "push")]
)
def test_a_host_that_may_fetch_nothing_is_sent_what_it_needs(tmp_path: Path, block: str, way: str) -> None:
    file = tmp_path / "sb.yml"
    file.write_text(
        f"fleet: {{defaults: {{{block}}}}}\n"
        f"proxy: {{model_host: {{deployments: {{chat: {{model: {SMALL}}}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}\n"
    )
    host = load(file, environ={}).hosts["local"]
    door = FakeDoor()
    pulled([Place("local", door, host.catalog, host)], PullRequest(), begin)
    assert door.asked == [(SMALL, way)]


def test_nothing_to_pull_by_itself_is_wrong_usage() -> None:
    _rows, (error,) = pulled([place("h", FakeDoor())], PullRequest(), begin)
    assert isinstance(error.error, UsageError)


def test_removal_by_model_variant_or_digest() -> None:
    door = FakeDoor()
    door.cached = [
        CachedArtifact(artifact=digit * 64, state="ready", size_bytes=1, model="m", variant=f"q{digit}")
        for digit in "12"
    ]
    door.cached.append(CachedArtifact(artifact="3" * 64, state="ready", size_bytes=1, model="other", variant="q"))
    for text, gone in (("m:q1", "1"), ("3" * 64, "3"), ("m", "12")):
        door.asked.clear()
        removed([place("h", door)], text, variant=None, force=False)
        assert [artifact for _, artifact in door.asked] == [digit * 64 for digit in gone]
