"""What a bundle asks for is what placement counts, by the same figures as a plan."""

from __future__ import annotations

from pathlib import Path

from sbctl.artifacts.formats.architectures import read_shape
from sbctl.base.limits import GIB
from sbctl.engines.memory import ReplicaLaunch, figure_of, planned_bytes
from sbctl.placement.demands import DEGREES, demand_of, demands_of
from sbctl.trust.bundle import EnginePolicy, member_digest
from sbctl.trust.cluster_bundle import generation_digest, replica_of
from tests.simulators.cluster_bundles import deployment, facts, option
from tests.simulators.gguf_files import MODELS

BOUNDS = {"safety_margin": 0.1, "handoff_timeout_ms": 60_000, "drain_timeout_ms": 30_000}
CUDA = EnginePolicy(engine="llama_cpp", launch="binary", version="b9905", acceleration="cuda")


def test_a_deployment_asks_for_what_it_says() -> None:
    one = deployment(
        replicas=3, required_labels={"zone": "a"}, spread_by=("rack",), rollout="recreate", warm=False, pull="manual"
    )
    demand = demand_of("chat", one, **BOUNDS)
    assert (demand.deployment, demand.replicas, demand.model) == ("chat", 3, "m")
    assert (demand.required_labels, demand.spread_by) == ({"zone": "a"}, ("rack",))
    assert (demand.rollout, demand.warm, demand.pull) == ("recreate", False, "manual")
    assert demand.digest == generation_digest(one)
    way = demand.ways[0]
    assert (way.variant, way.engine_version, way.launch, way.accelerator, way.devices) == (
        "q4_k_m",
        "1",
        "wheel",
        "cpu",
        0,
    )
    assert way.member_digest == member_digest(replica_of(one, one.options[0]))
    assert way.wanted_artifacts == (facts().artifact,)


def test_how_many_and_where_makes_no_new_generation() -> None:
    before = demand_of("chat", deployment(), **BOUNDS)
    after = demand_of("chat", deployment(replicas=5, spread_by=("zone",), required_labels={"a": "b"}), **BOUNDS)
    assert before.digest == after.digest
    assert before.digest != demand_of("chat", deployment(max_concurrency=9), **BOUNDS).digest


def test_variants_are_ways_in_their_order_and_a_program_of_the_users_has_no_version() -> None:
    own = EnginePolicy(engine="llama_cpp", launch="binary", path="/usr/bin/llama-server")
    demand = demand_of("chat", deployment(alternatives=(option("q8_0", engine=own),)), **BOUNDS)
    assert [(way.variant, way.engine_version) for way in demand.ways] == [("q4_k_m", "1"), ("q8_0", None)]


def test_a_model_on_devices_takes_the_fewest_that_hold_it() -> None:
    demand = demand_of("chat", deployment(engine=CUDA, memory_bytes=40 * GIB), **BOUNDS)
    assert [(way.devices, way.device_bytes) for way in demand.ways] == [(n, 40 * GIB // n) for n in DEGREES]
    fixed = demand_of("chat", deployment(engine=CUDA, memory_bytes=40 * GIB, tensor_parallel=3), **BOUNDS)
    assert [way.devices for way in fixed.ways] == [3]


def test_the_room_is_the_figure_of_the_model_host_with_its_margin(tmp_path: Path) -> None:
    shape = read_shape([MODELS["qwen3-0.6b"].write(tmp_path / "m.gguf")])
    way = demand_of("chat", deployment(shape=shape), **BOUNDS).ways[0]
    figure = figure_of(ReplicaLaunch(512, slots=2), shape=shape, catalog_bytes=0)
    assert (way.host_bytes, way.device_bytes) == planned_bytes(figure, adapter_bytes=0, safety_margin=0.1)
    assert way.host_bytes > 0


def test_all_deployments_of_a_bundle_are_asked_for_by_name() -> None:
    found = demands_of({"b": deployment(), "a": deployment()}, **BOUNDS)
    assert [demand.deployment for demand in found] == ["a", "b"]
