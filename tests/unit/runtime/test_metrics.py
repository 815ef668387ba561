"""Metrics: what a request adds, under labels that no request can make."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from sbctl.runtime.device_metrics import DeviceMetrics
from sbctl.runtime.gateway.events import Usage
from sbctl.runtime.gateway.ports import Outcome
from sbctl.runtime.gauges import DeploymentGauges, MemoryGauges
from sbctl.runtime.generation import Generation
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.residency import Residency
from sbctl.runtime.room import Budget, Room
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, in_virtual_time


def _value(text: str, line: str) -> float:
    return next(float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line + " "))


@pytest.mark.parametrize(
    ("tokens", "queued_s", "total_s", "broke", "counted"),
    [(50, 1.0, 2.0, False, 1), (0, 0.0, 1.0, False, 0), (50, 1.0, 1.0, False, 0), (50, 0.0, 1.0, True, 0)],
)
def test_a_request_adds_its_wait_its_first_byte_and_its_rate(
    tokens: int, queued_s: float, total_s: float, broke: bool, counted: int
) -> None:
    metrics = RuntimeMetrics()
    usage = Usage(prompt_tokens=7, completion_tokens=tokens)
    metrics.finished(Outcome("q", 200, queued_s, 0.5, total_s, usage, broke))
    text = metrics.render().decode()
    assert _value(text, 'sbctl_request_queue_seconds_sum{deployment="q"}') == queued_s
    assert _value(text, 'sbctl_request_first_token_seconds_count{deployment="q"}') == 1
    assert _value(text, 'sbctl_request_tokens_per_second_count{deployment="q"}') == counted
    if counted:
        assert _value(text, 'sbctl_request_tokens_per_second_sum{deployment="q"}') == tokens / (total_s - queued_s)
    assert _value(text, 'sbproxy_requests_total{deployment="q",status="200"}') == 1


def test_names_without_end_make_no_lines_without_end() -> None:
    metrics = RuntimeMetrics()
    for number in range(3000):
        metrics.rejected(f"d{number}", "standard", "queue_full")
    rows = [row for row in metrics.render().decode().splitlines() if "admission_rejections_total{" in row]
    assert len(rows) == 2001
    assert (
        'sbproxy_model_host_admission_rejections_total{deployment="__other__",priority="standard",reason="queue_full"} 1000.0'
        in rows
    )


# What is unloaded, by why


@pytest.mark.parametrize(
    ("changes", "steps", "reason"),
    [({"keep_alive_secs": 5}, "idle", "keep_alive"), ({}, "evict", "manual"), ({}, "another", "lru")],
)
def test_an_engine_that_is_unloaded_counts_by_its_reason(
    make_member: Callable[..., DeploymentMember], changes: dict[str, Any], steps: str, reason: str
) -> None:
    metrics = RuntimeMetrics()
    world = EngineWorld()

    async def work() -> None:
        ports = replace(
            world.ports(), residency=Residency(Budget(engines=1)), launched=metrics.launched, evicted=metrics.evicted
        )
        first, second = [Generation(n, 1, make_member(n, warm=False, **changes), ports) for n in ("one", "two")]
        await first.load("operator")
        if steps == "idle":
            await asyncio.sleep(30)
        elif steps == "evict":
            await first.evict()
        else:
            await second.load("operator")
        assert first.ready_replicas == 0
        for generation in (first, second):
            await generation.retire(drain_s=0)

    in_virtual_time(work)
    text = metrics.render().decode()
    assert _value(text, f'sbproxy_model_host_evictions_total{{reason="{reason}"}}') == 1
    assert _value(text, 'sbproxy_model_host_launches_total{engine="llama_cpp",model="one",outcome="ready"}') == 1
    ready = 'sbproxy_model_host_time_to_ready_seconds_count{engine="llama_cpp",model="one"}'
    assert _value(text, ready) == 1


# Gauges


def _text(*collectors: Collector) -> str:
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry).decode()


def test_places_are_told_by_device_and_only_where_there_is_a_bound() -> None:
    budget = Budget(host_bytes=100, devices={"gpu-a": 50, "gpu-b": 60})
    held = Room(host_bytes=30, device_bytes=20, devices=(("gpu-b", 20),))
    text = _text(MemoryGauges(cast("Residency", SimpleNamespace(budget=budget, used=held))))
    for device, promised, bound in (("host", 30, 100), ("gpu-a", 0, 50), ("gpu-b", 20, 60)):
        assert _value(text, f'sbctl_engine_memory_promised_bytes{{device="{device}"}}') == promised
        assert _value(text, f'sbctl_engine_memory_budget_bytes{{device="{device}"}}') == bound
    text = _text(MemoryGauges(cast("Residency", SimpleNamespace(budget=Budget(), used=Room(engines=0)))))
    assert "budget_bytes{" not in text


def test_devices_tell_what_they_know_and_nothing_else() -> None:
    whole = {"index": 0, "memory_total_bytes": 200, "memory_free_bytes": 50, "utilization_percent": 25}
    gpus: list[dict[str, str | int]] = [whole, {"index": 1, "memory_total_bytes": 100}]

    async def look_once(devices: DeviceMetrics) -> None:
        task = asyncio.create_task(devices.watch())
        await asyncio.sleep(1)
        task.cancel()

    devices = DeviceMetrics(lambda: tuple(gpus))
    in_virtual_time(lambda: look_once(devices))
    text = _text(devices)
    prefix = "sbproxy_model_host_gpu_"
    assert _value(text, f'{prefix}vram_bytes{{device="0",kind="free"}}') == 50
    assert _value(text, f'{prefix}memory_occupancy{{device="0"}}') == 0.75
    assert _value(text, f'{prefix}utilization{{device="0"}}') == 0.25
    assert f'{prefix}vram_bytes{{device="1",kind="total"}}' in text
    assert f'{prefix}utilization{{device="1"}}' not in text
    none = DeviceMetrics(tuple)
    in_virtual_time(lambda: look_once(none))
    assert _text(none) == ""


def test_what_waits_for_a_load_is_told_by_model(make_member: Callable[..., DeploymentMember]) -> None:
    world = EngineWorld(load_s=5)
    told: list[str] = []

    async def work() -> None:
        ports = world.ports()
        generations = {name: Generation(name, 1, make_member("tiny", warm=False), ports) for name in ("a", "b")}
        reconciler = cast("Reconciler", SimpleNamespace(generations=generations, revision=3))
        asking = [asyncio.create_task(generation.admit("standard")) for generation in generations.values()]
        await asyncio.sleep(1)
        told.append(_text(DeploymentGauges(reconciler)))
        for lease in await asyncio.gather(*asking):
            lease.release()
        told.append(_text(DeploymentGauges(reconciler)))
        for generation in generations.values():
            await generation.retire(drain_s=0)

    in_virtual_time(work)
    assert [_value(text, 'sbproxy_model_host_load_queue_depth{model="tiny"}') for text in told] == [2, 0]
    assert [_value(text, "sbproxy_model_host_resident_models") for text in told] == [0, 2]
    assert _value(told[1], 'sbproxy_model_host_deployment_state{deployment="a",engine="llama_cpp",state="ready"}') == 1


# Every family is written by something that runs

SOURCE = Path(__file__).resolve().parents[3] / "sbctl"
COUNTED_IN = ("runtime/metrics.py", "runtime/weight_metrics.py")


@cache
def _others() -> frozenset[str]:
    """Attributes that modules beside those that count use."""
    own = {Path(one).name for one in COUNTED_IN}
    texts = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py") if path.name not in own)
    return frozenset(re.findall(r"\.(\w+)", "\n".join(text for text in texts if "metrics" in text or "_meter" in text)))


def _calls(tree: ast.AST) -> set[str]:
    """Names of attributes that are used, called or handed over."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("file", COUNTED_IN)
def test_every_counter_has_a_writer_that_production_code_uses(file: str) -> None:
    """A family that nobody writes promises a dashboard what never comes."""
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    families: dict[str, bool] = {}
    for klass in classes:
        methods = {node.name: node for node in klass.body if isinstance(node, ast.FunctionDef)}
        made = {
            target.attr
            for node in ast.walk(methods.get("__init__", klass))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            if isinstance(node.value.func, ast.Name) and node.value.func.id in ("Counter", "Histogram")
            for target in node.targets
            if isinstance(target, ast.Attribute)
        }
        reached = _reached(methods, _others())
        families |= {
            f"{klass.name}.{family}": any(family in _calls(methods[name]) for name in reached) for family in made
        }
    assert families
    assert [family for family, written in families.items() if not written] == []


def _reached(methods: Mapping[str, ast.FunctionDef], others: Collection[str]) -> set[str]:
    """Methods that other modules use, and what these use of the same class."""
    found = {name for name in methods if name in others and not name.startswith("_")}
    while more := {name for one in found for name in _calls(methods[one]) if name in methods} - found:
        found |= more
    return found
