"""Checkouts that share a state: they take turns, lose nothing, and say so when something else happened to the document."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import LockedError, RefusedError, SbctlError, StateError, UnreachableError
from sbctl.state.settings import EncryptionSettings, StateSettings
from sbctl.state.sharing import read_seen
from sbctl.state_backends.port import Backend
from sbctl.trust.sealing import Identity, Opener
from tests.simulators.shared_world import Checkout
from tests.simulators.state_server import StateServer, serving
from tests.simulators.state_world import APPLY, desired, fast_directory, recorded

ALICE, BOB = Identity.generate(), Identity.generate()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Here nothing is said of disks, so none is waited for."""
    with fast_directory() as path:
        yield path


@pytest.fixture
def server() -> Iterator[StateServer]:
    with serving(gitlab=False) as running:
        yield running


@pytest.fixture
def pair(server: StateServer, tmp_path: Path) -> tuple[Checkout, Checkout]:
    settings = StateSettings("http", server.url())
    return Checkout(tmp_path / "a", settings), Checkout(tmp_path / "b", settings)


def test_two_operators_take_turns(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    assert a.plan() == {}
    assert (a.apply(1, 2), b.apply(3), a.apply(1, content="new")) == (1, 2, 3)
    assert b.plan() == a.plan()
    assert len(b.plan()) == 3
    for checkout in pair:
        checkout.world.store().verify()
        assert [run.serial for run in checkout.world.store().history()] == [1, 2, 3]
    assert server.place().holder is None
    assert b.world.store().read().fingerprint_key == a.world.store().read().fingerprint_key


def test_a_server_that_counts_serials_takes_every_write(tmp_path: Path) -> None:
    with serving(gitlab=True) as server:
        lock = server.url("/state/lock")
        settings = StateSettings(
            "http", server.url(), lock_address=lock, lock_method="POST", unlock_address=lock, unlock_method="DELETE"
        )
        a, b = Checkout(tmp_path / "a", settings), Checkout(tmp_path / "b", settings)
        a.apply(1)
        b.apply(2)
        assert [set(json.loads(each)) >= {"serial", "lineage", "version"} for each in server.place().documents] == [
            True
        ] * 4


def test_readers_take_no_lock_and_see_a_run_at_its_start(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)
    with a.writing() as (store, _):
        run = store.begin_run(APPLY, [desired(2)])
        assert b.plan() == a.world.store().read().resources.keys() or len(b.plan()) == 1
        view = b.world.store().read()
        assert view.last_run is not None
        assert (view.serial, view.last_run.status) == (2, "running")
        with pytest.raises(LockedError, match="ops@desk"), b.writing():
            pass
        run.finish("applied")


def test_who_waits_gets_the_lock(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)
    with a.writing() as (_, session):
        held = server.place().holder
        assert held is not None

        def come() -> Backend:
            return b.backend()

        class Freed:
            """Frees the lock while the other waits."""

            def __init__(self, inner: Backend) -> None:
                self.inner = inner
                self.tries = 0

            def lock(self, ticket: Any) -> None:
                self.tries += 1
                if self.tries == 3:
                    session.break_lock(held["ID"])
                self.inner.lock(ticket)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.inner, name)

        b.wrap = Freed  # type: ignore[assignment]
        with b.writing(timeout_s=60):
            pass
        assert any("waiting up to 60 s" in each for each in b.notes)


