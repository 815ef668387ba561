"""What engines took, remembered over daemons and told with every snapshot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.limits import MIB
from sbctl.engines.memory import ReplicaLaunch, memory_key
from sbctl.runtime import observed_memory as subject
from sbctl.runtime.observed_memory import FILE_NAME, ObservedMemory, Running, observed_memory, peak_bytes
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


async def nobody() -> list[Running]:
    return []


def observer(state: Path, monkeypatch: pytest.MonkeyPatch, peaks: dict[int, int]) -> ObservedMemory:
    monkeypatch.setattr(subject, "peak_bytes", lambda pid: peaks.get(pid))
    return ObservedMemory(state, nobody)


def test_the_most_is_remembered_and_outlives_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {7: 300 * MIB}
    seen, running = observer(tmp_path, monkeypatch, peaks), [Running(member(), "1", 7)]
    key = running[0].key
    assert key == memory_key(member().artifact.artifact, "llama_cpp", "1", ReplicaLaunch(512, slots=2))
    seen.look(running)
    assert observed_memory(tmp_path) == {key: 300 * MIB}
    peaks[7] = 200 * MIB
    seen.look(running)
    observer(tmp_path, monkeypatch, peaks).look(running)
    assert observed_memory(tmp_path) == {key: 300 * MIB}
    peaks[7] = 400 * MIB
    observer(tmp_path, monkeypatch, peaks).look(running)
    assert observed_memory(tmp_path) == {key: 400 * MIB}


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
    assert Running(member(**changed), "1", 7).key != Running(member(), "1", 7).key


@pytest.mark.parametrize("changed", [{"warm": False}, {"keep_alive_secs": 5}, {"max_queue_depth": 9}, {"replicas": 3}])
def test_how_requests_queue_is_no_matter(changed: dict[str, Any]) -> None:
    assert Running(member(**changed), "1", 7).key == Running(member(), "1", 7).key


def test_a_process_that_is_gone_and_a_disk_that_is_full_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = observer(tmp_path / "not-there", monkeypatch, {7: 300 * MIB})
    seen.look([Running(member(), "1", 7), Running(member(), "1", 8)])
    assert observed_memory(tmp_path / "not-there") == {}


def test_only_so_many_are_kept_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {number: (10 + 5 * number) * MIB for number in range(300)}
    seen = observer(tmp_path, monkeypatch, peaks)
    seen.look([Running(member(context_length=number + 1), "1", number) for number in range(300)])
    kept = observed_memory(tmp_path)
    assert len(kept) == 256
    assert list(kept.values())[-1] == peaks[299]


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


def test_the_file_is_plain_json_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observer(tmp_path, monkeypatch, {7: 300 * MIB}).look([Running(member(), "1", 7)])
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"observed": [[Running(member(), "1", 7).key, 300 * MIB]]}


def test_the_peak_is_what_the_kernel_says() -> None:
    peak = peak_bytes(os.getpid())
    assert peak is not None
    assert peak > MIB
    assert peak_bytes(1 << 29) is None
