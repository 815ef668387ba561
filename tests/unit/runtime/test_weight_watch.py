"""Weights that are taken away under a running engine: said, mended, and each engine replaced without a lost request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.pull import pull
from sbctl.base.errors import ArtifactError
from sbctl.node.records import EventKind
from sbctl.runtime.generation import Generation
from sbctl.runtime.provision import Prepared, Progress
from sbctl.runtime.weight_metrics import WeightMetrics
from sbctl.runtime.weight_watch import Identity, WeightWatch, weights_of
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, facts, in_virtual_time
from tests.simulators.runtime_world import member, weights

OLD, NEW = frozenset({(1, 1)}), frozenset({(1, 2)})


class World(EngineWorld):
    """Weights come back by preparing them, as long as there is a source."""

    def __init__(self) -> None:
        super().__init__()
        self.there: Identity | None = OLD
        self.heard: list[tuple[EventKind, Any]] = []
        self.registry = CollectorRegistry()
        self.generations: list[Generation] = []

    def tell(self, kind: EventKind, message: str, *, deployment: Any = None, **_about: Any) -> None:
        self.heard.append((kind, deployment))

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        prepared = await super().prepare(member, progress)
        self.there = self.there or NEW
        return prepared

    def watch(self) -> WeightWatch:
        return WeightWatch(
            lambda: self.generations,
            self,  # type: ignore[arg-type]
            lambda _member: self.there,
            self,  # type: ignore[arg-type]
            WeightMetrics(self.registry),
            drain_s=60.0,
        )

    def generation(self, **changes: Any) -> Generation:
        made = Generation("chat", 1, member(facts(), "/engine", **changes), self.ports())
        self.generations.append(made)
        return made

    @property
    def told(self) -> bool:
        return 'replicas_on_changed_weights{deployment="chat"}' in generate_latest(self.registry).decode()


@pytest.mark.parametrize("replicas", [1, 2])
def test_engines_on_weights_that_were_set_aside_are_replaced_one_by_one_and_no_request_is_lost(replicas: int) -> None:
    async def work() -> None:
        world = World()
        generation = world.generation(replicas=replicas, warm=True, queue_timeout_ms=60_000)
        await generation.load("reconcile")
        watch = world.watch()
        await watch.look()
        assert world.heard == []
        lease = await generation.admit("standard")
        world.there = None
        looking = asyncio.create_task(watch.look())
        await asyncio.sleep(1)
        assert "changed or were set aside" in (generation.state().last_error or "")
        assert world.told
        waiting = asyncio.create_task(generation.admit("standard"))
        await asyncio.sleep(5)
        lease.release()
        (await waiting).release()
        await looking
        assert generation.ready_replicas == replicas
        assert len(world.alive) == replicas
        assert len(world.engines) == 2 * replicas
        assert generation.state().last_error is None
        assert not world.told
        assert world.heard == [(EventKind.WEIGHTS_QUARANTINED, "chat"), (EventKind.WEIGHTS_REPLACED, "chat")]
        await watch.look()
        assert len(world.engines) == 2 * replicas

    in_virtual_time(work)


def test_without_good_weights_the_engines_serve_on_and_the_row_says_what_to_do() -> None:
    async def work() -> None:
        world = World()
        generation = world.generation(warm=True)
        await generation.load("reconcile")
        watch = world.watch()
        await watch.look()
        world.there = None
        world.prepare_fault = ArtifactError("artifact_not_ready", "not in the cache", next_step="pull it")
        for _ in range(3):
            await watch.look()
        assert generation.ready_replicas == 1
        assert "cannot be had: not in the cache; next: pull it" in (generation.state().last_error or "")
        assert world.told
        assert [kind for kind, _ in world.heard] == [EventKind.WEIGHTS_QUARANTINED], "once"
        world.prepare_fault = None
        await asyncio.sleep(301)
        await watch.look()
        assert generation.state().last_error is None
        assert len(world.engines) == 2

    in_virtual_time(work)


def test_a_seal_that_was_broken_over_good_bytes_ends_no_engine() -> None:
    async def work() -> None:
        world = World()
        generation = world.generation(warm=True)
        await generation.load("reconcile")
        watch = world.watch()
        await watch.look()

        async def sealed_again(_member: DeploymentMember, _progress: Progress) -> Any:
            world.there = OLD

        world.there, world.prepare = None, sealed_again  # type: ignore[method-assign]
        await watch.look()
        assert len(world.engines) == 1
        assert not world.told
        world.there = None
        world.generations.clear()
        await watch.look()
        assert not world.told

    in_virtual_time(work)


async def test_what_an_engine_was_given_is_told_by_the_files_themselves(tmp_path: Path) -> None:
    cache, known = ArtifactCache(tmp_path / "cache"), weights(tmp_path)
    assert weights_of(cache, [known.artifact]) is None
    await pull(cache, known)
    first = weights_of(cache, [known.artifact])
    assert first is not None
    assert len(first) == 1
    path = cache.snapshot_path(known.artifact) / known.files[0].path
    path.chmod(0o600)
    path.write_bytes(b"GGUF, but another")
    assert weights_of(cache, [known.artifact]) is None
    await pull(cache, known)
    assert weights_of(cache, [known.artifact]) not in (None, first)