def test_B2_a_lost_lock_stops_the_run_and_keeps_what_was_done(pair: tuple[Checkout, Checkout]) -> None:
    a, b = pair
    a.apply(1)
    stopped = threading.Event()

    def run_into_it() -> None:
        with a.writing(write_every_s=0.01) as (store, session):
            session.on_lost = stopped.set
            run = store.begin_run(APPLY, [desired(2)])
            holder = b.session(b.world.store())
            with contextlib.suppress(LockedError):
                holder.probe_lock("x")
            holder.break_lock(_holder_id(a))
            b.apply(9)
            run.record(recorded(2))
            assert stopped.wait(30)
            run.finish("partial")

    with pytest.raises(SbctlError, match="serial 2 is recorded in this checkout") as refused:
        run_into_it()
    assert refused.value.code == "state.not_shared"
    errored = a.world.paths.errored
    assert f"sbctl state push {errored}" in str(refused.value.next_step)
    assert errored.stat().st_mode & 0o777 == 0o600
    assert any("no further step" in each for each in a.notes)
    with pytest.raises(StateError) as diverged:
        a.plan()
    assert diverged.value.code == "state.diverged"
    with a.writing(overrule=True) as (store, _):
        store.touch(above=0)
    assert b.plan().keys() == a.plan().keys()


def _holder_id(checkout: Checkout) -> str:
    with contextlib.closing(checkout.backend()) as backend:
        try:
            backend.lock(_ticket())
        except LockedError as error:
            return str(error.detail["ID"])
    raise AssertionError("nobody held it")


def _ticket() -> Any:
    from sbctl.state_backends.port import Ticket

    return Ticket("probe", "", "", "", "")


def test_a_start_that_cannot_be_written_does_nothing(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, _ = pair
    a.apply(1)
    reached = []

    def begin() -> None:
        with a.writing() as (store, _):
            server.fail(*[("POST", "500")] * 4)
            store.begin_run(APPLY, [desired(2)])
            reached.append(1)

    with pytest.raises(UnreachableError):
        begin()
    assert not reached
    assert a.world.store().history()[-1].status == "failed"
    assert a.apply(3) == 3
    assert pair[1].plan() == a.plan()


def test_an_end_that_cannot_be_written_is_written_by_the_next_command(
    pair: tuple[Checkout, Checkout], server: StateServer
) -> None:
    a, b = pair
    a.apply(1)

    def end() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(2)])
            run.record(recorded(2))
            server.fail(*[("POST", "500")] * 4)
            run.finish("applied")

    with pytest.raises(SbctlError) as refused:
        end()
    assert refused.value.code == "state.not_shared"
    assert len(a.plan()) == 2
    assert any("sends it" in each for each in a.notes)
    with a.writing():
        pass
    assert b.plan() == a.plan()
    assert not a.world.paths.errored.exists()


def test_an_errored_run_is_taken_in_by_another_checkout(
    pair: tuple[Checkout, Checkout], server: StateServer, tmp_path: Path
) -> None:
    a, b = pair
    a.apply(1)

    def end() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(2)])
            run.record(recorded(2))
            server.fail(*[("POST", "500")] * 4)
            run.finish("applied")

    with pytest.raises(SbctlError):
        end()
    from sbctl.state.shared_document import parse_shared

    shared = parse_shared(a.world.paths.errored.read_bytes(), place="x")
    with b.writing() as (_, session):
        assert session.accept(shared)
    assert len(b.plan()) == 2
    assert b.apply(3) == 3
    with b.writing() as (_, session):
        assert not session.accept(shared)


def test_a_lost_answer_to_a_write_is_no_conflict(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)

    def end() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(2)])
            run.record(recorded(2))
            run.finish("applied")
            server.fail(*[("POST", "lost")] * 4)

    with pytest.raises(SbctlError):
        end()
    assert a.apply(3) == 3
    assert b.plan() == a.plan()


def test_stale_answers_are_asked_again(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)
    b.apply(2)
    server.fail(("GET", "stale"), ("GET", "stale"))
    assert len(b.plan()) == 2
    assert server.faults == []
    server.fail(("GET", "stale"))
    assert b.apply(3) == 3
    assert len(a.plan()) == 3


def test_B8_a_rolled_back_document_is_refused(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)
    old = len(server.place().documents)
    a.apply(2)
    server.place().documents[:] = server.place().documents[:old]
    for call in (a.plan, lambda: a.apply(3)):
        with pytest.raises(StateError) as refused:
            call()
        assert refused.value.code == "state.remote_regressed"
    assert server.place().holder is None
    with a.writing(overrule=True):
        pass
    assert len(b.plan()) == 2


