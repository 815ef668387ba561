"""sb.yml, providers, plan and executor on a simulated host: every change converges, and every drift is named and repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbctl.base.ids import Address
from sbctl.node.snapshot import DeploymentState, EngineState, ReplicaState
from sbctl.plan.model import Change, Plan
from sbctl.trust.keys import SigningKey
from tests.simulators.provider_world import QUICKSTART, ProviderWorld

TWO = QUICKSTART.replace(
    "max_concurrency: 2}\n",
    "max_concurrency: 2}\n      draft: {model: smollm2-135m-instruct, variant: q4_1, pull: on_demand}\n",
)
NOTHING = "proxy: {http_bind_port: 8080}\n"
PUSHED = QUICKSTART + "fleet: {defaults: {delivery: push}}\n"
KEPT = QUICKSTART + "fleet: {defaults: {keep: [weights]}}\n"
PROGRAM = QUICKSTART.replace("{launch: wheel}", "{launch: binary}")
PASSWORD = QUICKSTART.replace(
    "http_bind_port: 8080", 'http_bind_port: 8080\n  admin: {enabled: true, password: "env:ADMIN"}'
)
PROGRAM_ON_PATH = EngineState(
    engine="llama_cpp", launch="binary", version="9905", path="/usr/bin/llama-server", ours=False
)


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    world = ProviderWorld(tmp_path)
    world.environ["ADMIN"] = "correct horse battery staple"
    return world


@pytest.fixture
def served(world: ProviderWorld) -> ProviderWorld:
    world.configure(QUICKSTART)
    assert {change.status for change in world.apply().changes} == {"done"}
    return world


def row(plan: Plan, address: str) -> Change:
    return next(change for change in plan.changes if str(change.address) == address)


EDITS: dict[str, tuple[str, str]] = {
    "other concurrency": (QUICKSTART, QUICKSTART.replace("max_concurrency: 2", "max_concurrency: 8")),
    "other port": (QUICKSTART, QUICKSTART.replace("8080", "8081")),
    "another deployment": (QUICKSTART, TWO),
    "a deployment less": (TWO, QUICKSTART),
    "no deployments": (QUICKSTART, NOTHING),
    "fetched when asked for": (QUICKSTART, QUICKSTART.replace("pull: on_boot, warm: true", "pull: on_demand")),
    "fetched with apply": (QUICKSTART.replace("pull: on_boot, warm: true", "pull: on_demand"), QUICKSTART),
    "weights are pushed": (NOTHING, PUSHED),
    "weights are kept": (KEPT, NOTHING + "fleet: {defaults: {keep: [weights]}}\n"),
    "another public name": (QUICKSTART, QUICKSTART.replace("[smollm2]", "[small]")),
    "another hostname": (QUICKSTART, QUICKSTART.replace("  localhost:", "  ai.internal:")),
    "keys for callers": (QUICKSTART, QUICKSTART + f"fleet: {{api_keys: {{app: {{sha256: {'3f' * 32}}}}}}}\n"),
    "an admin password": (QUICKSTART, PASSWORD),
    "a program of the host": (QUICKSTART, PROGRAM),
    "our own engine again": (PROGRAM, QUICKSTART),
    "recreate": (QUICKSTART, QUICKSTART.replace("warm: true", "warm: true, rollout: recreate")),
}


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS)
def test_every_edit_converges_in_one_apply(world: ProviderWorld, before: str, after: str) -> None:
    world.host().path_engines = (PROGRAM_ON_PATH,)
    for text in (before, after):
        world.configure(text)
        plan = world.plan()
        assert plan.actionable
        assert not [change.blocked for change in plan.changes if change.blocked]
        result = world.apply()
        assert [change.cause for change in result.changes if change.status != "done"] == []
        assert world.rows() == {}


@pytest.mark.parametrize("text", [QUICKSTART, TWO, PUSHED, KEPT, PASSWORD, PROGRAM])
def test_destroy_leaves_nothing_behind(world: ProviderWorld, text: str) -> None:
    world.host().path_engines = (PROGRAM_ON_PATH,)
    world.configure(text)
    world.apply()
    result = world.apply(mode="destroy", desired=())
    assert [change.cause for change in result.changes if change.status != "done"] == []
    host = world.host()
    assert (world.state.resources, host.marker, host.versions, host.engines) == ({}, None, [], {})
    assert bool(host.artifacts) is (text == KEPT)


def _delete_artifact(world: ProviderWorld) -> None:
    world.host().artifacts.clear()


def _damage_artifact(world: ProviderWorld) -> None:
    host = world.host()
    host.artifacts = {key: state.model_copy(update={"state": "corrupt"}) for key, state in host.artifacts.items()}


def _edit_unit(world: ProviderWorld) -> None:
    world.host().unit_sha256 = "e" * 64


def _edit_configuration(world: ProviderWorld) -> None:
    host = world.host()
    assert host.config is not None
    host.config = host.config.model_copy(update={"http_bind_port": 1})


def _stop_deployment(world: ProviderWorld) -> None:
    host = world.host()
    host.deployments["chat"] = host.deployments["chat"].model_copy(
        update={"stopped_by": "operator", "state": "stopped"}
    )


def _stop_runtime(world: ProviderWorld) -> None:
    world.host().running = world.host().healthy = False


def _hang_runtime(world: ProviderWorld) -> None:
    world.host().healthy = False


def _remove_engine(world: ProviderWorld) -> None:
    world.host().engines.clear()


def _clear_bundle(world: ProviderWorld) -> None:
    world.host().bundle = None
    world.host().deployments = {}


def _lose_a_deployment(world: ProviderWorld) -> None:
    world.host().deployments = {}
    world.host().bundle = None


def _remove_marker(world: ProviderWorld) -> None:
    world.host().marker = None


DRIFTS: dict[str, tuple[Any, dict[str, str]]] = {
    "an artifact deleted": (_delete_artifact, {"artifact.local/smollm2-135m-instruct:q4_1": "create"}),
    "an artifact damaged": (_damage_artifact, {"artifact.local/smollm2-135m-instruct:q4_1": "create"}),
    "a unit edited": (_edit_unit, {"runtime.local": "update"}),
    "a configuration edited": (_edit_configuration, {"runtime.local": "update"}),
    "a deployment stopped": (_stop_deployment, {"deployment.local/chat": "update", "bundle.local": "update"}),
    "a runtime stopped": (_stop_runtime, {"runtime.local": "update", "bundle.local": "update"}),
    "a runtime that hangs": (_hang_runtime, {"runtime.local": "update"}),
    "an engine removed": (_remove_engine, {"engine.local/llama_cpp": "create"}),
    "a bundle cleared": (
        _clear_bundle,
        {"bundle.local": "create", "deployment.local/chat": "create", "origin.local/localhost": "create"},
    ),
    "a marker removed": (_remove_marker, {"host.local": "create"}),
}


@pytest.mark.parametrize(("tamper", "expected"), DRIFTS.values(), ids=DRIFTS)
def test_drift_is_named_by_drift_and_plan_and_repaired(
    served: ProviderWorld, tamper: Any, expected: dict[str, str]
) -> None:
    tamper(served)
    drift = served.plan(mode="drift", desired=())
    assert served.rows(drift) == expected
    assert all(change.drifted for change in drift.actionable)
    assert served.rows() == expected
    result = served.apply()
    assert [change.cause for change in result.changes if change.status != "done"] == []
    assert served.rows() == {}
    assert served.rows(served.plan(mode="drift", desired=())) == {}


def test_what_an_operator_stopped_starts_again_without_a_new_revision(served: ProviderWorld) -> None:
    _stop_deployment(served)
    assert [step.method for step in row(served.plan(), "bundle.local").steps] == ["deployment.action"]
    served.apply()
    assert served.host().deployments["chat"].stopped_by is None
    assert served.record_of("bundle.local")["revision"] == 1


def test_an_idle_unload_and_a_crash_are_no_drift(served: ProviderWorld) -> None:
    host = served.host()
    host.deployments["chat"] = host.deployments["chat"].model_copy(update={"stopped_by": "idle", "state": "cached"})
    assert served.settled()
    host.deployments["chat"] = host.deployments["chat"].model_copy(update={"stopped_by": None, "state": "failed"})
    assert served.settled()


def test_a_runtime_that_comes_back_with_its_bundle_gets_no_new_revision(served: ProviderWorld) -> None:
    _stop_runtime(served)
    served.apply()
    assert served.record_of("bundle.local")["revision"] == 1
    assert served.fleet.methods().count("bundle.apply") == 1


@pytest.mark.parametrize(
    "method",
    ["host.mark", "runtime.install", "runtime.activate", "engine.install", "artifact.pull", "bundle.apply"],
)
def test_a_lost_answer_is_settled_by_reading_the_host(world: ProviderWorld, method: str) -> None:
    world.configure(QUICKSTART)
    world.fleet.break_call("lose", method=method)
    result = world.apply()
    assert [change.cause for change in result.changes if change.status != "done"] == []
    assert world.rows() == {}


@pytest.mark.parametrize(
    "method",
    ["host.mark", "runtime.install", "runtime.activate", "engine.install", "artifact.pull", "bundle.apply"],
)
def test_a_step_that_never_happened_is_done_by_the_next_apply(world: ProviderWorld, method: str) -> None:
    world.configure(QUICKSTART)
    world.fleet.break_call("cut", method=method, times=3)
    world.apply()
    world.fleet.heal()
    world.apply()
    assert world.rows() == {}


def test_a_record_that_was_never_written_is_made_up_from_the_host(served: ProviderWorld) -> None:
    """As after a kill between act and record: nothing is sent twice."""
    revision = served.host().bundle.revision  # type: ignore[union-attr]
    for address in list(served.state.resources):
        if address.kind in ("bundle", "deployment", "origin"):
            del served.state.resources[address]
    plan = served.plan()
    assert [step.method for step in row(plan, "bundle.local").steps] == ["snapshot"]
    served.apply()
    assert served.host().bundle.revision == revision  # type: ignore[union-attr]
    assert served.rows() == {}


def test_a_state_older_than_its_host_is_named_and_catches_up(served: ProviderWorld) -> None:
    old = dict(served.state.resources), dict(served.state.revisions)
    for concurrency in (3, 4, 5):
        served.configure(QUICKSTART.replace("max_concurrency: 2", f"max_concurrency: {concurrency}"))
        served.apply()
    served.state.resources, served.state.revisions = old
    served.configure(QUICKSTART.replace("max_concurrency: 2", "max_concurrency: 6"))
    change = row(served.plan(), "bundle.local")
    assert change.drifted
    assert "the host holds revision 4 and the state remembers 1" in change.notes[0]
    result = served.apply()
    assert [one.cause for one in result.changes if one.status != "done"] == []
    assert served.record_of("bundle.local")["revision"] == 5
    assert served.rows() == {}


def test_a_rollback_brings_the_old_content_under_a_new_revision(served: ProviderWorld) -> None:
    old = served.last_desired
    first = served.host().bundle
    served.configure(QUICKSTART.replace("max_concurrency: 2", "max_concurrency: 4"))
    served.apply()
    served.apply(mode="rollback", desired=old)
    now = served.host().bundle
    assert first is not None
    assert now is not None
    assert (now.content_digest, now.revision) == (first.content_digest, 3)
    assert served.rows(served.plan(mode="rollback", desired=old)) == {}


def test_a_rollback_keeps_todays_signers_and_epoch(served: ProviderWorld) -> None:
    old = served.last_desired
    served.key_epoch = 1
    served.configure(QUICKSTART.replace("max_concurrency: 2", "max_concurrency: 4"))
    served.apply()
    assert served.host().trust.key_epoch == 1  # type: ignore[union-attr]
    served.apply(mode="rollback", desired=old)
    assert served.host().trust.key_epoch == 1  # type: ignore[union-attr]
    assert served.rows(served.plan(mode="rollback", desired=old)) == {}


def test_a_new_signer_comes_with_a_new_epoch_and_the_bundle_is_signed_again(served: ProviderWorld) -> None:
    served.signers = {**served.signers, "ci": SigningKey.generate().public_text}
    served.key_epoch = 1
    served.configure(QUICKSTART)
    plan = served.plan()
    assert served.rows(plan) == {"runtime.local": "update", "bundle.local": "update"}
    assert {leaf.path for leaf in row(plan, "runtime.local").leaves} == {"key_epoch", "signers.ci"}
    served.apply()
    assert served.rows() == {}


def test_a_target_changes_its_deployment_and_no_other(world: ProviderWorld) -> None:
    world.configure(TWO)
    world.apply()
    world.configure(
        TWO.replace("max_concurrency: 2", "max_concurrency: 9").replace("on_demand}", "on_demand, warm: true}")
    )
    plan = world.plan(targets=("deployment.local/chat",))
    assert world.rows(plan) == {"deployment.local/chat": "update", "bundle.local": "update"}
    world.execute(plan)
    assert world.host().bundle.content.deployments["draft"].warm is False  # type: ignore[union-attr]
    assert world.rows(world.plan(targets=("deployment.local/chat",))) == {}


@pytest.mark.parametrize(
    ("pattern", "methods"),
    [
        ("engine.local/llama_cpp", ["engine.remove", "engine.install"]),
        ("deployment.local/chat", ["deployment.action", "deployment.action"]),
        ("bundle.local", ["bundle.clear", "bundle.apply"]),
    ],
)
def test_replace_makes_it_anew_and_converges(served: ProviderWorld, pattern: str, methods: list[str]) -> None:
    before = len(served.fleet.methods())
    result = served.apply(replaces=(pattern,))
    assert [change.cause for change in result.changes if change.status != "done"] == []
    assert served.fleet.methods()[before:] == methods
    assert served.rows() == {}


@pytest.mark.parametrize(("pid", "radius", "downtime"), [(77, "restart", "refuse"), (None, "hitless", "none")])
def test_an_engine_put_back_under_what_runs_on_it_is_told_as_a_restart(
    served: ProviderWorld, monkeypatch: pytest.MonkeyPatch, pid: int | None, radius: str, downtime: str
) -> None:
    host = served.host()
    host.engines.clear()
    replica = ReplicaState(state="ready", pid=pid)
    running = host.snapshot().model_copy(
        update={"deployments": (DeploymentState(deployment="chat", replicas=(replica,)),)}
    )
    monkeypatch.setattr(host, "snapshot", lambda: running)
    change = row(served.plan(), "engine.local/llama_cpp")
    assert (change.blast_radius.name.lower(), change.downtime) == (radius, downtime)
    assert any("restarted" in note for note in change.notes) is (pid is not None)


def test_the_admin_password_travels_as_a_secret_and_stays_out_of_plan_and_state(world: ProviderWorld) -> None:
    world.configure(PASSWORD)
    plan = world.plan()
    world.execute(plan)
    assert world.host().secret_names == {"admin_password"}
    assert world.environ["ADMIN"] not in repr(plan) + repr(world.state.resources) + repr(world.fleet.calls)
    world.environ["ADMIN"] = "another one entirely"
    world.configure(PASSWORD)
    assert [leaf.path for leaf in row(world.plan(), "runtime.local").leaves] == ["admin_password"]
    world.apply()
    assert world.rows() == {}


def test_two_hosts_are_planned_apart(tmp_path: Path) -> None:
    world = ProviderWorld(tmp_path, "a", "b")
    hosts = "".join(
        f"    {name}: {{address: 10.0.0.{n}, host_key: 'SHA256:{'A' * 43}'}}\n" for n, name in enumerate("ab", 1)
    )
    world.configure(QUICKSTART + "fleet:\n  hosts:\n" + hosts)
    assert {change.status for change in world.apply().changes} == {"done"}
    world.host("b").artifacts.clear()
    assert world.rows() == {"artifact.b/smollm2-135m-instruct:q4_1": "create"}
    world.configure(QUICKSTART + "fleet:\n  hosts:\n" + hosts.splitlines(keepends=True)[0])
    assert {change.status for change in world.apply().changes} == {"done"}
    assert {address.scope for address in world.state.resources} == {"a"}
    assert world.host("b").marker is None


def test_a_host_without_anything_to_serve_has_no_bundle(world: ProviderWorld) -> None:
    world.configure(NOTHING)
    assert world.rows() == {"host.local": "create", "runtime.local": "create"}


def test_an_unreachable_host_says_nothing_of_its_resources(served: ProviderWorld) -> None:
    served.fleet.unreachable.add("local")
    plan = served.plan()
    assert [str(change.address) for change in plan.changes] == ["host.local"]
    assert plan.actionable == ()


def test_equal_members_of_a_thousand_hosts_are_one_value(tmp_path: Path) -> None:
    names = [f"h{number}" for number in range(50)]
    world = ProviderWorld(tmp_path, *names)
    hosts = "".join(
        f"    {name}: {{address: 10.0.1.{n}, host_key: 'SHA256:{'A' * 43}'}}\n" for n, name in enumerate(names, 1)
    )
    world.configure(QUICKSTART + "fleet:\n  hosts:\n" + hosts)
    desired = {one.address: one for one in world.desired()}
    for kind, name in (("bundle", None), ("deployment", "chat"), ("origin", "localhost")):
        assert len({id(desired[Address(kind, host, name)].spec) for host in names}) == 1


def test_fault_55_limits_that_nobody_wrote_are_values_of_the_plan(world: ProviderWorld) -> None:
    world.configure(TWO)
    told = {leaf.path: leaf.after for leaf in row(world.plan(), "deployment.local/draft").leaves}
    limits = {name: told[name] for name in ("max_concurrency", "max_queue_depth", "queue_timeout_ms")}
    assert limits == {"max_concurrency": 1, "max_queue_depth": 128, "queue_timeout_ms": 30_000}
