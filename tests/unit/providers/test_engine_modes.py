"""What a model is for, its adapters and its attention cache, from sb.yml and catalog to resources, the bundle's member and a pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.registry import PROVIDERS
from sbctl.base.errors import ConfigError
from sbctl.cli.packing import PackRequest, _add_engines, _add_weights
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.trust.bundle import DeploymentMember

ENTRY = """\
  {name}:
    params: 1B
    license: mit
    family: demo
    context_length: 1024
    modality: {modality}
    variants:
      - id: q4
        format: gguf
        quant: Q4
        engines: [llama_cpp]
        source: file:/weights/{name}.gguf
        revision: r1
        files: [{{path: {name}.gguf, sha256: "{digit}29590a45b549db7a1631f3d220b794a8cd7c9042a43064dd0dcc80c7cb98b5e", size_bytes: 13}}]
        requirements: {{accelerators: [cpu], min_memory_bytes: 1}}
        stability: preview
        certification: none
"""
MODELS = (("talker", "chat"), ("style", "chat"), ("vectors", "embedding"), ("judge", "rerank"), ("painter", "image"))
ENGINES = "engines: {llama_cpp: {launch: wheel}}"
Write = Callable[..., CompiledConfig]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    entries = "".join(ENTRY.format(name=name, modality=kind, digit=n) for n, (name, kind) in enumerate(MODELS))
    (tmp_path / "models.yaml").write_text(f"schema_version: 2\ncatalog_revision: mine-1\nmodels:\n{entries}")

    def write(deployment: str, engines: str = ENGINES) -> CompiledConfig:
        text = (
            "proxy:\n  model_host:\n    catalog_file: models.yaml\n"
            f"    {engines}\n    deployments: {{chat: {{{deployment}, variant: q4, warm: true}}}}\n"
        )
        (tmp_path / "sb.yml").write_text(text)
        return replace(load(tmp_path / "sb.yml", environ={}), lineage="L", signers={"ops": "(made by apply)"})

    return write


def member(config: CompiledConfig) -> DeploymentMember:
    (desired,) = PROVIDERS["deployment"].desired(config)
    return DeploymentMember.model_validate_json(
        DeploymentMember.model_validate(desired.spec, strict=False).model_dump_json()
    )


@pytest.mark.parametrize(("model", "mode"), [("talker", "chat"), ("vectors", "embedding"), ("judge", "rerank")])
def test_an_engine_is_started_for_what_its_model_is(written: Write, model: str, mode: str) -> None:
    assert member(written(f"model: {model}")).mode == mode


def test_what_llama_cpp_does_not_serve_is_refused_in_the_file(written: Write) -> None:
    with pytest.raises(ConfigError, match="painter is for image"):
        written("model: painter")


def test_an_adapter_is_weights_like_any_other(written: Write) -> None:
    config = written("model: talker, kv_quant: int8, lora: [{model: style, scale: 0.5}]")
    found = member(config)
    assert found.kv_quant == "int8"
    ((adapter),) = found.adapters
    assert (adapter.artifact.model, adapter.scale) == ("style", 0.5)
    assert found.artifacts == (found.artifact.artifact, adapter.artifact.artifact)
    addresses = {str(desired.address) for desired in PROVIDERS["artifact"].desired(config)}
    assert addresses == {"artifact.local/talker:q4", "artifact.local/style:q4"}
    (deployment,) = PROVIDERS["deployment"].desired(config)
    assert {str(address) for address in deployment.after} >= addresses, "nothing serves before its adapter is there"
    with pytest.raises(ConfigError, match="catalog"):
        written("model: talker, lora: [{model: nothing}]")


def _quiet(_done: int, _total: int | None) -> None: ...


class _Packed:
    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, _path: object, name: str, role: str, _digest: str = "") -> None:
        self.names.append(f"{role} {name}")


class _Supplies:
    def engine_archive(self, _url: str, filename: str, _sha256: str, _progress: object) -> Path:
        return Path(filename)

    def artifact_files(self, facts: dict[str, Any], _progress: object) -> dict[str, Path]:
        return {file["sha256"]: Path(file["path"]) for file in facts["files"]}


@pytest.mark.parametrize(
    ("engines", "packed"),
    [
        ("engines: {llama_cpp: {launch: binary, version: b9905}}", ["engine llama-b9905-bin-ubuntu-x64.tar.gz"]),
        ("engines: {llama_cpp: {launch: binary}}", ["engine llama-b9905-bin-ubuntu-x64.tar.gz"]),
        ("engines: {llama_cpp: {launch: binary, acceleration: cuda}}", ["engine llama.cpp-b9905.tar.gz"]),
        ("engines: {llama_cpp: {launch: binary, path: /opt/llama-server}}", []),
    ],
)
def test_a_pack_holds_the_releases_and_adapters_that_its_hosts_need(
    written: Write, tmp_path: Path, engines: str, packed: list[str]
) -> None:
    config = written("model: talker, lora: [{model: style}]", engines)
    request = PackRequest(
        tmp_path, ("x86_64",), ("3.11",), "glibc-2.36", with_weights=True, unsigned=True, begin=lambda _what: _quiet
    )
    supplies: Any = _Supplies()
    contents = _Packed()
    notes = list(_add_engines(supplies, contents, config, request))  # type: ignore[arg-type]
    assert contents.names == packed
    assert bool(notes) == (not packed)
    weights = _add_weights(supplies, contents, config, request)  # type: ignore[arg-type]
    assert [each.name for each in weights] == ["style:q4", "talker:q4"]
