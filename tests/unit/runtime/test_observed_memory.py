"""What engines took, remembered over daemons and told with every snapshot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.limits import MIB
from sbctl.engines.memory import ReplicaLaunch, memory_key
from sbctl.runtime.engine_host import RunningEngine
from sbctl.runtime.observed_memory import FILE_NAME, ObservedMemory, Running, observed_memory
from sbctl.runtime.processes import ProcessMemory
from sbctl.trust.bundle import DeploymentMember, EnginePolicy


def member(**changed: Any) -> DeploymentMember:
    files = (ArtifactFile(path="w.gguf", sha256="a" * 64, size_bytes=9),)
    facts = ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source="file:/w",
        model="m",
        variant="v",
        context_length=512,
    )
    given: dict[str, Any] = {
        "model": "m", "variant": "v", "artifact": facts, "engine": EnginePolicy(engine="llama_cpp", launch="wheel", version="1"),
        "replicas": 1, "pull": "on_boot", "warm": True, "cold_start": "wait", "max_concurrency": 2, "max_queue_depth": 1,
        "queue_timeout_ms": 1000, "rollout": "rolling", "context_length": 512,
    }  # fmt: skip
    return DeploymentMember(**{**given, **changed})


@dataclass(eq=False)
class Engine:
    """As far as its memory is asked for."""

    peak: int | None

    async def memory(self) -> ProcessMemory | None:
        return None if self.peak is None else ProcessMemory(0, self.peak)


def run(peak: int | None = None, **changed: Any) -> Running:
    return Running(member(**changed), "1", cast("RunningEngine", Engine(peak)))


async def nobody() -> list[Running]:
    return []


async def look(state: Path, *running: Running) -> None:
    await ObservedMemory(state, nobody).look(running)


async def test_the_most_is_remembered_and_outlives_the_daemon(tmp_path: Path) -> None:
    key = run().key
    assert key == memory_key(member().artifact.artifact, "llama_cpp", "1", ReplicaLaunch(512, slots=2))
    for seen, known in ((300, 300), (200, 300), (400, 400)):
        await look(tmp_path, run(seen * MIB))
        assert observed_memory(tmp_path) == {key: known * MIB}


@pytest.mark.parametrize(
    "changed",
    [
        {"context_length": 1024},
        {"max_concurrency": 3},
        {"kv_quant": "int8"},
        {"extra_args": ("--ubatch-size=64",)},
        {"engine": EnginePolicy(engine="llama_cpp", launch="binary", version="1")},
        {"mode": "embedding"},
    ],
)
def test_another_launch_is_another_figure(changed: dict[str, Any]) -> None:
    assert run(**changed).key != run().key


@pytest.mark.parametrize("changed", [{"warm": False}, {"keep_alive_secs": 5}, {"max_queue_depth": 9}, {"replicas": 3}])
def test_how_requests_queue_is_no_matter(changed: dict[str, Any]) -> None:
    assert run(**changed).key == run().key


async def test_a_process_that_is_gone_and_a_disk_that_is_full_cost_nothing(tmp_path: Path) -> None:
    await look(tmp_path / "not-there", run(300 * MIB), run(None))
    assert observed_memory(tmp_path / "not-there") == {}


async def test_only_so_many_are_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    await look(tmp_path, *(run((10 + 5 * number) * MIB, context_length=number + 1) for number in range(300)))
    kept = observed_memory(tmp_path)
    assert len(kept) == 256
    assert list(kept.values())[-1] == (10 + 5 * 299) * MIB


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"observed": 1}',
        b'{"observed": [["x", 1], [1, 2], ["' + b"a" * 64 + b'", -1], ["' + b"b" * 64 + b'", true]]}',
    ],
)
def test_a_damaged_file_is_no_memory(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert observed_memory(tmp_path) == {}


async def test_the_file_is_plain_json_in_order(tmp_path: Path) -> None:
    await look(tmp_path, run(300 * MIB))
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"observed": [[run().key, 300 * MIB]]}


async def test_what_an_engine_has_now_is_known_whatever_computes_it(tmp_path: Path) -> None:
    observed = ObservedMemory(tmp_path, nobody)
    on_device = Running(member(), None, cast("RunningEngine", Engine(300 * MIB)))
    assert observed.seen(on_device.engine) is None
    await observed.look([on_device])
    assert observed.seen(on_device.engine) == ProcessMemory(0, 300 * MIB)
    assert observed_memory(tmp_path) == {}, "a process that computes elsewhere does not say what a model takes"
