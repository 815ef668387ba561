"""Abuse of apply, named by the ids of the threat list: killed, interrupted, drifted, half failed, and emptied."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.apply.cancellation import Cancellation, SignalWatch
from sbctl.apply.events import CancelRequested, HostFinished
from sbctl.apply.executor import execute
from sbctl.apply.outcome import ApplyOptions, ApplyResult
from sbctl.base.errors import ExitCode, RefusedError, StalePlanError
from sbctl.base.ids import Address
from sbctl.views.apply_text import apply_text, summary_sentence
from tests.simulators.fleet import FleetSimulator
from tests.simulators.memory_state import MemoryState
from tests.simulators.small_kinds import PROVIDERS, SmallServices, Wanted, member_of, prepare_host, small_plan, wanted
from tests.simulators.small_world import Recorder, SmallWorld
from tests.simulators.state_world import APPLY, StateWorld, fast_directory

FULL = Wanted("1.0", ("m",), {"chat": member_of("m")})
OTHER_ENGINE = member_of("m").engine.model_copy(update={"version": "2.0"})
CHANGED = Wanted(
    "2.0", ("m", "n"), {"chat": member_of("n", engine=OTHER_ENGINE), "code": member_of("m", engine=OTHER_ENGINE)}
)


# B1: killed at every boundary, with the real state and a real SIGKILL


class LastingFleet(FleetSimulator):
    """Hosts that outlive the process that talks to them: their truth is written down after every call."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        if path.exists():
            self.hosts = pickle.loads(path.read_bytes())
            for host in self.hosts.values():
                host.clock = self.clock

    def keep(self) -> None:
        self._path.write_bytes(pickle.dumps(self.hosts))


class Killable:
    """One fleet with a state on disk; every `apply` is a process of its own, that may be told to die at a boundary."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = StateWorld(root)

    @classmethod
    def prepare(cls, root: Path, hosts: Mapping[str, Wanted]) -> None:
        """A host that has `hosts` applied, and its state."""
        root.mkdir()
        world = cls(root)
        fleet = world.fleet()
        prepare_host(fleet, "a")
        fleet.keep()
        assert world.apply_here(hosts).exit_code == ExitCode.DONE

    def fleet(self) -> LastingFleet:
        return LastingFleet(self.root / "hosts")

    def recorded(self) -> dict[Address, Any]:
        store = self.state.store()
        return dict(store.read().resources) if store.exists() else {}

    def remaining(self, hosts: Mapping[str, Wanted]) -> list[str]:
        fleet = self.fleet()
        plan = small_plan(fleet, wanted(hosts, fleet.connections()), MemoryState(self.recorded()))
        return [str(change.address) for change in plan.actionable]

    def apply(self, hosts: Mapping[str, Wanted], *, die_at: int) -> int:
        """In a child that dies at a boundary. The exit status of the process, as `waitpid` tells it: 0, or the signal that ended it."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.environ.update({"SBCTL_TESTING": "1", "SBCTL_CRASH_AT": str(die_at)})
            try:
                os._exit(int(self.apply_here(hosts).exit_code))
            finally:
                os._exit(99)
        return os.waitpid(child, 0)[1]

    def apply_here(self, hosts: Mapping[str, Wanted]) -> ApplyResult:
        fleet = self.fleet()
        for host in fleet.hosts.values():
            _keep_after_calls(host, fleet)
        with self.state.locked() as store:
            if not store.exists():
                store.create("fleet")
            desired = wanted(hosts, fleet.connections())
            plan = small_plan(fleet, desired, MemoryState(dict(store.read().resources)))
            run = store.begin_run(APPLY, desired.values())
            return execute(
                plan,
                sessions=fleet.session,
                run=run,
                providers=PROVIDERS,
                services=SmallServices(fleet.clock, run.allocate_revision),
                options=ApplyOptions(),
                sink=Recorder(),
                cancel=Cancellation(),
            )


def _keep_after_calls(host: Any, fleet: LastingFleet) -> None:
    original = host.call

    def call(*args: Any) -> Any:
        try:
            return original(*args)
        finally:
            del host.__dict__["call"]
            fleet.keep()
            host.__dict__["call"] = call

    host.__dict__["call"] = call


