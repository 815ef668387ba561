"""Which variant a deployment gets, and the reason against each of the others."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.errors import InputError
from sbctl.catalog.loader import Catalog, builtin_catalog, parse_document
from sbctl.catalog.resolve import DeviceProfile, auto_engine, resolve


def variant(name: str, **fields: Any) -> dict[str, Any]:
    extension = {"gguf": "gguf", "safetensors": "safetensors", "pickle": "bin"}[fields.get("format", "gguf")]
    return {
        "id": name,
        "format": "gguf",
        "quant": "Q",
        "engines": ["llama_cpp"],
        "source": "hf:a/b",
        "revision": "r",
        "mirrors": ["https://m.example/x"],
        "files": [{"path": f"{name}.{extension}", "sha256": "a" * 64, "size_bytes": 10}],
        "requirements": {"accelerators": ["cpu", "cuda"], "min_memory_bytes": 1024},
        "stability": "preview",
        "certification": "none",
        **fields,
    }


def catalog(*variants: dict[str, Any], **fields: Any) -> Catalog:
    model = {
        "params": "1B",
        "license": "mit",
        "family": "x",
        "context_length": 1024,
        "variants": list(variants),
        **fields,
    }
    return Catalog({}).overlaid(
        parse_document({"schema_version": 2, "catalog_revision": "t", "models": {"demo": model}})
    )[0]


def test_the_facts_are_all_that_a_host_needs() -> None:
    resolution = resolve(builtin_catalog(), "smollm2-135m-instruct", "q4_1")
    facts = resolution.facts
    assert resolution.engine == "llama_cpp"
    assert facts.artifact == "a1a505b8e0019f75b3036de1845b3b32081ac4d5900281b9f3c3e0b1e8f6e457"
    assert facts.total_bytes == 98_362_432
    assert (facts.context_length, facts.license) == (8192, "apache-2.0")
    assert facts.catalog_digest is not None
    assert resolve(catalog(variant("a")), "demo").facts.mirrors == ("https://m.example/x",)


def test_the_same_bytes_under_another_name_are_the_same_artifact() -> None:
    first = resolve(catalog(variant("a")), "demo").facts
    second = resolve(catalog(variant("a", source="hf:c/d", quant="other")), "demo").facts
    assert first.artifact == second.artifact
    assert first.catalog_digest != second.catalog_digest


def test_declared_order_with_pickle_last() -> None:
    pickled = variant("p", format="pickle", engines=["vllm"])
    both = catalog(pickled, variant("b"), variant("c"), allow_pickle=True)
    assert resolve(both, "demo").variant.id == "b"
    assert resolve(both, "demo", "c").variant.id == "c"
    only = catalog(pickled, allow_pickle=True)
    assert resolve(only, "demo").engine == "vllm"


CUDA8 = {"accelerators": ["cuda"], "min_memory_bytes": 1, "min_compute_capability": {"major": 8, "minor": 9}}


@pytest.mark.parametrize(
    ("fields", "engine", "device", "reason"),
    [
        ({"stability": "config_only"}, "auto", DeviceProfile(), "its stability is config_only"),
        ({"format": "pickle", "engines": ["vllm"]}, "auto", DeviceProfile(), "allow_pickle"),
        ({}, "auto", DeviceProfile(accelerators=frozenset({"metal"})), "it needs cpu or cuda, and there is metal"),
        ({}, "auto", DeviceProfile(accelerators=frozenset()), "and there is nothing"),
        ({}, "auto", DeviceProfile(free_memory_bytes=512), "it needs 1.0 KiB, and 512 B are free"),
        (
            {"requirements": CUDA8},
            "auto",
            DeviceProfile(compute_capability=(7, 5)),
            "compute capability 8.9, and the device has 7.5",
        ),
        ({}, "mistralrs", DeviceProfile(), "mistralrs does not read gguf"),
        ({}, "vllm", DeviceProfile(), "vllm is asked for, and it was tried with llama_cpp only"),
        ({"format": "safetensors", "engines": ["sglang"]}, "auto", DeviceProfile(), "auto means vllm for safetensors"),
    ],
)
def test_each_refusal_names_its_reason(fields: dict[str, Any], engine: str, device: DeviceProfile, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(catalog(variant("a", **fields)), "demo", engine=engine, device=device)
    assert caught.value.code == "catalog.no_variant"
    (line,) = caught.value.detail["reasons"]
    assert line.startswith("a: ")
    assert reason in line


def test_a_device_that_fits_passes() -> None:
    device = DeviceProfile(frozenset({"cuda"}), 4096, (9, 0))
    assert resolve(catalog(variant("a", requirements=CUDA8)), "demo", device=device).variant.id == "a"


def test_every_variant_is_listed_with_its_reason() -> None:
    both = catalog(variant("a", stability="unsupported"), variant("b", engines=["vllm"]))
    with pytest.raises(InputError) as caught:
        resolve(both, "demo")
    assert [line[0] for line in caught.value.detail["reasons"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("model", "wanted", "code", "step"),
    [
        ("qwen3-8", None, "catalog.unknown_model", 'did you mean "qwen3-8b"?'),
        ("smollm2", None, "catalog.unknown_model", 'did you mean "smollm2-135m-instruct"?'),
        ("zzz", None, "catalog.unknown_model", "known: glm-4-flash"),
        ("qwen3-8b", "Q4-K-M", "catalog.unknown_variant", 'did you mean "q4_k_m"?'),
        ("glm-4-flash", None, "catalog.no_variant", "another model"),
    ],
)
def test_unknown_names(model: str, wanted: str | None, code: str, step: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(builtin_catalog(), model, wanted)
    assert caught.value.code == code
    assert step in (caught.value.next_step or "")


@pytest.mark.parametrize(
    ("format_name", "engine"), [("gguf", "llama_cpp"), ("safetensors", "vllm"), ("pickle", "vllm")]
)
def test_auto(format_name: str, engine: str) -> None:
    assert auto_engine(format_name) == engine
