"""An operator's catalog: laid over the built-in one; a file that is none shows nothing of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.catalog.loader import builtin_catalog
from sbctl.config.compiled import CompiledConfig

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

CATALOG = """\
schema_version: 2
catalog_revision: mine-1
models:
  demo:
    params: 1B
    license: mit
    family: demo
    context_length: 1024
    variants:
      - id: q4
        format: gguf
        quant: Q4
        engines: [llama_cpp]
        source: file:/weights/demo.gguf
        revision: r1
        mirrors: ["https://mirror.example/demo.gguf"]
        files: [{path: demo.gguf, sha256: "729590a45b549db7a1631f3d220b794a8cd7c9042a43064dd0dcc80c7cb98b5e", size_bytes: 13}]
        requirements: {accelerators: [cpu], min_memory_bytes: 1}
        stability: preview
        certification: none
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Callable[[str], None]:
    def write(text: str) -> None:
        (tmp_path / "models.yaml").write_text(text)

    return write


def using(minimal: str, model: str = "demo", file: str = "models.yaml") -> str:
    return minimal.replace("model_host:", f"model_host:\n    catalog_file: {file}").replace(
        "model: smollm2-135m-instruct, variant: q4_1", f"model: {model}"
    )


def test_an_entry_is_added(load_text: Load, minimal: str, catalog: Callable[[str], None]) -> None:
    catalog(CATALOG)
    config = load_text(using(minimal))
    facts = config.hosts["local"].deployments["chat"].artifact
    assert (facts.model, facts.variant, facts.source) == ("demo", "q4", "file:/weights/demo.gguf")
    assert facts.mirrors == ("https://mirror.example/demo.gguf",)
    assert config.catalog_digest != builtin_catalog().digest
    load_text(using(minimal, "smollm2-135m-instruct"))


def test_an_entry_of_a_known_id_replaces_it_and_is_named(
    load_text: Load, minimal: str, catalog: Callable[[str], None]
) -> None:
    catalog(CATALOG.replace("demo:\n", "qwen3-8b:\n"))
    config = load_text(using(minimal, "qwen3-8b"))
    assert config.hosts["local"].deployments["chat"].artifact.total_bytes == 13
    assert [note.code for note in config.notes] == ["catalog.replaced"]


def test_a_token_of_an_entry_is_said_to_be_of_no_use(
    load_text: Load, minimal: str, catalog: Callable[[str], None]
) -> None:
    catalog(CATALOG.replace("    params: 1B\n", "    params: 1B\n    hf_token: ${MY_TOKEN}\n"))
    (note,) = load_text(using(minimal)).notes
    assert (note.code, note.span.line if note.span else 0) == ("catalog.hf_token_unused", 6)
    assert "egress" in note.notes[0]


def test_an_entry_that_nobody_uses_never_changes_the_configuration(
    load_text: Load, minimal: str, catalog: Callable[[str], None]
) -> None:
    plain = load_text(minimal)
    catalog(CATALOG)
    with_file = load_text(minimal.replace("model_host:", "model_host:\n    catalog_file: models.yaml"))
    assert with_file.digest == plain.digest
    assert with_file.catalog_digest != plain.catalog_digest
    assert with_file.hosts["local"].deployments["chat"].artifact == plain.hosts["local"].deployments["chat"].artifact


@pytest.mark.parametrize(
    ("old", "new", "code", "words", "line"),
    [
        ("context_length: 1024", "context_lenght: 1024", "config.unknown_field", "context_lenght", 8),
        ("schema_version: 2", "schema_version: 3", "catalog.unsupported_version", "of version 3", 1),
        ("size_bytes: 13", "size_bytes: 0", "config.out_of_range", "more than 0", 17),
        ("path: demo.gguf", "path: ../demo.gguf", "config.bad_value", "a relative path", 17),
        ("path: demo.gguf", "path: demo.bin", "catalog.rule", "at least one .gguf", 17),
        ("source: file:/weights/demo.gguf", "source: ms:a/b", "config.bad_value", "ModelScope", 14),
        ("source: file:/weights/demo.gguf", "source: ftp://x", "config.bad_value", "hf:Org/Repo", 14),
        ("stability: preview", "stability: prevew", "config.bad_value", "one of stable", 19),
        ("license: mit", "license: [mit]", "config.wrong_type", "text", 6),
        ("license: mit", "license: !!str mit", "yaml.tag_refused", "tags", 6),
        ("models:", "models: [", "yaml.syntax", "not YAML", None),
    ],
)
def test_findings_stand_in_the_catalog(
    findings_of: Findings,
    minimal: str,
    catalog: Callable[[str], None],
    old: str,
    new: str,
    code: str,
    words: str,
    line: int | None,
) -> None:
    catalog(CATALOG.replace(old, new))
    finding = next(each for each in findings_of(using(minimal, "smollm2-135m-instruct")) if each.code == code)
    assert words in finding.message
    assert finding.span is not None
    assert finding.span.path.endswith("models.yaml")
    assert line is None or finding.span.line == line


def test_rules_between_fields(findings_of: Findings, minimal: str, catalog: Callable[[str], None]) -> None:
    catalog(CATALOG.replace("    context_length: 1024\n", ""))
    (finding,) = findings_of(using(minimal, "smollm2-135m-instruct"))
    assert "needs context_length" in finding.message


def test_a_missing_file(findings_of: Findings, minimal: str) -> None:
    (finding,) = findings_of(using(minimal, "smollm2-135m-instruct", "nope.yaml"))
    assert finding.code == "catalog.file.missing"
    assert finding.span is not None
    assert finding.span.path.endswith("sb.yml")


@pytest.mark.parametrize("text", ["", "root:x:0:0:canary:/root\n", "- canary\n", "canary: [\n", "canary\n"])
def test_a_file_that_is_no_catalog_shows_nothing_of_itself(
    findings_of: Findings, minimal: str, catalog: Callable[[str], None], text: str
) -> None:
    catalog(text)
    (finding,) = findings_of(using(minimal, "smollm2-135m-instruct"))
    assert finding.code == "catalog.not_a_catalog"
    assert "canary" not in str(finding)


def test_a_catalog_of_version_1_can_be_listed_but_not_served(
    load_text: Load, minimal: str, catalog: Callable[[str], None]
) -> None:
    catalog(
        "models:\n  old: {params: 1B, license: mit, family: x, source: 'hf:a/b', sha256: {w.gguf: '"
        + "a" * 64
        + "'}}\n"
    )
    with pytest.raises(ConfigError, match="listed but not served"):
        load_text(using(minimal, "old"))
    load_text(using(minimal, "smollm2-135m-instruct"))


def test_each_host_may_have_its_own_catalog(load_text: Load, minimal: str, catalog: Callable[[str], None]) -> None:
    catalog(CATALOG)
    fleet = (
        "fleet: {hosts: {a: {address: local, proxy: {model_host: {catalog_file: models.yaml}}},"
        f" b: {{address: 10.0.0.1, host_key: 'SHA256:{'a' * 43}'}}}}}}\n"
    )
    config = load_text(fleet + minimal)
    assert config.catalog_digest not in {builtin_catalog().digest, load_text(using(minimal)).catalog_digest}