@pytest.fixture
def directory() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, {"a": FULL}, id="create"),
        pytest.param({"a": FULL}, {"a": CHANGED}, id="update"),
        pytest.param({"a": FULL}, {}, id="destroy"),
    ],
)
def test_B1_killed_at_every_boundary_the_next_apply_converges_and_forgets_nothing(
    before: dict[str, Wanted], after: dict[str, Wanted], directory: Path
) -> None:
    Killable.prepare(directory / "before", before)
    for boundary in range(1, 200):
        shutil.copytree(directory / "before", directory / str(boundary))
        world = Killable(directory / str(boundary))
        status = world.apply(after, die_at=boundary)
        recorded = world.recorded()
        if status == 0:
            break
        assert status == signal.SIGKILL
        _require_journal_kept(world, recorded)
        assert world.apply_here(after).exit_code == ExitCode.DONE
        assert world.remaining(after) == []
        assert world.recorded().keys() == wanted(after, world.fleet().connections()).keys()
    assert boundary > 15, "the loop reached the end of the run"


def _require_journal_kept(world: Killable, recorded: Mapping[Address, Any]) -> None:
    """What the journal of the killed run says was recorded or forgotten is so."""
    store = world.state.store()
    truth: dict[str, bool] = {}
    for entry in store.journal(store.read().serial):
        if entry.event in ("record", "forget"):
            truth[entry.subject] = entry.event == "record"
    assert all((Address.parse(subject) in recorded) is there for subject, there in truth.items())


# B7, B12: the host is not as it was planned


def test_B12_a_host_that_drifted_between_plan_and_apply_is_left_alone() -> None:
    world = SmallWorld("a", "b")
    world.apply({"a": Wanted("1.0", ("m",)), "b": Wanted("1.0", ("m",))})
    plan = world.plan({"a": Wanted("2.0", ("m",)), "b": Wanted("2.0", ("m",))})
    world.fleet.hosts["a"].engines.clear()
    result = world.execute(plan)
    error = result.hosts[0].error
    assert isinstance(error, StalePlanError)
    assert error.place == "a"
    assert 'engine.a/llama_cpp is not as it was planned: versions was ["1.0"], now it is []' in error.message
    assert (result.exit_code, world.fleet.hosts["a"].engines) == (ExitCode.STALE, {})
    assert result.hosts[1].status == "done"


def test_B12_drift_during_the_apply_is_found_by_the_read_back() -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": Wanted("1.0")})

    def undo(host: str, method: str) -> None:
        world.fleet.hosts[host].engines.clear()

    world.fleet.break_call("run", method="snapshot", nth=2, times=9, hook=undo)
    result = world.execute(plan)
    cause = result.changes[0].cause
    assert cause is not None
    assert cause.code == "apply.not_converged"
    assert all(recorded.attempted for recorded in world.state.resources.values())


# Being asked to stop


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        (signal.SIGTERM, ExitCode.TERMINATED),
        (signal.SIGHUP, ExitCode.TERMINATED),
    ],
)
def test_B15_one_real_signal_finishes_the_step_and_says_so_in_one_line(number: signal.Signals, code: ExitCode) -> None:
    world = SmallWorld("a", "b", "c")
    hosts = {host: Wanted("1.0", ("m", "n")) for host in "abc"}
    cancel = Cancellation()
    noticed = threading.Event()
    cancel.listen(noticed.set)

    def hook(host: str, method: str) -> None:
        os.kill(os.getpid(), number)
        assert noticed.wait(30)

    world.fleet.break_call("run", method="engine.install", hook=hook)
    plan = world.plan(hosts)
    with SignalWatch(cancel):
        result = world.execute(plan, cancel=cancel, parallelism=1)
    assert (result.exit_code, result.signal_name) == (code, number.name)
    assert summary_sentence(result) == "Interrupted: 1 of 9 changes done, 8 not started; run apply again to continue."
    assert apply_text(result).plain.count("nterrupted") == 1
    assert [event.hard for event in world.events.of(CancelRequested)] == [False]
    assert world.last_run is not None
    assert world.last_run.status == "interrupted"
    assert world.apply(hosts).status == "applied"