def test_B7_a_document_that_is_gone_is_not_a_new_fleet(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, _ = pair
    a.apply(1)
    server.place().documents.clear()
    with pytest.raises(StateError) as refused:
        a.plan()
    assert refused.value.code == "state.remote_missing"
    with a.writing(overrule=True):
        pass
    assert len(a.plan()) == 1


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"{}", b'{"format":"sbctl.shared"}', b"\xff" * 40, b'{"version":4,"serial":1,"lineage":"x"}']
)
def test_B6_a_damaged_document_is_refused_by_name_and_can_be_overruled(
    pair: tuple[Checkout, Checkout], server: StateServer, damage: bytes
) -> None:
    a, b = pair
    a.apply(1)
    server.place().documents.append(damage)
    with pytest.raises(SbctlError) as refused:
        a.plan()
    assert refused.value.code.split(".")[0] in ("json", "state")
    with a.writing(overrule=True) as (store, _):
        store.touch(above=0)
    assert b.plan() == a.plan()


def test_somebody_who_writes_without_the_lock_is_noticed(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    a.apply(1)
    b.plan()

    def run() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(2)])
            raw = server.place().json
            server.place().documents.append(json.dumps({**raw, "serial": raw["serial"] + 50}).encode())
            run.finish("applied")

    with pytest.raises(SbctlError, match="somebody else wrote") as refused:
        run()
    assert refused.value.code == "state.not_shared"


def test_a_state_that_was_local_is_not_shared_by_accident(pair: tuple[Checkout, Checkout]) -> None:
    a, _ = pair
    a.world.applied(1)
    for call in (a.plan, lambda: a.apply(2)):
        with pytest.raises(RefusedError) as refused:
            call()
        assert (refused.value.code, refused.value.next_step) == ("state.not_migrated", "sbctl state migrate")


# Encryption


def sealing(server: StateServer, *recipients: Identity, phrase: bool = False) -> StateSettings:
    wanted = EncryptionSettings(tuple(each.recipient for each in recipients), "env:P" if phrase else None)
    return StateSettings("http", server.url(), encryption=wanted)


def test_recipients_share_what_the_server_cannot_read(server: StateServer, tmp_path: Path) -> None:
    settings = sealing(server, ALICE, BOB)
    a, b = Checkout(tmp_path / "a", settings, identity=ALICE), Checkout(tmp_path / "b", settings, identity=BOB)
    a.apply(1)
    b.apply(2)
    assert a.plan() == b.plan()
    for document in server.place().documents:
        assert b"gpu-1" not in document
        assert json.loads(document).keys() >= {"serial", "lineage", "version"}
    eve = Checkout(tmp_path / "e", settings, identity=Identity.generate())
    with pytest.raises(RefusedError) as refused:
        eve.plan()
    assert refused.value.code == "sealed.no_key"


def test_the_encryption_cannot_be_taken_away(server: StateServer, tmp_path: Path) -> None:
    plain, settings = StateSettings("http", server.url()), sealing(server, ALICE)
    a = Checkout(tmp_path / "a", plain)
    a.apply(1)
    sealed = Checkout(tmp_path / "a", settings, identity=ALICE)
    for call in (sealed.plan, lambda: sealed.apply(2)):
        with pytest.raises(RefusedError) as refused:
            call()
        assert refused.value.code == "state.not_encrypted"
    rekeying = Checkout(tmp_path / "a", settings, identity=ALICE, lenient=True)
    with rekeying.writing() as (store, _):
        store.touch(above=0)
    assert sealed.plan() == {"engine.gpu-1/llama_cpp": 0}
    with pytest.raises(RefusedError) as refused:
        Checkout(tmp_path / "b", plain).plan()
    assert refused.value.code == "state.encrypted"


