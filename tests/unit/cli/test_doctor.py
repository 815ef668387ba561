from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import ExitCode
from sbctl.base.limits import GIB
from sbctl.catalog.loader import builtin_catalog
from sbctl.cli.doctor import (
    Report,
    budget_check,
    engine_checks,
    host_checks,
    with_local_facts,
)
from sbctl.cli.fitness import budget_checks, device_checks, need_checks
from sbctl.cli.machine import machine_report
from sbctl.cli.servable import catalog_check, local_serving, servable_models
from sbctl.config.compiled import CompiledHost
from sbctl.config.load import load
from sbctl.node.devices import NvidiaDevices
from sbctl.node.snapshot import ArtifactState, DiskState, HostFacts, NodePathsState, NodeSnapshot, PythonFact
from sbctl.views.host_views import Check

GPUS = NvidiaDevices("580.65.06", "13.0", ({"index": 0, "name": "NVIDIA H200", "memory_total_bytes": 150754820096},))
GOOD, BAD = Check("python", "pass", "3.11"), Check("disk", "fail", "1 MiB free", "free some")


def snapshot(*, memory_gib: int = 16, disk_gib: int = 50, **facts: Any) -> NodeSnapshot:
    host = HostFacts(
        os_id="debian",
        arch="x86_64",
        libc="glibc-2.36",
        cpu_count=4,
        memory_total_bytes=memory_gib * GIB,
        memory_available_bytes=memory_gib * GIB,
        pythons=(PythonFact(path="/usr/bin/python3.11", version="3.11.2"),),
        **facts,
    )
    paths = NodePathsState(etc="/e", state="/s", cache="/c", opt="/o", staging="/s/staging")
    return NodeSnapshot(bootstrapped=False, host=host, paths=paths, disk=DiskState(cache_free_bytes=disk_gib * GIB))


def host(tmp_path: Path, *, model: str = "qwen3-8b", engines: str = "{}", cache: str = "{}") -> CompiledHost:
    file = tmp_path / "sb.yml"
    file.write_text(
        f"proxy: {{model_host: {{engines: {engines}, cache: {cache}, deployments: {{chat: {{model: {model}}}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}\n"
    )
    return load(file, environ={}, keyed=None).hosts["local"]


@pytest.mark.parametrize(
    ("memory_gib", "disk_gib", "failed"),
    [(32, 50, set()), (4, 50, {"fit chat"}), (32, 2, {"disk for weights"}), (4, 2, {"fit chat", "disk for weights"})],
)
def test_a_deployment_needs_memory_and_disk(tmp_path: Path, memory_gib: int, disk_gib: int, failed: set[str]) -> None:
    checks = list(need_checks(host(tmp_path), snapshot(memory_gib=memory_gib, disk_gib=disk_gib)))
    assert {check.name for check in checks if check.verdict == "fail"} == failed
    assert all(check.next_step for check in checks if check.verdict == "fail")


def test_a_program_that_is_named_and_is_not_there_is_a_blocker_with_a_remedy(tmp_path: Path) -> None:
    engines = "{llama_cpp: {launch: binary, path: /nowhere/llama-server}}"
    (check,) = engine_checks(host(tmp_path, engines=engines), snapshot(), {})
    assert (check.verdict, check.detail) == ("fail", "/nowhere/llama-server is not an executable file")
    assert check.next_step
    assert list(engine_checks(host(tmp_path), snapshot(), {})) == [], "the wheel is installed by apply"


def test_each_build_that_deployments_ask_for_is_looked_for(tmp_path: Path) -> None:
    engines = "{llama_cpp: {launch: binary, version: b9905}}"
    asked = host(tmp_path, engines=engines)
    chat = asked.deployments["chat"]
    other = replace(chat, engine_policy=chat.engine_policy.model_copy(update={"version": "b1"}))
    both = replace(asked, deployments={"chat": chat, "same": chat, "other": other})
    found = list(engine_checks(both, snapshot(), {}))
    assert len(found) == 2
    assert found[1].verdict == "fail"
    assert found[1].next_step


def test_nothing_is_said_of_engines_where_no_model_runs(tmp_path: Path) -> None:
    worker = host(tmp_path)
    authority = replace(worker, roles=frozenset({"authority"}))
    said = {
        name: {check.name for check in host_checks(name, snapshot(), one)}
        for name, one in (("w", worker), ("a", authority))
    }
    assert said["w"] - said["a"] == {"llama.cpp"}


def test_a_budget_beyond_the_disk_is_told(tmp_path: Path) -> None:
    assert budget_check(host(tmp_path), snapshot()) == {}
    told = budget_check(host(tmp_path, cache="{budget_gib: 60}"), snapshot(disk_gib=50))
    assert told == {"local": {"budget_gib": 60.0, "free_gib": 50.0, "sufficient": False}}


