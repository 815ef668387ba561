"""The built-in catalog, and an operator's over it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sbctl.base.errors import InputError
from sbctl.catalog import loader
from sbctl.catalog.identity import artifact_digest
from sbctl.catalog.loader import Catalog, builtin_catalog, parse_document, rule_problems

VECTORS = {
    "qwen2.5-0.5b-instruct:q4_k_m": "830f2915ca0008994cbddaeba38634f6e999d34fea89c048ebb73753be0a0591",
    "qwen2.5-0.5b-instruct:bf16": "8357f46d82036c6e2f62814905c1f13a1c12a2260568940b0e537049ac6f6a54",
    "qwen3-8b:q4_k_m": "d749d4494fea45e96b5e4d39184ba209a33d9056268fb29d31aeab718211fc13",
    "qwen3-14b:q4_k_m": "f13437207aeb5fa10c7e76df35d993f94e24c2481ced643d529e0d081b092ddc",
    "qwen3-30b-a3b:q4_k_m": "e26da2a189b17c2c5c6e639cd24d28803574968ed974dded9d5dc788bba4da3f",
    "qwen3-32b:q4_k_m": "46be6e3a582b0e5e5d5293e7cfcd2eecc1bbe744d0bfcc961b87ab4cecfbf6f5",
    "gpt-oss-20b:q4_k_m": "f93e4751d71ed70d423b3300847acccd5005c647614789e7f5f5e82cb0b8b577",
    "llama-3.1-8b-instruct:q4_k_m": "5ae2d4d9eb4e729a3f7307b78b52a4425f082b1a3017126440358e28c74ed460",
}
"""Conformance vectors: the first is recorded upstream on real hardware, the others follow from the same rule."""

DOCUMENT: dict[str, Any] = {
    "schema_version": 2,
    "catalog_revision": "mine",
    "models": {
        "demo": {
            "params": "1B",
            "license": "mit",
            "family": "x",
            "context_length": 1024,
            "variants": [
                {
                    "id": "q4",
                    "format": "gguf",
                    "quant": "Q4",
                    "engines": ["llama_cpp"],
                    "source": "hf:a/b",
                    "revision": "a" * 40,
                    "files": [{"path": "m.gguf", "sha256": "a" * 64, "size_bytes": 1}],
                    "requirements": {"accelerators": ["cpu"], "min_memory_bytes": 1},
                    "stability": "stable",
                    "certification": "none",
                }
            ],
        }
    },
}


@pytest.mark.parametrize(("name", "digest"), VECTORS.items())
def test_artifact_digests_of_the_built_in_catalog(name: str, digest: str) -> None:
    model, variant_id = name.split(":")
    entry = builtin_catalog().entries[model]
    variant = next(each for each in entry.model.variants if each.id == variant_id)
    assert artifact_digest(entry.revision, model, variant) == digest


def test_what_the_digest_does_not_contain() -> None:
    entry = builtin_catalog().entries["qwen3-8b"]
    variant = entry.model.variants[0]
    other = variant.model_copy(
        update={"stability": "stable", "certification": "x", "engines": ("vllm",), "mirrors": ("https://x/y",)}
    )
    assert artifact_digest(entry.revision, "qwen3-8b", other) == artifact_digest(entry.revision, "qwen3-8b", variant)
    assert artifact_digest("other", "qwen3-8b", variant) != artifact_digest(entry.revision, "qwen3-8b", variant)


def test_revisions_stand_beside_each_other() -> None:
    revisions = {entry.revision for entry in builtin_catalog().entries.values()}
    assert "builtin-2026-07-10" in revisions
    assert builtin_catalog().entries["smollm2-135m-instruct"].revision != "builtin-2026-07-10"
    assert all(entry.builtin for entry in builtin_catalog().entries.values())


def test_every_built_in_entry_keeps_the_rules() -> None:
    for entry in builtin_catalog().entries.values():
        document = parse_document({"schema_version": 2, "models": {entry.id: entry.model.model_dump(mode="json")}})
        assert not list(rule_problems(document))


def test_an_operators_entry_replaces_whole() -> None:
    base = builtin_catalog()
    added, replaced = base.overlaid(parse_document(DOCUMENT))
    assert replaced == ()
    assert not added.entries["demo"].builtin
    renamed = {**DOCUMENT, "models": {"qwen3-8b": DOCUMENT["models"]["demo"]}}
    over, replaced = base.overlaid(parse_document(renamed))
    assert replaced == ("qwen3-8b",)
    assert over.entries["qwen3-8b"].model.params == "1B"
    assert len({base.digest, added.digest, over.digest}) == 3


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("context_length",), None, "needs context_length"),
        (("variants", 0, "revision"), "main", "a commit of 40 hex"),
        (("variants", 0, "format"), "safetensors", ".safetensors file"),
        (("variants", 0, "requirements", "accelerators"), ["cpu", "cpu"], "listed twice"),
        (
            ("variants", 0, "files"),
            [{"path": path, "sha256": "a" * 64, "size_bytes": 1} for path in ("m.gguf", "M.gguf")],
            "the same path",
        ),
        (
            ("variants", 0, "files"),
            [{"path": f"m-0000{part}-of-00003.gguf", "sha256": "a" * 64, "size_bytes": 1} for part in (1, 3)],
            "m-00002-of-00003.gguf is missing",
        ),
    ],
)
def test_rules(path: tuple[str | int, ...], value: object, words: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    owner = document["models"]["demo"]
    for part in path[:-1]:
        owner = owner[part]
    owner[path[-1]] = value
    problems = list(rule_problems(parse_document(document)))
    assert any(words in problem.message for problem in problems)


def test_two_variants_of_one_id_and_a_wheel_with_two_files() -> None:
    document = copy.deepcopy(DOCUMENT)
    variants = document["models"]["demo"]["variants"]
    variants.append(copy.deepcopy(variants[0]))
    variants[1]["source"] = "pypi:x==1#m.gguf"
    variants[1]["files"].append({"path": "n.gguf", "sha256": "b" * 64, "size_bytes": 1})
    messages = [problem.message for problem in rule_problems(parse_document(document))]
    assert any('two variants "q4"' in message for message in messages)
    assert any("exactly one file" in message for message in messages)


@pytest.mark.parametrize(("version", "valid"), [(2, True), (1, True), (3, False), ("2", False), (True, False)])
def test_versions(version: object, valid: bool) -> None:
    raw = {**DOCUMENT, "schema_version": version}
    if valid:
        parse_document(raw)
    else:
        with pytest.raises(ValidationError):
            parse_document(raw)


def test_a_catalog_without_a_version_is_of_version_1() -> None:
    document = parse_document({"models": {}})
    assert (document.schema_version, document.catalog_revision) == (1, "legacy-v1")


def test_bounds() -> None:
    entry = {"params": "1B", "license": "mit", "family": "x"}
    with pytest.raises(ValidationError):
        parse_document({"models": {f"m{number}": entry for number in range(1025)}})


@pytest.mark.parametrize("text", ["{", "[]", '{"catalogs": [{"models": 5}]}', '{"a": 1, "a": 2}'])
def test_a_damaged_installation_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "builtin.json").write_text(text)
    monkeypatch.setattr(loader, "files", lambda _package: tmp_path)
    builtin_catalog.cache_clear()
    try:
        with pytest.raises(InputError, match=r"catalog\.damaged"):
            builtin_catalog()
    finally:
        builtin_catalog.cache_clear()


def test_an_empty_catalog_has_a_digest() -> None:
    assert len(Catalog({}).digest) == 64
