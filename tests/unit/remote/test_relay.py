"""One copy a site: the first neighbour's push reaches the relay, the others get it from there; whatever fails is sent directly and said."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import ArtifactError, HostError, SbctlError, UnreachableError
from sbctl.base.secret import Secret
from sbctl.node.artifact_messages import BlobFetch, BlobServe
from sbctl.node.messages import Method
from sbctl.remote.relay import RelayedSession, RelayHost, SiteRelay
from sbctl.remote.session import HostSession
from tests.simulators.fleet import ManualClock

MIB = 1 << 20
DIGEST = "d" * 64
PORT = 4711
CERTIFICATE = "c" * 64


@dataclass
class Site:
    """The hosts of one site and what went over the operator's line."""

    blobs: dict[str, set[str]] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    serve_error: SbctlError | None = None
    fetch_error: SbctlError | None = None
    tokens: set[bytes] = field(default_factory=set)
    opened: int = 0
    closed: int = 0


@dataclass
class FakeSession:
    """One session to one host of a site."""

    host: str
    site: Site

    def put(self, sha256: str, source: Path, *, deadline_s: float, progress: Callable[..., None]) -> None:
        size = source.stat().st_size
        progress(size, size)
        if sha256 not in self.site.blobs.setdefault(self.host, set()):
            self.site.sent.append(self.host)
        self.site.blobs[self.host].add(sha256)

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Callable[..., None],
    ) -> Mapping[str, Any]:
        if method == Method.BLOB_SERVE:
            asked = BlobServe.model_validate(
                {**params, "digests": tuple(params["digests"]), "peers": tuple(params["peers"])}
            )
            if self.site.serve_error is not None:
                raise self.site.serve_error
            self.site.tokens.add(secrets["token"].reveal())
            missing = [digest for digest in asked.digests if digest not in self.site.blobs.get(self.host, ())]
            return {"port": PORT, "certificate_sha256": CERTIFICATE, "missing": missing}
        if method == Method.BLOB_FETCH:
            wanted = BlobFetch.model_validate(params)
            if self.site.fetch_error is not None:
                raise self.site.fetch_error
            assert (wanted.address, wanted.port, wanted.certificate_sha256) == ("10.0.0.1", PORT, CERTIFICATE)
            assert secrets["token"].reveal() in self.site.tokens
            progress(wanted.size_bytes, wanted.size_bytes)
            self.site.blobs.setdefault(self.host, set()).add(wanted.sha256)
            self.site.fetched.append(self.host)
        return {}

    def close(self) -> None:
        self.site.closed += 1


@dataclass
class World:
    site: Site
    relay: SiteRelay
    notes: list[str]
    source: Path

    def session(self, host: str, *, has_runtime: bool = True) -> RelayedSession:
        inner = cast("HostSession", FakeSession(host, self.site))
        return RelayedSession(inner, self.relay, self.notes.append, has_runtime=has_runtime)

    def put(self, session: RelayedSession, digest: str = DIGEST) -> list[tuple[int, int | None]]:
        seen: list[tuple[int, int | None]] = []
        session.put(digest, self.source, deadline_s=60, progress=lambda done, total: seen.append((done, total)))
        return seen


def _world(tmp_path: Path, *, has_runtime: bool = True, clock: Any = SYSTEM_CLOCK) -> World:
    site = Site()

    def connect() -> HostSession:
        site.opened += 1
        return cast("HostSession", FakeSession("r", site))

    source = tmp_path / "weights"
    source.write_bytes(bytes(2 * MIB))
    relay = SiteRelay(RelayHost("r", "10.0.0.1", ("10.0.0.2", "10.0.0.3")), connect, clock, has_runtime=has_runtime)
    return World(site, relay, [], source)


@pytest.mark.parametrize("order", ["r a b", "a r b", "a b r", "a b"])
def test_one_copy_goes_over_the_operators_line(tmp_path: Path, order: str) -> None:
    world = _world(tmp_path)
    for host in order.split():
        assert world.put(world.session(host))[-1] == (2 * MIB, 2 * MIB)
    assert world.site.sent == ["r"]
    assert sorted(world.site.fetched) == ["a", "b"]
    assert all(DIGEST in world.site.blobs[host] for host in order.split())
    assert (world.site.opened, len(world.site.tokens), world.notes) == (1, 1, [])
    world.relay.close()
    assert world.site.closed == 1


