"""Weights for replicas: fetched within the cache's budget, never at the cost of what is configured or leased; counted and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.error_kinds import ERROR_KINDS, error_kind
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base.errors import ArtifactError, EngineError, SbctlError
from sbctl.engines.model import EngineBuild
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from sbctl.node.paths import NodePaths
from sbctl.node.records import EventKind
from sbctl.runtime.node_provisioner import NodeProvisioner
from sbctl.runtime.provision import Prepared, quiet
from sbctl.runtime.pull_process import Fetched
from sbctl.runtime.weight_metrics import WeightMetrics
from sbctl.trust.bundle import EnginePolicy
from tests.simulators.runtime_world import Operator, content, member, weights


class Heard:
    def __init__(self) -> None:
        self.kinds: list[EventKind] = []

    def tell(self, kind: EventKind, message: str, **_about: Any) -> None:
        self.kinds.append(kind)


class World:
    """A node without engines; the cache is real."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.root = root
        self.paths = NodePaths(root / "etc", root / "state", root / "cache", root / "opt")
        self.paths.state.mkdir()
        self.heard, registry = Heard(), CollectorRegistry()
        self.metrics = lambda: generate_latest(registry).decode()
        self.cache = ArtifactCache(self.paths.models)
        self.provisioner = NodeProvisioner(
            self.paths,
            self.paths.models,
            lambda: root / "socket",
            self.pull_here,
            events=self.heard,
            metrics=WeightMetrics(registry),
            **options,
        )

        self.offline = bool(options.get("offline"))

        async def found(_member: Any) -> Any:
            return None

        monkeypatch.setattr(self.provisioner, "check_engine", found)

    async def pull_here(self, facts: ArtifactFacts, *, progress: Any, note: Any) -> Fetched:
        """As the process beside a daemon does it, without the process."""
        result = await pull(self.cache, facts, progress=progress, offline=self.offline, note=note)
        return Fetched(result.downloaded_bytes, result.quarantined)

    def facts(self, name: str) -> ArtifactFacts:
        return weights(self.root, name)

    async def prepare(self, facts: ArtifactFacts, **changes: Any) -> Path:
        prepared = await self.provisioner.prepare(member(facts, "/opt/llama-server", **changes), quiet)
        return prepared.weights

    def accept(self, **deployments: ArtifactFacts) -> None:
        desired = content({name: member(facts, "/opt/llama-server") for name, facts in deployments.items()})
        self.paths.bundle.write_text(Operator().bundle(desired, 1))

    def kept(self) -> set[str]:
        return {entry.artifact for entry in self.cache.entries()}


async def test_an_on_demand_pull_makes_room_and_takes_nothing_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, budget_bytes=1)
    leased, configured, gone, last = (world.facts(name) for name in ("leased", "configured", "gone", "last"))
    world.accept(chat=configured)
    await world.prepare(leased)
    await world.prepare(configured)
    world.provisioner.keep_only(frozenset({leased.artifact}))
    await world.prepare(gone)
    world.provisioner.keep_only(frozenset({leased.artifact}))
    assert (await world.prepare(last)).read_bytes().startswith(b"GGUF")
    assert world.kept() == {leased.artifact, configured.artifact, last.artifact}
    assert EventKind.WEIGHTS_COLLECTED in world.heard.kinds


async def test_what_cannot_be_made_ready_is_counted_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, offline=True)
    far = world.facts("far").model_copy(update={"source": "https://weights.example/far.gguf"})
    with pytest.raises(ArtifactError) as caught:
        await world.prepare(far)
    assert caught.value.code == "artifact.offline_missing"
    with pytest.raises(ArtifactError) as caught:
        await world.prepare(far, pull="manual")
    assert caught.value.code == "artifact_not_ready"
    told = world.metrics()
    for kind in ("offline_artifact_missing", "manual_artifact_missing"):
        assert f'artifact_errors_total{{artifact_error_kind="{kind}"}} 1.0' in told
    assert "weight_download_failures_total 1.0" in told


