"""Random lives of a state against a model: whatever happens in which order, a reader sees what the model says, and all of it is proved."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbctl.state.model import LockInfo
from sbctl.state.run import Run
from sbctl.state.store import StateStore
from tests.simulators.state_world import APPLY, StateWorld, address, change, desired, fast_directory, recorded, step

numbers = st.integers(min_value=1, max_value=5)
contents = st.one_of(st.integers(), st.text(max_size=8), st.none()).filter(
    lambda value: not isinstance(value, int) or abs(value) < 2**53
)
scopes = st.sampled_from(["gpu-1", "gpu-2"])
results = st.sampled_from(["done", "not_done", "unknown"])
endings = st.sampled_from(["applied", "partial", "failed", "interrupted"])


@dataclass
class Model:
    """What must be true, with the same words as StateView."""

    serial: int = 0
    resources: dict[int, object] = field(default_factory=dict)
    intents: set[str] = field(default_factory=set)
    revisions: dict[str, int] = field(default_factory=dict)
    signers: dict[str, str] = field(default_factory=dict)
    statuses: dict[int, str] = field(default_factory=dict)
    snapshots: dict[int, dict[int, object]] = field(default_factory=dict)
    asked: dict[int, set[int]] = field(default_factory=dict)

    def close(self, status: str) -> None:
        if self.statuses.get(self.serial) == "running":
            self.statuses[self.serial] = status
            self.snapshots[self.serial] = dict(self.resources)
            self.intents.clear()

    def open(self, asked: set[int]) -> None:
        self.close("interrupted")
        self.serial += 1
        self.statuses[self.serial] = "running"
        self.asked[self.serial] = asked


class StateMachine(RuleBasedStateMachine):
    """`crash` takes the files as they lie on the disk and goes on with a new process; nothing is closed or said good-bye to."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.lives = 0
        self.process = contextlib.ExitStack()
        self.place = contextlib.ExitStack()
        self.root: Path = self.place.enter_context(fast_directory())
        self.world = StateWorld(self.root / "0")
        self.world.directory.parent.mkdir()
        self.store: StateStore = self.world.store()
        self.run: Run | None = None

    @initialize()
    def create(self) -> None:
        self._start()
        self.store.create("fleet")

    def _start(self) -> None:
        self.store = self.world.store()
        self.process.enter_context(self.store.lock(LockInfo("ops@desk", 1, "apply", self.world.clock.now()), 0))
        self.run = None

    def teardown(self) -> None:
        self.process.close()
        self.place.close()

    def _running(self) -> Run:
        assert self.run is not None
        return self.run

    @precondition(lambda self: self.run is None)
    @rule(asked=st.sets(numbers))
    def begin(self, asked: set[int]) -> None:
        self.run = self.store.begin_run(APPLY, [desired(number) for number in asked])
        self.model.open(asked)
        assert self.run.serial == self.model.serial

    @precondition(lambda self: self.run is not None)
    @rule(number=numbers)
    def intent(self, number: int) -> None:
        self._running().intent(step(f"{number}#1"), change(number))
        self.model.intents.add(f"{number}#1")

    @precondition(lambda self: self.run is not None and self.model.intents)
    @rule(data=st.data(), result=results)
    def outcome(self, data: st.DataObject, result: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.intents)))
        self._running().outcome(key, result)  # type: ignore[arg-type]
        self.model.intents.discard(key)

    @precondition(lambda self: self.run is not None)
    @rule(number=numbers, content=contents)
    def record(self, number: int, content: object) -> None:
        self._running().record(recorded(number, content))
        self.model.resources[number] = content

    @precondition(lambda self: self.run is not None)
    @rule(number=numbers)
    def forget(self, number: int) -> None:
        self._running().forget(address(number))
        self.model.resources.pop(number, None)

    @precondition(lambda self: self.run is not None)
    @rule(scope=scopes, above=st.integers(min_value=0, max_value=4))
    def allocate(self, scope: str, above: int) -> None:
        revision = self._running().allocate_revision(scope, above=above)
        assert revision == max(self.model.revisions.get(scope, 0), above) + 1
        self.model.revisions[scope] = revision

    @precondition(lambda self: self.run is not None)
    @rule(status=endings)
    def finish(self, status: str) -> None:
        self._running().finish(status)  # type: ignore[arg-type]
        self.model.close(status)
        self.run = None

    @precondition(lambda self: self.run is None)
    @rule(number=numbers)
    def remove_or_adopt(self, number: int) -> None:
        asked = set(self.model.asked.get(self.model.serial, self.model.resources))
        if number in self.model.resources:
            self.store.remove(address(number))
            self.model.open(asked - {number})
            del self.model.resources[number]
        else:
            self.store.adopt(recorded(number, "adopted"))
            self.model.open(asked | {number})
            self.model.resources[number] = "adopted"
        self.model.close("applied")

    @rule(name=st.sampled_from(["ops", "ci"]), key=st.sampled_from(["ed25519:A", "ed25519:B"]))
    def trust(self, name: str, key: str) -> None:
        if {name: key} != self.model.signers and self.run is None:
            self.model.open(set(self.model.asked.get(self.model.serial, self.model.resources)))
            self.model.close("applied")
            # The snapshot has the set that the serial brought.
        self.store.set_trust({name: key}, len(key))
        self.model.signers = {name: key}

    @precondition(lambda self: self.run is None)
    @rule(force=st.booleans())
    def push_what_is_here(self, force: bool) -> None:
        assert self.store.import_document(self.store.export(), force=force) == self.model.serial

    @precondition(lambda self: self.run is None and self.model.serial > 0)
    @rule()
    def damage_and_repair(self) -> None:
        """Cut the database; the backup of the last finished run comes back under a new serial."""
        finished = max((serial for serial in self.model.snapshots), default=0)
        if finished != self.model.serial:
            return
        backup = self.world.paths.backup.read_bytes()
        self.process.close()
        data = self.world.paths.database.read_bytes()
        self.world.paths.database.write_bytes(data[:100])
        self._start()
        self.store.import_document(backup, force=True)
        model = self.model
        model.serial += 1
        model.statuses = {model.serial: "applied"}
        model.snapshots = {model.serial: dict(model.resources)}
        model.asked = {model.serial: set(model.resources)}

    @rule()
    def crash(self) -> None:
        self.lives += 1
        after = StateWorld(self.root / str(self.lives), self.world.clock)
        shutil.copytree(self.world.directory, after.directory, ignore=shutil.ignore_patterns("*-shm"))
        self.process.close()
        shutil.rmtree(self.world.directory.parent)
        self.world = after
        self._start()

    @rule()
    def reopen(self) -> None:
        self.process.close()
        self._start()

    @invariant()
    def a_reader_sees_the_model(self) -> None:
        store = self.world.store()
        if not store.exists():
            return
        store.verify()
        view, model = store.read(), self.model
        assert view.serial == model.serial
        assert dict(view.resources) == {
            address(number): recorded(number, what) for number, what in model.resources.items()
        }
        assert {intent.step_key for intent in view.open_intents} == model.intents
        assert dict(view.revisions) == model.revisions
        assert dict(view.signers) == model.signers
        assert {run.serial: run.status for run in store.history()} == model.statuses
        for serial, resources in model.snapshots.items():
            snapshot = store.snapshot(serial)
            assert dict(snapshot.resources) == {
                address(number): recorded(number, what) for number, what in resources.items()
            }
            assert {asked.address for asked in snapshot.desired} == {address(number) for number in model.asked[serial]}


StateMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestStateMachine = StateMachine.TestCase