def test_a_changed_passphrase_shuts_the_old_one_out(
    server: StateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Opener.__init__.__kwdefaults__, "log_n", 4)
    settings = StateSettings("http", server.url(), encryption=EncryptionSettings(passphrase="env:P"))
    old = {"env:P": "the first passphrase"}
    new = {"env:P": "the second passphrase", "env:OLD": "the first passphrase"}
    Checkout(tmp_path / "a", settings, secrets=old).apply(1)
    former = EncryptionSettings(passphrase="env:OLD")
    with Checkout(tmp_path / "a", settings, secrets=new, former=former, lenient=True).writing() as (store, _):
        store.touch(above=0)
    assert Checkout(tmp_path / "b", settings, secrets=new).plan() == {"engine.gpu-1/llama_cpp": 0}
    with pytest.raises(StateError, match="passphrase"):
        Checkout(tmp_path / "c", settings, secrets=old).plan()


def test_outer_numbers_that_are_not_the_inner_ones_are_refused(server: StateServer, tmp_path: Path) -> None:
    a = Checkout(tmp_path / "a", sealing(server, ALICE), identity=ALICE)
    a.apply(1)
    sealer = Opener([ALICE]).sealer([ALICE.recipient], with_passphrase=False)
    content = Opener([ALICE]).open(server.place().json, kind="state", place="x")
    forged = sealer.seal(content, kind="state", lineage=server.place().json["lineage"], serial=999)
    server.place().documents.append(json.dumps(forged).encode())
    with pytest.raises(StateError) as refused:
        a.plan()
    assert refused.value.code == "sealed.mismatch"


# Moving house


def test_a_local_state_moves_out_and_others_go_on_there(server: StateServer, tmp_path: Path) -> None:
    settings = StateSettings("http", server.url())
    a = Checkout(tmp_path / "a", settings)
    a.world.applied(1)
    with a.world.locked() as store:
        a.session(store).install(a.world.info(), 0)
    assert a.plan() == Checkout(tmp_path / "b", settings).plan() == {"engine.gpu-1/llama_cpp": 0}
    assert a.apply(2) == 2
    assert server.place().holder is None


def test_a_shared_state_moves_and_the_old_place_names_the_new(server: StateServer, tmp_path: Path) -> None:
    old, new = StateSettings("http", server.url("/old")), StateSettings("http", server.url("/new"))
    a, b = Checkout(tmp_path / "a", old), Checkout(tmp_path / "b", old)
    a.apply(1)
    b.plan()
    a2 = Checkout(tmp_path / "a", new)
    with a.writing() as (store, source):
        a2.session(store).install(a.world.info(), 0)
        source.mark_moved(new.place)
    with pytest.raises(RefusedError, match=new.place) as refused:
        b.plan()
    assert refused.value.code == "state.moved"
    assert a2.apply(2) == 2
    assert len(Checkout(tmp_path / "b", new).plan()) == 2
    seen = read_seen(a.world.paths)
    assert seen is not None
    assert seen.place == new.place


def test_a_move_that_was_cut_goes_on(server: StateServer, tmp_path: Path) -> None:
    settings = StateSettings("http", server.url())
    a = Checkout(tmp_path / "a", settings)
    a.world.applied(1)
    for _ in range(2):
        with a.world.locked() as store:
            a.session(store).install(a.world.info(), 0)
    assert len(a.plan()) == 1


def test_another_state_is_never_overwritten_by_a_move(server: StateServer, tmp_path: Path) -> None:
    settings = StateSettings("http", server.url())
    Checkout(tmp_path / "other", settings).apply(5)
    a = Checkout(tmp_path / "a", settings)
    a.world.applied(1)
    with a.world.locked() as store, pytest.raises(RefusedError) as refused:
        a.session(store).install(a.world.info(), 0)
    assert refused.value.code == "state.occupied"
    assert read_seen(a.world.paths) is None
    assert server.place().holder is None