@pytest.mark.parametrize(
    ("budget_gib", "held_gib", "verdict", "words"),
    [
        (60, 0, "warn", "room for 50.0 GiB"),
        (60, 20, "pass", "20.0 GiB of it taken"),
        (4, 0, "warn", "the deployments need 4.7 GiB"),
    ],
)
def test_a_budget_is_held_against_the_deployments_and_against_disk_and_cache_together(
    tmp_path: Path, budget_gib: int, held_gib: int, verdict: str, words: str
) -> None:
    there = (ArtifactState(artifact="a" * 64, state="ready", size_bytes=held_gib * GIB),)
    told = snapshot(disk_gib=50).model_copy(update={"artifacts": there})
    asked = host(tmp_path, cache=f"{{budget_gib: {budget_gib}}}")
    (check,) = budget_checks(asked, told)
    assert (check.verdict, words in check.detail) == (verdict, True)
    assert bool(check.next_step) == (verdict == "warn")
    assert budget_check(asked, told)["local"]["sufficient"] is ("room" not in check.detail)


def test_this_machine_s_devices_and_programs_are_seen_before_anything_of_ours_runs(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho 'version: 4711 (abcdef)'\n")
    program.chmod(0o755)
    told = with_local_facts(snapshot(), GPUS, {"PATH": str(tmp_path)})
    assert [gpu["name"] for gpu in told.host.gpus] == ["NVIDIA H200"]
    assert [(engine.launch, engine.version, engine.path) for engine in told.engines] == [
        ("binary", "b4711", str(program))
    ]
    names = {check.name: check for check in (*host_checks("local", told), *device_checks("local", told.host))}
    assert "NVIDIA H200" in names["gpu"].detail
    assert names["gpu driver"].detail == "NVIDIA 580.65.06, CUDA 13.0"
    assert str(program) in names["llama.cpp"].detail


def test_what_fits_depends_on_the_memory_and_every_other_model_has_its_reason() -> None:
    models = {one.model: one for one in servable_models(builtin_catalog(), 7 * GIB)}
    assert models["qwen3-8b"].variant == "q4_k_m"
    assert models["qwen3-32b"].variant is None
    assert "20.0 GiB" in str(models["qwen3-32b"].reason)
    assert all((one.variant is None) == (one.reason is not None) for one in models.values())
    assert "qwen3-8b:q4_k_m" in catalog_check("local", models.values()).detail
    assert catalog_check("local", servable_models(builtin_catalog(), 1)).verdict == "fail"


def test_the_verdict_names_blockers_and_what_to_do_next() -> None:
    models = tuple(servable_models(builtin_catalog(), 7 * GIB))
    assert local_serving([GOOD], models) == {
        "ready": True,
        "blockers": [],
        "recommendation": "sbctl run smollm2-135m-instruct",
    }
    blocked = local_serving([GOOD, BAD], models)
    assert (blocked["ready"], blocked["blockers"], blocked["recommendation"]) == (
        False,
        ["disk: 1 MiB free"],
        "free some",
    )


@pytest.mark.parametrize(
    ("verdict", "strict", "code"),
    [
        ("pass", True, ExitCode.DONE),
        ("skip", True, ExitCode.DONE),
        ("warn", False, ExitCode.DONE),
        ("warn", True, ExitCode.REFUSED),
        ("fail", False, ExitCode.REFUSED),
    ],
)
def test_blockers_are_4_and_with_strict_so_are_warnings(verdict: Any, strict: bool, code: ExitCode) -> None:
    report = Report((Check("x", verdict, ""),))
    assert report.exit_code(strict=strict) is code
    assert report.body(strict=strict)["ready"] is (code is ExitCode.DONE)


def test_the_machine_is_told_without_credentials(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "HF_ENDPOINT": "https://user:pass@hub.example/?key=1", "HF_TOKEN": "hf_secret"}
    environ["OLLAMA_MODELS"] = str(tmp_path / "ollama")
    (tmp_path / "ollama" / "blobs").mkdir(parents=True)
    (tmp_path / "ollama" / "blobs" / "sha256-0").write_bytes(b"12345")
    told = machine_report(snapshot(), GPUS, tmp_path, environ)
    assert told["host"] == {"os": "debian", "arch": "x86_64", "cpu_count": 4, "total_ram_bytes": 16 * GIB}
    assert told["huggingface"] == {"endpoint": "https://hub.example/", "token_present": True, "reachable": None}
    assert told["model_cache_exists"] is True
    theirs = {"source": "ollama", "path": str(tmp_path / "ollama"), "files": 1, "total_bytes": 5}
    assert theirs in told["foreign_model_caches"]
    assert not [secret for secret in ("hf_secret", "pass", "key=1") if secret in str(told)]
    llama = told["engines"][0]
    ways = {way["method"]: way["available"] for way in llama["acquisition"]}
    ways.pop("cuda_source")
    assert (llama["engine"], ways) == ("llama_cpp", {"wheel": True, "binary": False, "release": True})