def test_progress_never_goes_back_and_ends_once(tmp_path: Path) -> None:
    world = _world(tmp_path)
    seen = [done for done, _ in world.put(world.session("a"))]
    assert seen == sorted(seen)
    assert seen.count(2 * MIB) == 1


def test_many_neighbours_at_once_make_one_copy(tmp_path: Path) -> None:
    world = _world(tmp_path)
    threads = [threading.Thread(target=world.put, args=(world.session(f"n{number}"),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert world.site.sent == ["r"]
    assert len(world.site.fetched) == 8


FAILURES: dict[str, tuple[str, SbctlError]] = {
    "the relay is out of reach": ("serve", UnreachableError("remote.lost", "gone", place="r")),
    "the relay cannot listen": ("serve", HostError("relay.cannot_listen", "gone")),
    "its runtime is older": ("serve", HostError("node.unknown_method", "gone")),
    "the neighbour cannot reach it": ("fetch", ArtifactError("relay.unreachable", "gone")),
    "it sends other bytes": ("fetch", ArtifactError("relay.digest_mismatch", "gone")),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_cannot_go_by_the_relay_is_sent_directly_and_said_once(tmp_path: Path, case: str) -> None:
    side, error = FAILURES[case]
    world = _world(tmp_path)
    if side == "serve":
        world.site.serve_error = error
    else:
        world.site.fetch_error = error
    session = world.session("a")
    world.put(session)
    world.put(session, "e" * 64)
    assert world.site.blobs["a"] == {DIGEST, "e" * 64}
    assert world.notes == ["a: sent directly, not through r: gone"]


@pytest.mark.parametrize("code", ["disk.full", "host.outcome_unknown"])
def test_a_failure_of_the_neighbour_itself_is_its_own(tmp_path: Path, code: str) -> None:
    world = _world(tmp_path)
    world.site.fetch_error = HostError(code, "said so")
    with pytest.raises(HostError):
        world.put(world.session("a"))
    assert "a" not in world.site.blobs


def test_a_host_without_a_runtime_and_small_files_are_served_directly(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.put(world.session("a", has_runtime=False))
    world.source.write_bytes(b"small")
    world.put(world.session("b"))
    assert world.site.sent == ["a", "b"]
    assert world.notes == []


def test_a_relay_that_is_being_installed_is_waited_for(tmp_path: Path) -> None:
    world = _world(tmp_path, has_runtime=False)
    own = world.session("r", has_runtime=False)
    neighbour = world.session("a")
    waiting = threading.Event()

    def put() -> None:
        neighbour.put(DIGEST, world.source, deadline_s=60, progress=lambda *_: waiting.set())

    thread = threading.Thread(target=put)
    thread.start()
    assert waiting.wait(60)
    assert world.site.sent == []
    own.call(Method.RUNTIME_INSTALL, {}, secrets={}, deadline_s=60, progress=lambda *_: None)
    thread.join(60)
    assert world.site.sent == ["r"]
    assert world.site.fetched == ["a"]


def test_a_relay_whose_own_work_ended_without_a_runtime_is_not_waited_for(tmp_path: Path) -> None:
    world = _world(tmp_path, has_runtime=False)
    world.session("r", has_runtime=False).close()
    world.put(world.session("a"))
    assert world.site.sent == ["a"]
    assert world.notes == ["a: sent directly, not through r: it has no runtime yet"]


def test_a_session_that_is_closed_while_it_waits_begins_nothing(tmp_path: Path) -> None:
    world = _world(tmp_path, has_runtime=False)
    world.session("r", has_runtime=False)
    neighbour = world.session("a")
    with pytest.raises(UnreachableError) as refused:
        neighbour.put(DIGEST, world.source, deadline_s=60, progress=lambda *_: neighbour.close())
    assert refused.value.code == "remote.lost"
    assert world.site.sent == []


def test_a_relay_that_never_begins_is_not_waited_for_long(tmp_path: Path) -> None:
    clock = ManualClock()
    world = _world(tmp_path, has_runtime=False, clock=clock)
    session = world.session("a")
    session.put(DIGEST, world.source, deadline_s=60, progress=lambda *_: clock.advance(10))
    assert world.site.sent == ["a"]


def test_a_relay_that_gave_no_answer_is_not_asked(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.relay.give_up("it gave no answer")
    world.put(world.session("a"))
    assert (world.site.sent, world.site.opened) == (["a"], 0)