def test_a_move_that_does_not_come_back_is_not_made(server: StateServer, tmp_path: Path) -> None:
    settings = StateSettings("http", server.url())
    a = Checkout(tmp_path / "a", settings)
    a.world.applied(1)

    class Forgetful:
        def __init__(self, inner: Backend) -> None:
            self.inner = inner

        def store(self, *_: object, **__: object) -> None:
            """Says yes and keeps nothing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    a.wrap = Forgetful  # type: ignore[assignment]
    with a.world.locked() as store, pytest.raises(StateError) as refused:
        a.session(store).install(a.world.info(), 0)
    assert refused.value.code == "state.not_verified"
    assert read_seen(a.world.paths) is None


def test_a_hard_interrupt_still_writes_what_is_recorded(pair: tuple[Checkout, Checkout]) -> None:
    a, b = pair

    def die() -> None:
        with a.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(1)])
            run.record(recorded(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die()
    assert len(b.plan()) == 1
    assert b.apply(2) == 2
    assert [run.status for run in b.world.store().history()] == ["interrupted", "applied"]


def test_a_signal_has_the_state_written_at_once(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    with a.writing() as (store, session):
        run = store.begin_run(APPLY, [desired(1)])
        run.record(recorded(1))
        before = len(server.place().documents)
        session.wake()
        for _ in range(3000):
            if len(server.place().documents) > before:
                break
            threading.Event().wait(0.01)
        assert len(b.plan()) == 1
        run.finish("applied")


def test_a_server_that_is_away_for_a_while_is_tried_again(pair: tuple[Checkout, Checkout], server: StateServer) -> None:
    a, b = pair
    with a.writing() as (store, session):
        run = store.begin_run(APPLY, [desired(1)])
        run.record(recorded(1))
        server.fail(*[("POST", "500")] * 4)
        session.wake()
        for _ in range(3000):
            if a.notes:
                break
            threading.Event().wait(0.01)
        run.finish("applied")
    assert any("tried again" in each for each in a.notes)
    assert len(b.plan()) == 1


def test_operators_racing_over_http_lose_nothing(server: StateServer, tmp_path: Path) -> None:
    settings = StateSettings("http", server.url())
    failures: list[BaseException] = []

    def operate(number: int) -> None:
        checkout = Checkout(tmp_path / f"o{number}", settings, clock=SYSTEM_CLOCK)
        try:
            for turn in range(2):
                with checkout.writing(timeout_s=120) as (store, _):
                    run = store.begin_run(APPLY, [desired(number)])
                    run.record(recorded(10 * number + turn))
                    run.finish("applied")
        except BaseException as error:  # told to the main thread
            failures.append(error)

    threads = [threading.Thread(target=operate, args=(number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert failures == []
    judge = Checkout(tmp_path / "judge", settings)
    assert len(judge.plan()) == 6
    assert [run.serial for run in judge.world.store().history()] == [1, 2, 3, 4, 5, 6]


def test_B1_every_write_of_a_run_may_fail_and_nothing_is_lost(server: StateServer, tmp_path: Path) -> None:
    """The n-th request of any kind breaks for good, for every n: the next command from here sends what was not sent."""
    settings = StateSettings("http", server.url())
    a, b = Checkout(tmp_path / "a", settings), Checkout(tmp_path / "b", settings)
    a.apply(1)
    for number in range(2, 9):
        server.fail(*_after(number - 2))
        with contextlib.suppress(SbctlError):
            a.apply(number)
        server.faults.clear()
        holder = server.place().holder
        if holder is not None:
            a.session(a.world.store()).break_lock(holder["ID"])
        with a.writing():
            pass
        b.plan()
        assert b.world.store().read().resources == a.world.store().read().resources
        b.apply(100 + number)
        a.plan()


def _after(count: int) -> list[tuple[str, str]]:
    return [("*", "")] * count + [("*", "lost")] * 40