class BroughtMeanwhile(World):
    async def pull_here(self, facts: ArtifactFacts, *, progress: Any, note: Any) -> Fetched:
        await super().pull_here(facts, progress=progress, note=note)
        raise ArtifactError("artifact.transport", "no source answers", retryable=True)


async def test_weights_that_an_apply_brings_while_no_source_answers_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = BroughtMeanwhile(tmp_path, monkeypatch)
    assert (await world.prepare(world.facts("tiny"))).read_bytes().startswith(b"GGUF")
    assert "weight_download_failures_total 1.0" in world.metrics()


async def test_damage_that_a_start_finds_is_told_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    facts = world.facts("tiny")
    path = await world.prepare(facts)
    good = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(good[:-1] + b"x")
    assert (await world.prepare(facts)).read_bytes() == good
    assert EventKind.WEIGHTS_QUARANTINED in world.heard.kinds


async def test_weights_that_can_never_be_held_here_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, monkeypatch, most_bytes=8)
    facts = world.facts("large")
    with pytest.raises(EngineError, match="nothing was fetched") as refused:
        await world.prepare(facts)
    assert refused.value.code == "insufficient_capacity"
    assert not world.kept()
    assert (await world.prepare(facts, memory_bytes=7)).is_file(), "whoever knows better is believed"


@pytest.mark.parametrize(("by_hand", "words"), [(False, "sbctl apply"), (True, "launch: binary")])
async def test_an_engine_that_is_missing_is_said_with_who_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_hand: bool, words: str
) -> None:
    check_engine = NodeProvisioner.check_engine
    provisioner = World(tmp_path, monkeypatch, by_hand=by_hand).provisioner
    wheel = member(weights(tmp_path, "tiny"), "/opt/llama-server")
    wheel = wheel.model_copy(
        update={"engine": EnginePolicy(engine="llama_cpp", launch="wheel", version=LLAMA_CPP_WHEEL_DEFAULT)}
    )
    with pytest.raises(EngineError) as missing:
        await check_engine(provisioner, wheel)
    assert missing.value.code == "engine_missing"
    assert words in (missing.value.next_step or "")


def test_every_error_has_one_of_the_kinds() -> None:
    codes = (
        "artifact.invalid",
        "artifact.never_seen",
        "disk.full",
        "cache.locked",
        "engine_missing",
        "artifact.transport",
    )
    kinds = [error_kind(SbctlError(code, "x")) for code in codes]
    assert kinds == ["invalid_artifact", "unexpected_response", "io", "io", "job", "transport"]
    assert set(kinds) <= ERROR_KINDS


@pytest.mark.parametrize(
    ("devices", "withheld", "span", "refused"),
    [
        ({}, False, None, False),
        ({}, True, None, True),
        ({"a": 10}, True, 1, False),
        ({"a": 10}, False, 2, True),
        ({"a": 10, "b": 8}, False, 2, True),
        ({"a": 10, "b": 10}, False, 2, False),
    ],
)
async def test_an_engine_that_is_made_for_devices_does_not_start_without_them(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: dict[str, int],
    withheld: bool,
    span: int | None,
    refused: bool,
) -> None:
    world = World(tmp_path, monkeypatch, devices=devices, are_withheld=withheld)
    cuda = EnginePolicy(engine="llama_cpp", launch="binary", acceleration="cuda")
    wanted = member(world.facts("m"), "/x").model_copy(update={"engine": cuda, "tensor_parallel": span})
    prepared = Prepared(tmp_path, EngineBuild("llama_cpp", "binary", "b1", ("/x",), tmp_path))
    if refused:
        with pytest.raises(EngineError) as caught:
            await world.provisioner.room(wanted, prepared)
        assert caught.value.code == "engine.no_device"
    else:
        assert (await world.provisioner.room(wanted, prepared)).span == (span if devices else None)
