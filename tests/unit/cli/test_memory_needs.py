"""What hosts' deployments need and whether it is there: how it is known, what is short, and what would fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from providers.registry import PROVIDERS
from sbctl.base.errors import ConfigError
from sbctl.base.limits import GIB
from sbctl.catalog.loader import builtin_catalog
from sbctl.catalog.resolve import resolve
from sbctl.cli.memory_needs import model_fit, need_body, needs_of
from sbctl.cli.memory_plan import with_memory
from sbctl.cli.planning import desired_of
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.engines.memory import ReplicaLaunch, memory_key, smaller_launches
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from sbctl.node.snapshot import (
    ArtifactState,
    DeploymentState,
    HostFacts,
    MemoryRecord,
    NodeSnapshot,
    ReplicaState,
    RuntimeState,
)
from sbctl.plan.build import build_plan
from sbctl.plan.inputs import PlanInputs, recorded_from
from sbctl.plan.policy import plan_exit_code


def config(tmp_path: Path, *deployments: str, engines: str = "{}", top: str = "") -> CompiledConfig:
    listed = ", ".join(f"d{index}: {{{each}}}" for index, each in enumerate(deployments))
    providers = ", ".join(
        f"{{name: p{index}, provider_type: managed_model, deployment: d{index}, models: [m{index}]}}"
        for index in range(len(deployments))
    )
    file = tmp_path / "sb.yml"
    file.write_text(
        f"proxy: {{model_host: {{engines: {engines}, {top} deployments: {{{listed}}}}}}}\n"
        f"origins: {{localhost: {{action: {{type: ai_proxy, providers: [{providers}]}}}}}}\n"
    )
    return load(file, environ={}, keyed=None)


def told(memory_gib: float = 64, **given: Any) -> NodeSnapshot:
    facts = {
        "memory_total_bytes": int(memory_gib * GIB),
        "memory_available_bytes": int(memory_gib * GIB),
        **given.pop("facts", {}),
    }
    return NodeSnapshot(bootstrapped=False, host=HostFacts(**facts), **given)


@pytest.mark.parametrize(
    ("written", "gib", "source"),
    [
        ("model: qwen3-8b", 10.78, "estimate"),
        ("model: qwen3-8b, max_context: 8192", 6.08, "estimate"),
        ("model: qwen3-8b, max_context: 8192, kv_quant: int8", 5.56, "estimate"),
        ("model: qwen3-8b, max_context: 8192, kv_quant: int4", 5.28, "estimate"),
        ("model: qwen3-8b, max_context: 8192, max_concurrency: 4", 9.46, "estimate"),
        ("model: qwen3-30b-a3b", 21.3, "estimate"),
        ("model: gpt-oss-20b", 14.59, "estimate"),
        ("model: qwen3-8b, memory: 7.5 GiB", 7.5, "declared"),
    ],
)
def test_context_type_and_slots_decide_with_the_weights(tmp_path: Path, written: str, gib: float, source: str) -> None:
    (need,) = needs_of(config(tmp_path, written).hosts["local"], told()).deployments
    assert need.figure.source == source
    assert need.figure.total_bytes / GIB == pytest.approx(gib, abs=0.15)
    margin = 1.0 if source == "declared" else 1.1
    assert need.host_bytes == pytest.approx(need.figure.host_bytes * margin, abs=2)
    assert need.short_bytes == 0


def test_what_is_short_is_said_with_what_would_fit(tmp_path: Path) -> None:
    needs = needs_of(config(tmp_path, "model: qwen3-8b, max_concurrency: 2").hosts["local"], told(16))
    (need,) = needs.deployments
    assert need.short_bytes == needs.short_bytes == need.host_bytes - int(16 * GIB * 0.7)
    assert "short" in need.said
    assert "weights 4.7 GiB, context 11.3 GiB" in need.said
    assert need.remedy().startswith("set max_context: 10240, or choose another variant, model or host")


def test_nothing_small_enough_names_no_setting(tmp_path: Path) -> None:
    (need,) = needs_of(config(tmp_path, "model: qwen3-32b").hosts["local"], told(16)).deployments
    assert need.short_bytes
    assert "max_context" not in need.remedy()
    assert "memory:" in need.remedy()


def test_a_figure_of_the_operator_is_held_against_the_host_too(tmp_path: Path) -> None:
    (need,) = needs_of(config(tmp_path, "model: qwen3-8b, memory: 90 GiB").hosts["local"], told()).deployments
    assert need.short_bytes
    assert need.remedy().startswith("correct memory, or choose")


def test_each_fits_and_both_together_do_not(tmp_path: Path) -> None:
    two = config(
        tmp_path, "model: qwen3-8b, max_context: 4096, warm: true", "model: qwen3-8b, max_context: 2048, warm: true"
    )
    needs = needs_of(two.hosts["local"], told(12))
    assert [need.short_bytes for need in needs.deployments] == [0, 0]
    assert needs.short_bytes == needs.host_bytes - needs.usable_host_bytes > 0
    assert "2 warm deployments at once need" in needs.said


def test_what_is_loaded_on_demand_takes_turns_and_each_must_fit_beside_what_is_warm(tmp_path: Path) -> None:
    cold = "model: qwen3-8b, max_context: 2048"
    two = needs_of(config(tmp_path, cold, cold).hosts["local"], told(12))
    assert (two.short_bytes, [need.short_bytes for need in two.deployments]) == (0, [0, 0])
    beside = needs_of(config(tmp_path, f"{cold}, warm: true", cold).hosts["local"], told(12))
    warm, other = beside.deployments
    assert (beside.short_bytes, warm.short_bytes) == (other.short_bytes, 0)
    assert other.short_bytes == other.host_bytes - (warm.usable_host_bytes - warm.host_bytes) > 0
    assert "may be used here beside what is warm" in other.said


def test_replicas_count_each(tmp_path: Path) -> None:
    (one,) = needs_of(config(tmp_path, "model: qwen3-8b").hosts["local"], told()).deployments
    (three,) = needs_of(
        config(tmp_path, "model: qwen3-8b, variant: q4_k_m, replicas: 3").hosts["local"], told()
    ).deployments
    assert three.host_bytes == 3 * one.host_bytes
    assert three.figure.total_bytes == one.figure.total_bytes


def test_a_control_group_counts_as_the_machine(tmp_path: Path) -> None:
    host = config(tmp_path, "model: qwen3-8b").hosts["local"]
    assert needs_of(host, told(64)).short_bytes == 0
    assert needs_of(host, told(64, facts={"memory_limit_bytes": 8 * GIB})).short_bytes > 0


def test_the_header_in_the_cache_is_believed_before_the_catalog(tmp_path: Path) -> None:
    host = config(tmp_path, "model: qwen3-8b, max_context: 4096").hosts["local"]
    facts, shape = host.deployments["d0"].artifact, host.deployments["d0"].shape
    assert shape is not None
    wider = shape.model_copy(update={"layers": tuple(one.model_copy(update={"key_row": 4096}) for one in shape.layers)})
    plain = needs_of(host, told())
    cached = needs_of(host, told(artifacts=(ArtifactState(artifact=facts.artifact, state="ready", shape=wider),)))
    assert cached.host_bytes > plain.host_bytes


def test_what_was_seen_is_believed_before_an_estimate_and_only_for_the_very_launch(tmp_path: Path) -> None:
    host = config(tmp_path, "model: qwen3-8b, max_context: 4096").hosts["local"]
    artifact = host.deployments["d0"].artifact.artifact
    launch = ReplicaLaunch(4096)
    key = memory_key(artifact, "llama_cpp", LLAMA_CPP_WHEEL_DEFAULT, launch)
    seen = (MemoryRecord(key=key, observed_bytes=5 * GIB),)
    (need,) = needs_of(host, told(memory=seen)).deployments
    assert (need.figure.source, need.figure.certainty, need.figure.total_bytes) == ("observed", "exact", 5 * GIB)
    other = config(tmp_path, "model: qwen3-8b, max_context: 8192").hosts["local"]
    assert needs_of(other, told(memory=seen)).deployments[0].figure.source == "estimate"
    for different in (
        memory_key(artifact, "llama_cpp", "1", launch),
        memory_key("0" * 64, "llama_cpp", LLAMA_CPP_WHEEL_DEFAULT, launch),
        memory_key(artifact, "llama_cpp", LLAMA_CPP_WHEEL_DEFAULT, launch, device="H200"),
        memory_key(artifact, "llama_cpp", LLAMA_CPP_WHEEL_DEFAULT, replace(launch, kv_quant="int8")),
    ):
        assert different != key


def test_without_a_header_the_catalogs_figure_stands_and_says_so(tmp_path: Path) -> None:
    host = config(tmp_path, "model: qwen3-8b").hosts["local"]
    bare = replace(host, deployments={name: replace(one, shape=None) for name, one in host.deployments.items()})
    (need,) = needs_of(bare, told()).deployments
    assert (need.figure.source, need.figure.certainty) == ("catalog", "unknown")
    assert need.host_bytes == host.deployments["d0"].artifact.min_memory_bytes
    assert "the catalog's figure" in need.said


def test_an_engine_on_a_device_needs_the_device_and_a_little_of_the_host(tmp_path: Path) -> None:
    engines = "{llama_cpp: {launch: binary, acceleration: cuda}}"
    gpu = {"vendor": "nvidia", "name": "L4", "memory_total_bytes": 24 * GIB}
    host = config(tmp_path, "model: qwen3-8b", engines=engines).hosts["local"]
    (need,) = needs_of(host, told(8, facts={"gpus": (gpu,)})).deployments
    assert need.short_bytes == 0
    assert need.device_bytes > 10 * GIB
    small = {**gpu, "memory_total_bytes": 8 * GIB}
    (short,) = needs_of(host, told(8, facts={"gpus": (small,)})).deployments
    assert (
        "11.9 GiB on one device, where 7.2 GiB may be used; 5.6 GiB of memory may be used here, 4.7 GiB short"
        in short.said
    )
    assert short.remedy().startswith("set max_context:")


_CUDA = "{llama_cpp: {launch: binary, acceleration: cuda}}"


def _gpus(*sizes_gib: int, **given: Any) -> dict[str, Any]:
    listed = (
        {"number": number, "uuid": f"GPU-{number}", "memory_total_bytes": size * GIB}
        for number, size in enumerate(sizes_gib)
    )
    return {"gpus": tuple({**gpu, **given} for gpu in listed)}


@pytest.mark.parametrize(
    ("written", "sizes", "replicas", "short"),
    [
        pytest.param("model: qwen3-8b", (24, 24), ((0,),), False, id="one is enough"),
        pytest.param("model: qwen3-8b, tensor_parallel: 2", (24, 24), ((0, 1),), False, id="as many as it says"),
        pytest.param("model: qwen3-8b", (8, 8), ((0, 1),), False, id="the fewest that hold it"),
        pytest.param("model: qwen3-8b", (8, 10), ((0, 1),), False, id="last, all of them"),
        pytest.param("model: qwen3-8b, tensor_parallel: 1", (8, 8), (), True, id="both together have it, each has not"),
        pytest.param("model: qwen3-8b, tensor_parallel: 2", (24,), (), True, id="too few"),
        pytest.param("model: qwen3-8b, tensor_parallel: 2", (24, 16), (), True, id="not of one size"),
        pytest.param("model: qwen3-8b, tensor_parallel: 2", (), (), True, id="none at all"),
        pytest.param("model: qwen3-8b, variant: q4_k_m, replicas: 2", (16, 16), ((0,), (1,)), False, id="one each"),
        pytest.param("model: qwen3-8b, variant: q4_k_m, replicas: 3", (16, 16), ((0,), (1,)), True, id="one too many"),
    ],
)
def test_each_device_must_hold_what_the_engine_puts_there(
    tmp_path: Path, written: str, sizes: tuple[int, ...], replicas: tuple[tuple[int, ...], ...], short: bool
) -> None:
    host = config(tmp_path, written, engines=_CUDA).hosts["local"]
    (need,) = needs_of(host, told(32, facts=_gpus(*sizes))).deployments
    assert need.layout is not None
    assert need.layout.replicas == replicas
    assert bool(need.short_bytes) is short is bool(need.layout.unplaced)
    assert need_body(need)["devices"] == [list(numbers) for numbers in replicas]
    if short:
        assert "short" in need.said
        assert need.remedy()


def test_whole_layers_make_the_share_of_each_device_more_than_its_part(tmp_path: Path) -> None:
    asked = "model: qwen3-8b, tensor_parallel: "
    one, two = (
        needs_of(config(tmp_path, f"{asked}{count}", engines=_CUDA).hosts["local"], told(32, facts=_gpus(24, 24)))
        .deployments[0]
        .layout
        for count in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert one.share_bytes / 2 < two.share_bytes < one.share_bytes


def test_a_device_that_engines_do_not_get_holds_nothing(tmp_path: Path) -> None:
    host = config(tmp_path, "model: qwen3-8b", engines=_CUDA).hosts["local"]
    (need,) = needs_of(host, told(64, facts=_gpus(24, withheld="needs_reset"))).deployments
    assert need.short_bytes == need.device_bytes > 0
    (processor,) = needs_of(host, told(64)).deployments
    assert (processor.layout, processor.short_bytes) == (None, 0)


def test_what_is_warm_on_devices_must_fit_at_once_and_the_largest_lies_first(tmp_path: Path) -> None:
    small, large = "model: qwen3-8b, max_context: 4096, warm: true", "model: qwen3-8b, warm: true"
    fits = needs_of(config(tmp_path, small, small, large, engines=_CUDA).hosts["local"], told(64, facts=_gpus(16, 16)))
    assert [need.layout.replicas for need in fits.deployments if need.layout] == [((1,),), ((1,),), ((0,),)]
    assert fits.short_bytes == 0
    over = needs_of(config(tmp_path, large, large, small, engines=_CUDA).hosts["local"], told(64, facts=_gpus(16, 16)))
    assert [need.short_bytes for need in over.deployments] == [0, 0, 0]
    assert over.short_bytes == over.short_on_devices > 0
    assert "short" in over.said


def test_what_is_loaded_on_demand_lies_beside_what_is_warm(tmp_path: Path) -> None:
    cold, warm = "model: qwen3-8b", "model: qwen3-8b, warm: true"
    needs = needs_of(config(tmp_path, warm, cold, cold, engines=_CUDA).hosts["local"], told(64, facts=_gpus(16, 16)))
    assert [need.layout.replicas for need in needs.deployments if need.layout] == [((0,),), ((1,),), ((1,),)]
    (_, tight) = needs_of(
        config(tmp_path, warm, cold, engines=_CUDA).hosts["local"], told(64, facts=_gpus(20))
    ).deployments
    assert tight.short_bytes
    assert tight.remedy().startswith("set max_context: 2560, or")
    assert "beside what is warm" in tight.said


def test_a_plan_names_the_devices_and_refuses_what_no_one_of_them_holds(tmp_path: Path) -> None:
    made = config(tmp_path, "model: qwen3-8b, tensor_parallel: 2", engines=_CUDA)
    fits = _plan(made, told(32, facts=_gpus(24, 24)))
    (row,) = (change for change in fits.changes if change.address.kind == "deployment")
    assert "on each of devices 0 and 1; 32.0 GiB free on local" in row.notes[0]
    (sentence,) = _plan(made, told(32, facts=_gpus(24))).unfit
    assert "on each of 2 devices of one size, and there are not so many" in sentence
    assert "set a tensor_parallel that the host has devices of one size for" in sentence


def test_a_batch_of_a_whole_text_is_counted_for_vectors() -> None:
    chat, vectors = ReplicaLaunch(8192).shape(), ReplicaLaunch(8192, mode="embedding").shape()
    assert (chat.ubatch, vectors.ubatch) == (512, 8192)
    assert ReplicaLaunch(8192, extra_args=("--ubatch-size=128",)).shape().ubatch == 128
    assert ReplicaLaunch(8192, launch="binary").shape().logit_rows == 512


def test_smaller_launches_are_smaller() -> None:
    words = [said for said, _launch in smaller_launches(ReplicaLaunch(4096, slots=4))]
    assert words[:2] == ["kv_quant: int8", "max_context: 2048"]
    assert "max_concurrency: 1" in words


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("model: qwen3-8b, max_context: 40961", "config.out_of_range"),
        ("model: qwen3-8b, max_context: 0", None),
        ("model: qwen3-8b, memory: 6", None),
        ("model: qwen3-8b, memory: 0 GiB", None),
        ("model: qwen3-8b, memory: 6 GB", None),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(tmp_path: Path, written: str, code: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, written)
    (finding,) = caught.value.diagnostics
    assert code is None or finding.code == code
    assert finding.span is not None


def test_max_context_is_what_the_runtime_is_told(tmp_path: Path) -> None:
    made = config(tmp_path, "model: qwen3-8b, max_context: 2048, memory: 900 MiB")
    (member,) = (one for one in desired_of(made) if one.address.kind == "deployment")
    assert member.spec["context_length"] == 2048
    assert "memory" not in member.spec


def _serving(**given: Any) -> NodeSnapshot:
    """A host whose runtime is up."""
    return told(12, **given).model_copy(
        update={"bootstrapped": True, "runtime": RuntimeState(running=True, healthy=True)}
    )


def _plan(made: CompiledConfig, snapshot: NodeSnapshot, *, before: CompiledConfig | None = None) -> Any:
    snapshots = {"local": snapshot}
    base = () if before is None else desired_of(replace(before, lineage="l", signers={"a": "b"}))
    inputs = PlanInputs(
        mode="apply",
        desired=desired_of(replace(made, lineage="l", signers={"a": "b"})),
        recorded=recorded_from(base),
        snapshots=snapshots,
        hosts={name: host.connection for name, host in made.hosts.items()},
        lineage=None,
        serial=0,
        config_digest="",
        catalog_digest="",
        now=datetime(2026, 11, 30, tzinfo=UTC),
    )
    return with_memory(build_plan(inputs, PROVIDERS), made, snapshots)


def test_a_plan_says_what_each_deployment_needs_and_exits_4_where_it_cannot_be(tmp_path: Path) -> None:
    made = config(tmp_path, "model: qwen3-8b")
    fits = _plan(made, told(32))
    (row,) = (change for change in fits.changes if change.address.kind == "deployment")
    assert row.memory_bytes == needs_of(made.hosts["local"], told(32)).deployments[0].figure.total_bytes
    assert row.notes[0].startswith("memory: 10.7 GiB a replica, at most: weights 4.7 GiB, context 5.6 GiB")
    assert not fits.unfit
    assert plan_exit_code(fits) == 2
    short = _plan(made, told(12))
    assert plan_exit_code(short) == 4
    (sentence,) = short.unfit
    assert sentence.startswith("local cannot hold d0: qwen3-8b:q4_k_m needs")
    assert "set kv_quant: int8" in sentence or "set max_context" in sentence


def test_a_plan_says_when_old_and_new_together_are_too_much(tmp_path: Path) -> None:
    before = config(tmp_path, "model: qwen3-8b, max_context: 8192")
    after = config(tmp_path, "model: qwen3-8b, max_context: 4096")
    for held, told_so in ((6 * GIB, True), (None, False)):
        replica = ReplicaState(state="ready", memory_bytes=held)
        snapshot = _serving(deployments=(DeploymentState(deployment="d0", state="ready", replicas=(replica,)),))
        plan = _plan(after, snapshot, before=before)
        (row,) = (change for change in plan.changes if change.address.kind == "deployment")
        assert any(said.startswith("old and new together are") for said in row.notes) is told_so
        assert not plan.unfit


def test_a_plan_names_a_host_that_cannot_hold_all_at_once(tmp_path: Path) -> None:
    two = config(
        tmp_path, "model: qwen3-8b, max_context: 4096, warm: true", "model: qwen3-8b, max_context: 2048, warm: true"
    )
    (sentence,) = _plan(two, told(12)).unfit
    assert sentence.startswith("local cannot hold all that is warm: 2 warm deployments at once need")


@pytest.mark.parametrize(
    ("model", "gib", "verdict", "source", "smaller"),
    [
        ("qwen3-8b", 64, "fits", "estimate", ""),
        ("qwen3-8b", 10, "fits-smaller", "estimate", "max_context"),
        ("qwen3-8b", 4, "too-large", "estimate", ""),
        ("qwen3-30b-a3b", 24, "too-large", "estimate", ""),
        ("qwen3-8b", None, "unknown", None, ""),
    ],
)
def test_a_list_says_what_fits_by_the_header_and_with_what_it_would(
    model: str, gib: float | None, verdict: str, source: str | None, smaller: str
) -> None:
    found = resolve(builtin_catalog(), model)
    fit = model_fit(found, None, None if gib is None else told(gib))
    assert (fit.verdict, fit.source) == (verdict, source)
    assert smaller in fit.smaller
    assert (fit.needs_bytes or 0) > found.facts.total_bytes or gib is None


def test_a_list_says_of_a_deployed_model_what_its_deployment_needs_and_without_a_header_the_catalogs_figure(
    tmp_path: Path,
) -> None:
    host = config(tmp_path, "model: qwen3-8b, max_context: 2048").hosts["local"]
    found = resolve(builtin_catalog(), "qwen3-8b")
    small, whole = model_fit(found, host, told(64)), model_fit(found, None, told(64))
    assert 0 < (small.needs_bytes or 0) < (whole.needs_bytes or 0)
    bare = replace(found, variant=found.variant.model_copy(update={"shape": None}))
    assert (fit := model_fit(bare, None, told(64))).source == "catalog"
    assert fit.needs_bytes == found.facts.min_memory_bytes
    seen = ArtifactState(
        artifact=found.facts.artifact, model="qwen3-8b", variant=found.facts.variant, state="ready",
        size_bytes=found.facts.total_bytes, shape=found.variant.shape,
    )  # fmt: skip
    assert model_fit(bare, None, told(64, artifacts=(seen,))) == whole, "the header in the cache comes first"
