"""Abuse cases of configuration input (docs/threats.md, A and X10 to X13): each ends with a finding or a refusal, never with a traceback."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sbctl.base.errors import ConfigError, Diagnostic, InputError, SbctlError
from sbctl.base.ids import is_id
from sbctl.base.strict_json import loads
from sbctl.config.file_model import SbFile
from sbctl.config.load import load, load_document
from sbctl.config.models import DeploymentModel
from sbctl.config.reader import parse_yaml
from sbctl.config.schema import SCHEMA_FILES, schema_for

MINIMAL = "proxy: {model_host: {deployments: {chat: {model: smollm2-135m-instruct}}}}\n"
CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"

Findings = Callable[..., tuple[Diagnostic, ...]]


@pytest.fixture
def findings_of(tmp_path: Path) -> Findings:
    def run(data: bytes | str, environ: dict[str, str] | None = None) -> tuple[Diagnostic, ...]:
        path = tmp_path / "sb.yml"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        try:
            load(path, environ=environ or {})
        except ConfigError as error:
            assert error.exit_code == 3
            return error.diagnostics
        return ()

    return run


def only(found: tuple[Diagnostic, ...], code: str) -> Diagnostic:
    (finding,) = found
    assert finding.code == code
    return finding


def test_A1_duplicate_keys_name_both_places(findings_of: Findings) -> None:
    finding = only(findings_of(MINIMAL + "origins: {}\norigins: {}\n"), "yaml.duplicate_key")
    assert finding.span is not None
    assert (finding.span.line, finding.span.column) == (3, 1)
    assert finding.notes[0].endswith("sb.yml:2:1")


def test_A2_X12_duplicate_json_keys_and_odd_numbers_are_refused() -> None:
    for data in (
        b'{"n":1,"n":2}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 39 + b"}",
        b"\xff",
    ):
        with pytest.raises(InputError, match=r"json\.invalid"):
            loads(data, max_bytes=1000)


def cpu_s(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def test_A3_billion_laughs_never_expand(findings_of: Findings) -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]" for n in range(12)]
    found: list[tuple[Diagnostic, ...]] = []
    assert cpu_s(lambda: found.append(findings_of("\n".join(lines)))) < 5
    assert {finding.code for finding in found[0]} == {"yaml.alias_refused"}


def test_A4_merge_key_bomb(findings_of: Findings) -> None:
    lines = ["a0: &a0 {k: v}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1},*a{n - 1}]}}" for n in range(1, 24)]
    found: list[tuple[Diagnostic, ...]] = []
    assert cpu_s(lambda: found.append(findings_of("\n".join(lines)))) < 5
    assert {finding.code for finding in found[0]} == {"yaml.alias_refused", "yaml.merge_refused"}


def test_A5_self_referencing_anchor(findings_of: Findings) -> None:
    assert {finding.code for finding in findings_of("proxy: &a [*a]\n")} == {"yaml.alias_refused", "config.wrong_type"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 10_000,
        "- " * 10_000,
        "? " * 10_000,
        "a:\n" + "".join(" " * n + "a:\n" for n in range(1, 500)),
    ],
)
def test_A6_deep_nesting(findings_of: Findings, text: str) -> None:
    found: list[tuple[Diagnostic, ...]] = []
    assert cpu_s(lambda: found.append(findings_of(text))) < 10
    assert found[0][-1].code == "yaml.too_deep"


@pytest.mark.parametrize("kind", ["huge", "zero", "fifo", "directory"])
def test_A7_files_that_are_no_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "sb.yml"
    if kind == "huge":
        with path.open("wb") as file:
            file.truncate(50 * 1024 * 1024)
    elif kind == "zero":
        path = Path("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"file\.(too_large|not_regular)"):
        load(path, environ={})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [id]", "!!binary aGk=", "!!set {a}", "!foo bar", "!!str x", "!<tag:x> y"]
)
def test_A8_X7_tags(findings_of: Findings, tag: str) -> None:
    assert "yaml.tag_refused" in {finding.code for finding in findings_of(f"proxy: {tag}\n")}


@pytest.mark.parametrize(
    "data",
    [
        b"%YAML 1.1\n---\nproxy: {}\n",
        b"proxy: {}\n---\nproxy: {}\n",
        b"\xef\xbb\xbfproxy: {}\n",
        "proxy: {}\n".encode("utf-16"),
        b"proxy: {}\xff\n",
    ],
)
def test_A9_X8_directives_documents_and_encodings(findings_of: Findings, data: bytes) -> None:
    assert findings_of(data)[0].code in {"yaml.directive_refused", "yaml.multiple_documents", "yaml.encoding"}


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", ".nan", "-.inf", "0x1F90", "1_000", "-0", "012", "2026-01-01"])
def test_A10_X9_numbers(findings_of: Findings, number: str) -> None:
    finding = only(
        findings_of(f"proxy: {{http_bind_port: {number}}}\n"),
        f"yaml.{'date' if number.startswith('2026') else 'number'}_refused",
    )
    assert finding.span is not None
    assert finding.span.column == 25


def test_A11_a_typo_gets_its_suggestion(findings_of: Findings) -> None:
    text = MINIMAL.replace("{model:", "{replica: 2, model:")
    finding = only(findings_of(text), "config.unknown_field")
    assert finding.label == 'did you mean "replicas"?'


@pytest.mark.parametrize("name", ["ch\u0430t", "cha\u0301t", "ch\u200bat", "ch\u202eat", "\uff43hat", "chat\u00a0"])
def test_A12_confusable_ids_are_refused(findings_of: Findings, name: str) -> None:
    found = findings_of(MINIMAL.replace("chat", name))
    assert found
    assert found[0].code in {"config.bad_key", "yaml.text_refused"}


@pytest.mark.parametrize("value", ["a\u0301", "x\u200by", "x\u2028y"])
def test_A12_labels_are_in_composed_form(findings_of: Findings, value: str) -> None:
    text = MINIMAL.replace("{model:", f'{{required_labels: {{zone: "{value}"}}, model:')
    assert findings_of(text)[0].code in {"config.bad_value", "yaml.text_refused"}


@settings(deadline=None)
@given(st.text(max_size=140))
def test_A13_schema_and_model_agree_on_every_id(name: str) -> None:
    document = {"proxy": {"model_host": {"deployments": {name: {"model": "m"}}}}}
    try:
        SbFile.model_validate(document)
        accepted = True
    except ValidationError:
        accepted = False
    assert accepted is is_id(name)
    assert jsonschema.Draft202012Validator(ID_SCHEMA).is_valid({name: 1}) is accepted or "${" in name


ID_SCHEMA = {"propertyNames": schema_for("sb")["$defs"]["ModelHostModel"]["properties"]["deployments"]["propertyNames"]}


@pytest.mark.parametrize("name", ["a\n", "a ", "..", ".", "a/b", "a\0", "a" * 300, "", "../../x"])
def test_A13_hostile_ids(name: str) -> None:
    with pytest.raises(ValidationError):
        SbFile.model_validate({"proxy": {"model_host": {"deployments": {name: {"model": "m"}}}}})


def all_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from all_patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from all_patterns(value)


@pytest.mark.parametrize("name", SCHEMA_FILES)
def test_A14_X10_no_pattern_backtracks(name: str) -> None:
    text = "a" * 65_536 + "!"
    for pattern in set(all_patterns(schema_for(name))):
        assert cpu_s(lambda pattern=pattern: re.search(pattern, text)) < 2, pattern  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environ", "code"),
    [
        ({}, "config.unset_variable"),
        ({"V": "a\nextra: {evil: true}"}, "config.bad_key"),
        ({"V": "x}, evil: {a: b"}, "config.bad_value"),
        ({"V": "${HOME}"}, "config.bad_value"),
    ],
)
def test_A15_variables_expand_once_and_are_never_yaml(
    findings_of: Findings, environ: dict[str, str], code: str
) -> None:
    found = findings_of("proxy: {bind_address: '${V}'}\n", environ)
    assert [finding.code for finding in found] == ["config.bad_value" if code == "config.bad_key" else code]
    assert "evil" not in str(found)


def test_A16_a_catalog_file_outside_is_never_echoed(findings_of: Findings, tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.write_text("root:canary-hash:0:0\nmore: [canary\n")
    (tmp_path / "link.yaml").symlink_to(secret)
    for name in ("link.yaml", "../" + tmp_path.name + "/outside", "/etc/passwd"):
        found = findings_of(MINIMAL.replace("{model_host: {", f"{{model_host: {{catalog_file: '{name}', "))
        assert [finding.code for finding in found] == ["catalog.not_a_catalog"]
        assert "canary" not in str(found)
        assert "root" not in str(found).replace("pytest-of-root", "").replace("/root", "")


def test_A17_references_to_other_documents_are_unknown_fields(findings_of: Findings) -> None:
    finding = only(findings_of(MINIMAL + "$ref: http://127.0.0.1:1/x.json\n"), "config.unknown_field")
    assert "$ref" in finding.message


def test_A18_versions_from_the_future_name_both(findings_of: Findings, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("schema_version: 9\nmodels: {}\n")
    finding = only(
        findings_of(MINIMAL.replace("{model_host: {", "{model_host: {catalog_file: c.yaml, ")),
        "catalog.unsupported_version",
    )
    assert "9" in finding.message
    assert "2" in finding.message
    finding = only(findings_of("required_sbctl: '>=99'\n" + MINIMAL), "config.unsupported_version")
    assert ">=99" in finding.message


def judge(data: bytes) -> None:
    """Arbitrary bytes load, or are refused in our own words."""
    try:
        load_document(parse_yaml(data, "sb.yml"), environ={})
    except SbctlError as error:
        assert error.exit_code in {3, 4}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.*")), ids=lambda path: path.name)
def test_A19_kept_corpus(path: Path) -> None:
    assert cpu_s(lambda: judge(path.read_bytes())) < 10


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_A19_arbitrary_bytes(data: bytes) -> None:
    judge(data)


PIECES = st.sampled_from(
    ["proxy", "origins", "fleet", "model_host", "deployments", "chat", "model", "hosts", "address", "local", "groups", "vars", "action",
     "providers", "${A}", "${A:-1}", "env:X", "1", "0x1", "true", "~", "[]", "{}", "!t", "&a", "*a", "<<", "'", '"']
)  # fmt: skip
TREES = st.recursive(
    PIECES,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: "[" + ", ".join(items) + "]")
        | st.dictionaries(PIECES, inner, max_size=4).map(
            lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["proxy", "origins", "fleet", "secrets", "include", "x"]), TREES, max_size=5))
def test_A19_files_that_look_like_ours(blocks: dict[str, str]) -> None:
    judge("\n".join(f"{key}: {value}" for key, value in blocks.items()).encode())


def test_X11_patterns_of_pydantic_know_ascii_digits_only() -> None:
    with pytest.raises(ValidationError):
        DeploymentModel.model_validate({"model": "m", "variant": "\u0663"})


def test_X13_no_error_repeats_a_value(findings_of: Findings) -> None:
    canary = "canary-77aa"
    text = (
        f"secrets: {{a: {canary}}}\n"
        f"proxy: {{admin: {{password: [{canary}], port: '{canary}'}}, http_bind_port: {canary}, cluster: {{cluster_id: c, security: {{shared_key: {canary}, mode: x}}}}}}\n"
    )
    shown = [f"{each.message} {each.label} {each.notes}" for each in findings_of(text)]
    assert canary not in " ".join(shown)
    with pytest.raises(ConfigError) as caught:
        load_document(parse_yaml(text.encode(), "sb.yml"), environ={})
    masked = " ".join(
        each.span.source_line
        for each in caught.value.diagnostics
        if each.span is not None and each.code != "config.wrong_type"
    )
    assert f"shared_key: {canary}" not in masked
    assert f"{{a: {canary}" not in masked


@pytest.mark.integration
def test_A7_bounded_memory_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))\n"
        "from pathlib import Path\nfrom sbctl.base.errors import SbctlError\nfrom sbctl.config.load import load\n"
        "try:\n    load(Path('/dev/zero'), environ={})\nexcept SbctlError as error:\n    sys.exit(int(error.exit_code))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(Path(__file__).parents[2])}, check=False, timeout=60
    )
    assert done.returncode == 3


def test_H1_a_key_pasted_where_its_hash_belongs_is_not_shown(findings_of: Findings) -> None:
    canary = "canary-77aa"
    text = f'fleet:\n  api_keys:\n    app: {{sha256: "{canary}", models: [chat], other: {canary}}}\n'
    found = findings_of(text + MINIMAL)
    assert {"config.bad_value", "config.unknown_field"} <= {each.code for each in found}
    shown = " ".join(f"{each} {each.span.source_line if each.span else ''}" for each in found)
    assert canary not in shown
    assert "models: [chat]" in shown


def test_H1_a_password_in_an_address_is_not_shown(findings_of: Findings) -> None:
    found = findings_of(MINIMAL.rstrip("}\n") + ", source: 'https://me:canary-77aa@host/x'}}}}\n")
    lines = [each.span.source_line for each in found if each.span]
    assert lines
    assert "https://**************@host/x" in lines[0]
