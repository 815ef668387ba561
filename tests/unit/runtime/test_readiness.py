"""When an engine counts as ready and when it no longer does, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base.errors import EngineError
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import EngineAddress, EngineBuild
from sbctl.runtime.engine_client import EngineClient
from sbctl.runtime.engine_exit import EngineExit
from sbctl.runtime.engine_host import EngineLabel
from sbctl.runtime.readiness import ProgressWatch, WatchTimes, await_ready, exit_error
from tests.simulators.engine_world import EngineWorld, FakeClient, FakeEngine, in_virtual_time, outcome_of
from tests.simulators.llama_launches import launch_request, launch_spec

SPEC = launch_spec(EngineBuild("llama_cpp", "wheel", "1", ("/e",), Path("/e")), slots=2, context_length=512)
RIGHT: dict[str, Any] = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2, "model_path": "/m"}


class Facts(FakeClient):
    """Answers what its world says, and different things at `/props` and `/slots`."""

    def __init__(self, world: EngineWorld, facts: Any) -> None:
        super().__init__(world)
        self.facts = facts

    async def json(self, path: str) -> Any:
        return self.facts if path == "/props" else self._world.slots


def _engine(kind: type[FakeEngine] = FakeEngine) -> Any:
    return kind(EngineLabel("q", 0, 1), EngineAddress(port=1), 4711)


async def _ready(world: EngineWorld, facts: Any, engine: Any = None, *, token: bool = True) -> str:
    client = cast("EngineClient", Facts(world, facts))
    return await outcome_of(await_ready(engine or _engine(), client, SPEC, LlamaCpp(), token=token))


@pytest.mark.parametrize(
    ("facts", "slots", "outcome"),
    [
        (RIGHT, [{"n_ctx": 512}] * 2, "ok"),
        ({}, None, "ok"),
        (None, "not a list", "ok"),
        ({**RIGHT, "default_generation_settings": {"n_ctx": 256}}, None, "engine_mismatch"),
        ({**RIGHT, "total_slots": 4}, None, "engine_mismatch"),
        ({**RIGHT, "model_path": "/other"}, None, "engine_mismatch"),
        (RIGHT, [{"n_ctx": 512}], "engine_mismatch"),
        (RIGHT, [{"n_ctx": 512}, {"n_ctx": 128}], "engine_mismatch"),
    ],
)
def test_fault_23_an_engine_that_is_not_what_was_started_is_refused(facts: Any, slots: Any, outcome: str) -> None:
    assert in_virtual_time(lambda: _ready(EngineWorld(slots=slots), facts)) == outcome


def test_fault_52_ready_is_one_answered_request_not_a_health_route() -> None:
    fault = EngineError("engine_health_failed", "no token")
    assert in_virtual_time(lambda: _ready(EngineWorld(canary_fault=fault), RIGHT)) == "engine_health_failed"
    assert in_virtual_time(lambda: _ready(EngineWorld(canary_fault=fault), RIGHT, token=False)) == "ok"


@pytest.mark.parametrize("busy_s", [0.0, 2000.0])
def test_fault_42_a_start_is_given_up_when_nothing_moves_not_when_it_is_slow(busy_s: float) -> None:
    async def work() -> float:
        engine = _engine()
        loop = asyncio.get_running_loop()
        engine.effort = lambda: int(min(loop.time(), busy_s))
        assert await _ready(EngineWorld(health=503), RIGHT, engine) == "engine_readiness_timeout"
        return loop.time()

    gave_up_s = in_virtual_time(work)
    assert busy_s + 300 <= gave_up_s < busy_s + 320


def test_fault_05_even_a_start_that_works_on_has_an_end() -> None:
    async def work() -> float:
        engine = _engine()
        loop = asyncio.get_running_loop()
        engine.effort = lambda: int(loop.time())
        assert await _ready(EngineWorld(health=503), RIGHT, engine) == "engine_readiness_timeout"
        return loop.time()

    assert 3600 <= in_virtual_time(work) < 3610


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        (EngineExit.told(3), "engine_exited", "exit code 3"),
        (EngineExit.told(-15), "engine_exited", "SIGTERM from outside"),
        (EngineExit.told(-11), "engine_exited", "SIGSEGV: it crashed"),
        (EngineExit(-9, "oom"), "engine_oom_killed", "the kernel killed it, since memory ran out"),
        (EngineExit(-9, "oom_likely"), "engine_oom_killed", "probably this one"),
        (EngineExit.told(None), "engine_exited", "nobody saw"),
    ],
)
def test_fault_81_an_end_says_whose_doing_it_was(ended: EngineExit, code: str, words: str) -> None:
    async def work() -> EngineError:
        return await exit_error(ended, _engine(), while_loading=False)

    error = in_virtual_time(work)
    assert error.code == code
    assert words in error.message
    assert error.next_step
    assert ("fewer slots" in error.next_step) == (code == "engine_oom_killed")


async def _watched(world: EngineWorld, seconds: float, *, active: int, said: tuple[str, ...] = ("fine",)) -> str:
    engine = _engine()
    engine.said = said
    watch = ProgressWatch(engine, cast("EngineClient", FakeClient(world)), SPEC.probe, WatchTimes())
    end_s = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end_s:
        await asyncio.sleep(10)
        if (error := await watch.check(active=active)) is not None:
            return error.message
    return ""


@pytest.mark.parametrize(
    ("change", "active", "seconds", "found"),
    [
        ({}, 0, 250, ""),
        ({"metrics": "llamacpp:n_decode_total 5\n"}, 1, 110, ""),
        ({"metrics": "llamacpp:n_decode_total 5\n"}, 1, 200, "without a new token"),
        ({"slots": [{"is_processing": True}]}, 0, 100, ""),
        ({"slots": [{"is_processing": True}]}, 0, 200, "after its caller had left"),
        ({"canary_fault": EngineError("engine_health_failed", "no token")}, 0, 290, ""),
        ({"canary_fault": EngineError("engine_health_failed", "no token")}, 0, 320, "while idle, no token"),
    ],
)
def test_fault_06_health_is_progress(change: dict[str, Any], active: int, seconds: float, found: str) -> None:
    message = in_virtual_time(lambda: _watched(EngineWorld(**change), seconds, active=active))
    assert found in message
    assert bool(found) == bool(message)


def test_fault_26_a_slot_that_works_for_nobody_ends_the_engine() -> None:
    world = EngineWorld(slots=[{"is_processing": False}, {"is_processing": True}])
    assert "after its caller had left" in in_virtual_time(lambda: _watched(world, 200, active=0))
    assert world.canaries == 0, "a busy engine is not asked for more"


def test_fault_27_a_slot_that_spins_without_a_token_ends_the_engine() -> None:
    assert "without a new token" in in_virtual_time(lambda: _watched(EngineWorld(), 200, active=1))


@pytest.mark.parametrize("line", ["CUDA error: out of memory", "ggml-cpu.c:88: GGML_ASSERT(n > 0) failed"])
def test_fault_70_what_an_engine_prints_when_it_is_lost_ends_it_at_once(line: str) -> None:
    world = EngineWorld(metrics="llamacpp:n_decode_total 5\n")
    assert line[:20] in in_virtual_time(lambda: _watched(world, 40, active=1, said=(line, "bye")))


def test_fault_07_a_busy_engine_is_not_ended_for_a_slow_health_route() -> None:
    async def work() -> str:
        world = EngineWorld(health=None)
        engine, loop = _engine(), asyncio.get_running_loop()
        watch = ProgressWatch(engine, cast("EngineClient", FakeClient(world)), SPEC.probe, WatchTimes())
        for _ in range(60):
            await asyncio.sleep(10)
            world.metrics = f"llamacpp:n_decode_total {loop.time()}\n"
            assert await watch.check(active=1) is None
        return "ok"

    assert in_virtual_time(work) == "ok"


def test_callers_who_come_during_a_canary_speak_for_the_engine() -> None:
    async def work() -> int:
        world = EngineWorld()
        watch: ProgressWatch

        class Slow(FakeClient):
            async def produce(self, _canary: Any, *, timeout_s: float) -> None:
                await asyncio.sleep(1)
                watch.progressed()
                raise EngineError("engine_health_failed", "late")

        watch = ProgressWatch(_engine(), cast("EngineClient", Slow(world)), SPEC.probe, WatchTimes(canary_s=20))
        for _ in range(10):
            await asyncio.sleep(10)
            assert await watch.check(active=0) is None
        return 1

    assert in_virtual_time(work) == 1


@pytest.mark.parametrize("mode", ["chat", "embedding", "rerank"])
def test_each_mode_is_asked_for_what_it_gives(mode: str) -> None:
    paths: dict[str, str] = {"chat": "/v1/completions", "embedding": "/v1/embeddings", "rerank": "/v1/rerank"}
    make: Callable[..., Any] = launch_request
    assert LlamaCpp().probe(make(mode=mode)).canary.path == paths[mode]
