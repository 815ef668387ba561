"""The snapshot says what stands there, and a damaged file is a difference, never an absence."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.pull import pull
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import HostError
from sbctl.engines import detect
from sbctl.node import facts
from sbctl.node.devices import NvidiaDevices
from sbctl.node.messages import RuntimeConfig
from sbctl.runtime.nodeops import snapshot as snapshot_module
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.snapshot import take_snapshot
from tests.simulators import fake_llama_server
from tests.simulators.artifact_samples import write_sources


@pytest.fixture(autouse=True)
def _no_system_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_SYSTEM_DIRECTORIES", ())


def test_an_empty_node(context: NodeContext) -> None:
    snapshot = take_snapshot(context)
    assert snapshot.bootstrapped
    assert snapshot.marker is not None
    assert (snapshot.marker.lineage, snapshot.marker.host) == ("L", "h")
    assert snapshot.runtime.supervision == "none"
    assert (snapshot.runtime.config_sha256, snapshot.runtime.trust_digest) == (None, None)
    assert (snapshot.engines, snapshot.artifacts, snapshot.bundle, snapshot.deployments) == ((), (), None, ())
    assert snapshot.disk.cache_free_bytes


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        (NvidiaDevices("580.65", "13.0", ({"index": 0, "name": "H200"},)), ("H200", "580.65", "13.0", None)),
        (NvidiaDevices(problem="the NVIDIA driver cannot be used: mismatch"), ("on the bus", "550.1", "", "the NVIDIA driver cannot be used: mismatch")),
        (NvidiaDevices(), ("on the bus", "550.1", "", None)),
    ],
)  # fmt: skip
def test_what_the_driver_tells_of_devices_stands_over_what_files_tell(
    context: NodeContext, monkeypatch: pytest.MonkeyPatch, devices: NvidiaDevices, told: tuple[object, ...]
) -> None:
    monkeypatch.setattr(facts, "pci_gpus", lambda: [{"name": "on the bus", "vendor": "nvidia"}])
    monkeypatch.setattr(facts, "nvidia_driver", lambda: "550.1")
    monkeypatch.setattr(snapshot_module, "nvidia_devices", lambda: devices)
    host = take_snapshot(context).host
    assert (host.gpus[0]["name"], host.nvidia_driver, host.cuda, host.gpu_problem) == told


def test_a_running_runtime_is_told_from_its_control_socket(context: NodeContext, runtime: Any) -> None:
    runtime.answers["GET", "/control/v1/status"] = (
        200,
        [
            {
                "healthy": True,
                "pid": 5,
                "version": "0.1.0",
                "http_url": "http://127.0.0.1:1",
                "bundle": {"revision": 3, "content_digest": "d"},
                "deployments": [{"deployment": "chat", "state": "ready"}, {"nonsense": 1}],
            }
        ],
    )
    snapshot = take_snapshot(context)
    assert (snapshot.runtime.running, snapshot.runtime.healthy, snapshot.runtime.pid) == (True, True, 5)
    assert snapshot.bundle is not None
    assert snapshot.bundle.revision == 3
    assert [state.deployment for state in snapshot.deployments] == ["chat"]


def test_damaged_files_are_differences(context: NodeContext) -> None:
    paths = context.paths
    paths.runtime_config.write_text("{")
    paths.trust.write_text("{")
    state = take_snapshot(context).runtime
    assert state.config_sha256 == sha256_bytes(b"{")
    assert state.trust_digest == "unreadable"
    paths.runtime_config.unlink()
    paths.runtime_config.mkdir()
    assert take_snapshot(context).runtime.config_sha256 == "unreadable"


def test_a_damaged_marker_is_an_error(context: NodeContext) -> None:
    context.paths.marker.write_text("{")
    with pytest.raises(HostError) as caught:
        take_snapshot(context)
    assert caught.value.code == "host.marker_damaged"


async def test_artifacts_are_listed_where_the_configuration_says(context: NodeContext, tmp_path: Path) -> None:
    config = RuntimeConfig(lineage="L", host="h", cache_directory=str(tmp_path / "models"))
    context.paths.runtime_config.write_bytes(canonical_json(config.model_dump(mode="json")))
    cache = ArtifactCache(tmp_path / "models")
    facts = write_sources(tmp_path / "src", {"w.weights": b"weights"})
    await pull(cache, facts)
    [artifact] = take_snapshot(context).artifacts
    assert (artifact.artifact, artifact.state, artifact.size_bytes) == (facts.artifact, "ready", 7)
    (cache.snapshot_path(facts.artifact) / "w.weights").unlink()
    [artifact] = take_snapshot(context).artifacts
    assert (artifact.state, artifact.reason) == ("corrupt", "w.weights is missing")


def test_engines_of_ours_and_on_path(context: NodeContext, tmp_path: Path) -> None:
    home = context.paths.engines / "llama_cpp" / "1.0"
    home.mkdir(parents=True)
    record = {
        "schema_version": 1, "engine": "llama_cpp", "launch": "wheel", "version": "1.0", "wheel": "x.whl",
        "sha256": "1" * 64, "launcher_sha256": "2" * 64, "python": "/p",
    }  # fmt: skip
    (home / "engine.json").write_text(json.dumps(record))
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable}\n" + Path(fake_llama_server.__file__).read_text())
    program.chmod(0o755)
    found = take_snapshot(replace(context, environ={**context.environ, "PATH": str(tmp_path)})).engines
    assert [(engine.version, engine.launch, engine.ours) for engine in found] == [
        ("1.0", "wheel", True),
        ("b9905", "binary", False),
    ]
    shutil.rmtree(home)
    program.write_text("#!/bin/sh\nexit 1\n")
    assert take_snapshot(replace(context, environ={**context.environ, "PATH": str(tmp_path)})).engines == ()
