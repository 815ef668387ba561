"""Changes and scarce memory under load, with a real runtime and an engine program: nobody's request fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sbctl.engines.memory import usable_host_bytes
from sbctl.node.machine import memory_limit
from tests.simulators.runtime_world import (
    Operator,
    RuntimeProcess,
    content,
    engine_program,
    member,
    prepare_node,
    running,
    weights,
)

pytestmark = pytest.mark.integration


@contextmanager
def _callers(runtime: RuntimeProcess, models: tuple[str, ...], each: int) -> Iterator[Counter[tuple[str, int]]]:
    """Callers that ask again at once; every answer's status by model, complete when the block ended."""
    told: Counter[tuple[str, int]] = Counter()
    stop = threading.Event()

    def caller(model: str) -> None:
        while not stop.is_set():
            told[model, runtime.ask(model=f"{model}-model", stream=True)[0]] += 1

    threads = [threading.Thread(target=caller, args=(model,)) for model in models for _ in range(each)]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _until(condition: Callable[[], bool], deadline_s: float) -> None:
    waiting = threading.Event()
    for _ in range(int(deadline_s / 0.1)):
        if condition():
            return
        waiting.wait(0.1)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("edits", [4, pytest.param(100, marks=pytest.mark.soak)])
def test_edits_in_a_row_under_load_fail_no_request_and_a_bad_one_leaves_the_old_serving(
    tmp_path: Path, edits: int
) -> None:
    operator = Operator()
    prepare_node(tmp_path, operator)
    program, artifact = engine_program(tmp_path, token_delay_s=0.01, slow_load_s=0.1), weights(tmp_path)
    bad = engine_program(tmp_path, "bad", exit_at_once=3)
    with running(tmp_path) as runtime:
        make = lambda depth: member(  # noqa: E731
            artifact, program, max_concurrency=depth, max_queue_depth=64, queue_timeout_ms=60_000
        )
        runtime.apply(operator.bundle(content({"q": make(2)}), 1), None)
        with _callers(runtime, ("q",), 4) as told:
            for revision in range(2, edits + 2):
                desired = content({"q": make(2 + revision % 3)})
                assert "result" in runtime.apply(operator.bundle(desired, revision), revision - 1)
            refused = runtime.apply(operator.bundle(content({"q": member(artifact, bad)}), edits + 2), edits + 1)
            assert refused["error"]["code"] == "engine_early_exit"
        assert set(told) == {("q", 200)}
        assert runtime.ask()[0] == 200
        assert len(runtime.engine_pids()) == 1


def test_two_models_on_one_budget_swap_under_load_without_a_lost_request(tmp_path: Path) -> None:
    """Each needs more than half of what models may take of this machine, so only one is loaded at a time."""
    operator = Operator()
    prepare_node(tmp_path, operator)
    program, artifact = engine_program(tmp_path, token_delay_s=0.01), weights(tmp_path)
    size = int(usable_host_bytes(psutil.virtual_memory().total, memory_limit()) * 0.6)
    cold = member(
        artifact, program, warm=False, pull="on_demand", memory_bytes=size, max_queue_depth=64, queue_timeout_ms=120_000
    )
    with running(tmp_path) as runtime:
        runtime.apply(operator.bundle(content({"a": cold, "b": cold}), 1), None)
        turns: list[str] = []

        def took_turns() -> bool:
            ready = [row["deployment"] for row in runtime.status()["deployments"] if row["state"] == "ready"]
            assert len(ready) <= 1
            if ready and turns[-1:] != ready:
                turns.extend(ready)
            return len(turns) >= 4

        with _callers(runtime, ("a", "b"), 3) as told:
            _until(took_turns, 120)
        assert set(told) == {("a", 200), ("b", 200)}
