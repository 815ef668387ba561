"""The published schemas: generated, not drifted, and of one mind with the models."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from sbctl.catalog.models import CatalogDocument
from sbctl.config.file_model import SbFile
from sbctl.config.reader import read_yaml
from sbctl.config.schema import SCHEMA_FILES, drifted, generated_files, main, schema_for
from sbctl.config.starter import STARTER

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_no_generated_file_has_drifted() -> None:
    assert drifted() == [], "run make schemas"


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_every_schema_is_a_schema(name: str) -> None:
    schema = schema_for(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == SCHEMA_FILES[name]


def test_write_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "x.json"
    monkeypatch.setattr("sbctl.config.schema.generated_files", lambda: {target: "text\n"})
    assert main([]) == 1
    assert str(target) in capsys.readouterr().out
    assert main(["--write"]) == 0
    assert main([]) == 0
    assert generated_files is not None


def patterns(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema, schema["pattern"]
        for value in schema.values():
            yield from patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from patterns(value)


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_X10_no_pattern_lets_a_final_newline_pass_or_nests_quantifiers(name: str) -> None:
    for owner, pattern in patterns(schema_for(name)):
        assert "\\d" not in pattern
        assert "\\w" not in pattern
        assert ")+" not in pattern
        assert ")*" not in pattern
        if pattern.endswith("$") and "type" in owner:
            assert "not" in owner, pattern


VALIDATOR = jsonschema.Draft202012Validator(schema_for("sb"))

GOOD: dict[str, Any] = {
    "proxy": {
        "http_bind_port": 8080,
        "admin": {"enabled": True, "port": 9090},
        "model_host": {
            "cache": {"directory": "/data/models", "budget_gib": 20.5},
            "engines": {"llama_cpp": {"launch": "binary", "version": "b9905"}},
            "deployments": {
                "chat": {"model": "m", "replicas": 2, "required_labels": {"zone": "a"}, "spread_by": ["zone"]}
            },
        },
    },
    "fleet": {"hosts": {"gpu-[1-4]": {"address": "10.0.0.[1-4]", "vars": {"port": 1, "s": "x", "f": 1.5, "b": True}}}},
    "origins": {
        "h": {
            "action": {
                "type": "ai_proxy",
                "providers": [{"name": "l", "provider_type": "managed_model", "deployment": "chat"}],
            }
        }
    },
}

CHAT = ("proxy", "model_host", "deployments", "chat")

DIFFERENTIAL: list[tuple[tuple[str | int, ...], Any, bool]] = [
    (("proxy", "http_bind_port"), 0, False),
    (("proxy", "http_bind_port"), 65535, True),
    (("proxy", "http_bind_port"), 65536, False),
    (("proxy", "http_bind_port"), True, False),
    (("proxy", "http_bind_port"), "8080", False),
    (("proxy", "bogus"), 1, False),
    (("proxy", "bind_address"), "127.0.0.1", True),
    (("proxy", "bind_address"), "local host", False),
    (("proxy", "admin", "enabled"), "yes", False),
    (("proxy", "admin", "password"), "x", True),
    (("proxy", "model_host", "authority"), "file_managed", True),
    (("proxy", "model_host", "authority"), "file", False),
    (("proxy", "model_host", "safety_margin"), 0, True),
    (("proxy", "model_host", "safety_margin"), 1, False),
    (("proxy", "model_host", "cache", "directory"), "/x\n", False),
    (("proxy", "model_host", "cache", "directory"), "x", False),
    (("proxy", "model_host", "cache", "budget_gib"), 0, False),
    (("proxy", "model_host", "engines", "llama_cpp", "launch"), "wheel", True),
    (("proxy", "model_host", "engines", "llama_cpp", "launch"), "snap", False),
    (("proxy", "model_host", "engines", "llama_cpp", "version"), "latest", False),
    (("proxy", "model_host", "engines", "llama_cpp", "version"), "b9905\n", False),
    (("proxy", "model_host", "engines", "llama_cpp", "version"), "-b", False),
    (("proxy", "model_host", "engines", "llama_cpp", "version"), "b.", False),
    (("proxy", "model_host", "engines", "llama_cpp", "sha256"), "AB" * 32, True),
    (("proxy", "model_host", "engines", "llama_cpp", "sha256"), "a" * 63, False),
    (("proxy", "model_host", "engines", "llama_cpp", "sha256"), "a" * 64 + "\n", False),
    (("proxy", "model_host", "engines", "llama_cpp", "image"), "r@sha256:" + "a" * 64, True),
    (("proxy", "model_host", "engines", "llama_cpp", "image"), "r@sha256:" + "a" * 64 + "\n", False),
    (("proxy", "model_host", "engines", "llama_cpp", "image"), "r:tag", False),
    (("proxy", "model_host", "engines", "snap"), {}, False),
    (("proxy", "model_host", "deployments", "a.b_c-d"), {"model": "m"}, True),
    (("proxy", "model_host", "deployments", "a b"), {"model": "m"}, False),
    (("proxy", "model_host", "deployments", "abc\n"), {"model": "m"}, False),
    (("proxy", "model_host", "deployments", ".."), {"model": "m"}, False),
    (("proxy", "model_host", "deployments", "a" * 129), {"model": "m"}, False),
    (("proxy", "model_host", "deployments", "\u0430bc"), {"model": "m"}, False),
    ((*CHAT, "model"), "", False),
    ((*CHAT, "model"), "a\nb", False),
    ((*CHAT, "variant"), "abc\n", False),
    ((*CHAT, "variant"), "../x", False),
    ((*CHAT, "variant"), "q4_k_m", True),
    ((*CHAT, "variant"), "\u0663", False),
    ((*CHAT, "variant"), None, True),
    ((*CHAT, "replicas"), 65, False),
    ((*CHAT, "spread_by"), ["a"] * 9, False),
    ((*CHAT, "spread_by"), ["a b"], False),
    ((*CHAT, "required_labels"), {"": "x"}, False),
    ((*CHAT, "required_labels"), {"a": ""}, False),
    ((*CHAT, "required_labels"), {"a": "x" * 257}, False),
    ((*CHAT, "extra_args"), [1], False),
    ((*CHAT, "warm"), 1, False),
    (("fleet", "hosts", "gpu-[1-4]", "address"), "a b", False),
    (("fleet", "hosts", "gpu-[1-4]", "host_key"), "SHA256:" + "a" * 43, True),
    (("fleet", "hosts", "gpu-[1-4]", "host_key"), "abc", False),
    (("fleet", "hosts", "gpu-[1-4]", "vars"), {"a": [1]}, False),
    (("fleet", "hosts", "gpu-[1-4]", "vars"), {"1a": 1}, False),
    (("fleet", "hosts", "a\n"), {"address": "x"}, False),
    (("fleet", "hosts"), None, True),
    (("fleet", "public"), "true", False),
    (("fleet", "prevent_destroy"), ["artifact.*"], True),
    (("fleet", "prevent_destroy"), ["artifact"], False),
    (("fleet", "api_keys"), {"a": {"sha256": "a" * 64, "priority": "batch"}}, True),
    (("fleet", "api_keys"), {"a": {"sha256": "a" * 64, "priority": "low"}}, False),
    (("fleet", "trust"), {"signers": {}}, False),
    (("secrets",), {"a": "env:X"}, True),
    (("secrets",), {"a": "plain"}, False),
    (("origins", "h", "action", "type"), "ai_prox", False),
    (("origins", "h", "action"), {"type": "static", "body": "x"}, True),
    (("origins", "h", "action", "providers", 0, "deployment"), "a b", False),
    (("origins", "h", "action", "providers", 0), {"name": "openai", "api_key": "env:K"}, True),
    (("origins", "h", "action", "providers", 0), {"name": "x", "provider_type": "managed_model"}, False),
    (("origins", "h", "action", "providers", 0), {"api_key": "k"}, False),
    (("origins", "a b"), {"action": {"type": "static"}}, False),
    (("origins",), {"h": {}}, False),
]


def with_value(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(GOOD)
    owner: Any = document
    for part in path[:-1]:
        owner = owner[part]
    owner[path[-1]] = value
    return document


@pytest.mark.parametrize(("path", "value", "valid"), DIFFERENTIAL)
def test_jsonschema_and_pydantic_agree(path: tuple[str | int, ...], value: Any, valid: bool) -> None:
    document = with_value(path, value)
    try:
        SbFile.model_validate(document)
        accepted = True
    except ValidationError:
        accepted = False
    assert accepted is valid
    assert VALIDATOR.is_valid(document) is valid


def test_the_base_of_the_table_is_valid() -> None:
    SbFile.model_validate(GOOD)
    assert VALIDATOR.is_valid(GOOD)


def test_variables_and_other_planes_and_partial_overlays_pass_the_schema() -> None:
    for path, value in (
        (("proxy", "http_bind_port"), "${PORT:-8080}"),
        ((*CHAT, "warm"), "${WARM}"),
        (("proxy", "metrics"), {"a": 1}),
        (("origins", "h", "policies"), [{"type": "waf"}]),
        (("origins", "h", "action", "guardrails"), {}),
        (("access_log",), {}),
        (("fleet", "defaults"), {"proxy": {"model_host": {"deployments": {"chat": {"max_concurrency": 2}}}}}),
    ):
        assert VALIDATOR.is_valid(with_value(path, value)), path
    assert not VALIDATOR.is_valid(
        with_value(("fleet", "defaults"), {"proxy": {"model_host": {"deployments": {"chat": {"replica": 2}}}}})
    )


def test_the_starter_and_the_examples_fit_the_schema(tmp_path: Path) -> None:
    starter = tmp_path / "sb.yml"
    starter.write_text(STARTER)
    for path in (starter, *EXAMPLES.glob("*/sb.yml")):
        VALIDATOR.validate(read_yaml(path).value)


def test_the_catalog_schema_fits_the_built_in_catalog() -> None:
    from importlib.resources import files

    validator = jsonschema.Draft202012Validator(schema_for("catalog"))
    for document in json.loads(files("sbctl.catalog").joinpath("builtin.json").read_bytes())["catalogs"]:
        validator.validate(document)
        CatalogDocument.model_validate(document)
