"""B23: whatever happens, recorded ⊆ journal ⊆ host, and when the faults stop two applies at most make the fleet as desired.

The machine edits what is wanted, applies it with faults, kills the process at random boundaries, fills the disk, and changes hosts behind
our back. Hosts run one after the other, so that every failing example repeats.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sbctl.base.ids import Address
from sbctl.plan.model import DiffContext, Plan
from sbctl.trust.bundle import DeploymentMember, EnginePolicy
from tests.simulators.small_kinds import PROVIDERS, Wanted, facts_of, member_of
from tests.simulators.small_world import SmallWorld

HOSTS = ("a", "b")
MODELS = ("m", "n")
METHODS = (
    "engine.install",
    "engine.remove",
    "artifact.pull",
    "artifact.remove",
    "bundle.apply",
    "bundle.clear",
    "snapshot",
)


@st.composite
def wanted_on_one_host(draw: st.DrawFn) -> Wanted:
    engine = draw(st.sampled_from([None, "1.0", "2.0"]))
    artifacts = tuple(sorted(draw(st.sets(st.sampled_from(MODELS)))))
    if engine is None or not artifacts:
        return Wanted(engine, artifacts)
    names = draw(st.sets(st.sampled_from(["chat", "code"])))
    policy = EnginePolicy(engine="llama_cpp", launch="wheel", version=engine)
    members = {
        name: member_of(draw(st.sampled_from(artifacts)), replicas=draw(st.integers(1, 2)), engine=policy)
        for name in sorted(names)
    }
    return Wanted(engine, artifacts, members)


faults = st.lists(
    st.fixed_dictionaries(
        {
            "effect": st.sampled_from(["fail", "lose", "cut", "unreachable"]),
            "host": st.sampled_from([None, *HOSTS]),
            "method": st.sampled_from([None, *METHODS]),
            "nth": st.integers(1, 6),
            "times": st.integers(1, 4),
        }
    ),
    max_size=3,
)


class ApplyMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = SmallWorld(*HOSTS)
        self.wanted: dict[str, Wanted] = {}
        self.disturbed: set[Address] = set()
        """Changed behind our back since it was recorded."""

    def _plan(self) -> Plan:
        return self.world.plan(self.wanted)

    def _after_apply(self) -> None:
        self.world.fleet.heal()
        self.disturbed -= {Address.parse(entry[1]) for entry in self.world.state.journal if entry[0] == "forget"}

    @rule(host=st.sampled_from(HOSTS), wanted=wanted_on_one_host())
    def edit(self, host: str, wanted: Wanted) -> None:
        self.wanted[host] = wanted

    @rule(host=st.sampled_from(HOSTS))
    def give_up_host(self, host: str) -> None:
        self.wanted.pop(host, None)

    @rule(found=faults, gone=st.sets(st.sampled_from(HOSTS)), fail_fast=st.booleans(), stale=st.booleans())
    def apply_with_faults(self, found: list[dict[str, Any]], gone: set[str], fail_fast: bool, stale: bool) -> None:
        plan = self._plan()
        for fault in found:
            self.world.fleet.break_call(**fault)
        if stale:
            self.world.fleet.unreachable |= gone
        result = self.world.execute(plan, parallelism=1, fail_fast=fail_fast)
        assert (result.exit_code == 0) == all(change.status == "done" for change in result.changes)
        assert {host.host for host in result.hosts} == set(HOSTS)
        assert self.world.state.open_intents == {}
        self._after_apply()

    @rule(boundary=st.integers(1, 40), found=faults)
    def kill(self, boundary: int, found: list[dict[str, Any]]) -> None:
        plan = self._plan()
        for fault in found:
            self.world.fleet.break_call(**fault)
        self.world.kill_at(plan, boundary, parallelism=1)
        self._after_apply()

    @rule(write=st.integers(1, 20))
    def apply_on_a_full_disk(self, write: int) -> None:
        self.world.execute(self._plan(), parallelism=1, fail_write_at=write)
        self._after_apply()

    @rule(host=st.sampled_from(HOSTS), model=st.sampled_from(MODELS))
    def lose_weights(self, host: str, model: str) -> None:
        self.world.fleet.hosts[host].artifacts.pop(facts_of(model).artifact, None)
        self.disturbed.add(Address("artifact", host, model))

    @precondition(lambda self: any(host.deployments for host in self.world.fleet.hosts.values()))
    @rule(host=st.sampled_from(HOSTS))
    def stop_by_hand(self, host: str) -> None:
        sim = self.world.fleet.hosts[host]
        for name in sim.deployments:
            sim.call("deployment.action", {"deployment": name, "action": "stop"}, {}, lambda done, total: None)
            self.disturbed |= {Address("deployment", host, name), Address("bundle", host)}

    @rule()
    def faults_stop(self) -> None:
        self.world.fleet.heal()
        for _ in range(2):
            if not self._plan().actionable:
                break
            self.world.execute(self._plan(), parallelism=1)
        assert self._plan().actionable == ()
        assert self.world.state.resources.keys() == self.world.desired(self.wanted).keys()
        self._require_hosts_as_wanted()
        self.disturbed.clear()

    def _require_hosts_as_wanted(self) -> None:
        for host, sim in self.world.fleet.hosts.items():
            wanted = self.wanted.get(host, Wanted())
            assert sorted(version for _, version in sim.engines) == ([wanted.engine] if wanted.engine else [])
            assert set(sim.artifacts) == {facts_of(name).artifact for name in wanted.artifacts}
            assert set(sim.deployments) == set(wanted.deployments)
            assert all(state.stopped_by is None for state in sim.deployments.values())

    @invariant()
    def recorded_is_in_the_journal(self) -> None:
        """Every record follows a done outcome of its owner's last intent, or no step at all."""
        last: dict[str, str] = {}
        recorded: set[str] = set()
        for entry in self.world.state.journal:
            owner = entry[1].partition("#")[0]
            if entry[0] == "intent":
                last[owner] = "open"
            elif entry[0] == "outcome":
                last[owner] = entry[2]
            elif entry[0] == "attempt":
                recorded.add(entry[1])
            elif entry[0] == "record":
                owner = f"bundle.{Address.parse(owner).scope}" if owner.startswith("deployment.") else owner
                assert last.get(owner, "done") == "done", entry
                recorded.add(entry[1])
            elif entry[0] == "forget":
                recorded.discard(entry[1])
        assert recorded == {str(address) for address in self.world.state.resources}

    @invariant()
    def the_journal_is_on_the_host(self) -> None:
        """What is recorded, and was not touched since by a step that did not end in a record, is there."""
        touched = self._touched_since_recorded()
        for address, recorded in self.world.state.resources.items():
            owner = recorded.member_of or address
            if recorded.attempted or touched.get(owner) or {address, owner} & self.disturbed:
                continue
            snapshot = self.world.fleet.hosts[address.scope].snapshot()
            provider = PROVIDERS[address.kind]
            observed = provider.interpret(snapshot, address, recorded)
            wanted = self.world.desired({address.scope: _from_spec(address, recorded.spec)})[address]
            context = DiffContext(self.world.fleet.clock.now(), "apply", snapshot)
            assert provider.diff(wanted, recorded, observed, context).action == "no-op", address

    def _touched_since_recorded(self) -> dict[Address, bool]:
        touched: dict[Address, bool] = {}
        for entry in self.world.state.journal:
            if entry[0] == "intent":
                touched[Address.parse(entry[1].partition("#")[0])] = True
            elif entry[0] == "record":
                touched[Address.parse(entry[1])] = False
        return touched

    def teardown(self) -> None:
        self.faults_stop()


def _from_spec(address: Address, spec: Any) -> Wanted:
    if address.kind == "engine":
        return Wanted(engine=spec["version"])
    if address.kind == "artifact":
        return Wanted(artifacts=(address.name or "",))
    members = spec["deployments"] if address.kind == "bundle" else {address.name or "": spec["member"]}
    return Wanted(
        deployments={name: DeploymentMember.model_validate(member, strict=False) for name, member in members.items()}
    )


TestApplyMachine = ApplyMachine.TestCase
TestApplyMachine.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestApplyMachineLong = type("TestApplyMachineLong", (ApplyMachine.TestCase,), {})
TestApplyMachineLong.settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)  # type: ignore[attr-defined]
TestApplyMachineLong = pytest.mark.soak(TestApplyMachineLong)