def test_B15_two_real_signals_stop_at_once_and_nothing_is_lost() -> None:
    world = SmallWorld("a")
    stopped = threading.Event()

    def hook(host: str, method: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(2000):
            if world.fleet.sessions[-1].closed:
                break
            stopped.wait(0.005)

    world.fleet.break_call("run", method="artifact.pull", hook=hook)
    cancel = Cancellation()
    plan = world.plan({"a": FULL})
    with SignalWatch(cancel):
        result = world.execute(plan, cancel=cancel)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert [change.status for change in result.changes] == ["done", "unknown", "not_started", "not_started"]
    assert list(world.state.open_intents) == ["artifact.a/m#1:artifact.pull"]
    assert world.apply({"a": FULL}).status == "applied"


def test_B16_a_reader_that_went_away_does_not_stop_the_apply() -> None:
    world = SmallWorld("a")
    read_end, write_end = os.pipe()
    os.close(read_end)

    def emit(stamped: Any) -> None:
        os.write(write_end, b"event\n")

    plan = world.plan({"a": FULL})
    recorder = type("Gone", (), {"emit": staticmethod(emit), "stamped": []})()
    run = world.state.begin_run()
    result = execute(
        plan,
        sessions=world.fleet.session,
        run=run,
        providers=PROVIDERS,
        services=SmallServices(world.fleet.clock, run.allocate_revision),
        options=ApplyOptions(),
        sink=recorder,
        cancel=Cancellation(),
    )
    os.close(write_end)
    assert result.status == "applied"


# B17: one of many


def test_B17_one_of_fifty_hosts_fails_the_others_are_done_and_a_second_run_touches_only_the_rest() -> None:
    names = [f"gpu-{number:02}" for number in range(50)]
    world = SmallWorld(*names)
    hosts = {name: Wanted("1.0", ("m",)) for name in names}
    world.fleet.break_call("fail", host="gpu-17", method="artifact.pull")
    result = world.apply(hosts)
    assert (result.status, result.exit_code) == ("partial", ExitCode.FAILED)
    assert [host.host for host in result.hosts if host.status != "done"] == ["gpu-17"]
    text = apply_text(result, width=100).plain
    assert all(name in text for name in names)
    assert "✗ artifact.gpu-17/m" in text
    assert len(world.events.of(HostFinished)) == 50
    world.fleet.calls.clear()
    assert world.apply(hosts).status == "applied"
    assert [(call.host, call.method) for call in world.fleet.calls if call.method != "snapshot"] == [
        ("gpu-17", "artifact.pull")
    ]


@pytest.mark.parametrize("fail_fast", [False, True])
def test_B17_every_host_is_in_the_summary_whatever_became_of_it(fail_fast: bool) -> None:
    names = ["a", "b", "c", "d", "e"]
    world = SmallWorld(*names)
    world.fleet.unreachable.add("e")
    plan = world.plan({name: Wanted("1.0") for name in names})
    world.fleet.hosts["b"].engines.clear()
    world.fleet.break_call("fail", host="a", method="engine.install")
    world.fleet.break_call("unreachable", host="c", method="snapshot", times=9)
    result = world.execute(plan, fail_fast=fail_fast, parallelism=1)
    text = apply_text(result).plain
    assert [host.host for host in result.hosts] == names
    assert all(any(line.startswith(f"{name} ") for line in text.splitlines()) for name in names)


# B18: destroying everything by an emptied map


def test_B18_a_plan_that_policy_blocks_changes_nothing_at_all() -> None:
    world = SmallWorld("a", "b")
    world.apply({"a": FULL, "b": FULL})
    plan = world.plan({})
    blocked = tuple(
        replace(change, blocked="it is protected by prevent_destroy", blocked_code="plan.prevent_destroy")
        if str(change.address) == "bundle.b"
        else change
        for change in plan.changes
    )
    journal, calls = list(world.state.journal), list(world.fleet.calls)
    with pytest.raises(RefusedError) as caught:
        world.execute(replace(plan, changes=blocked))
    assert (caught.value.exit_code, caught.value.place) == (ExitCode.REFUSED, "bundle.b")
    assert (world.state.journal, world.fleet.calls) == (journal, calls)


@pytest.mark.parametrize("mode", ["drift", "against"])
def test_B18_a_plan_that_is_only_a_comparison_cannot_be_carried_out(mode: Any) -> None:
    world = SmallWorld("a")
    plan = world.plan({"a": FULL}, mode=mode)
    with pytest.raises(RefusedError) as caught:
        world.execute(plan)
    assert caught.value.code == "plan.not_applicable"
    with pytest.raises(RefusedError):
        world.execute(replace(plan, mode="apply", offline=True))
