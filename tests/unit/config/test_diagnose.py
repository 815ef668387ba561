"""Findings tell what, where, what was expected, and what was probably meant; all of a file in one run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sbctl.base.errors import Diagnostic, SourceSpan
from sbctl.config.diagnose import Report

Findings = Callable[..., tuple[Diagnostic, ...]]


def at(finding: Diagnostic) -> tuple[int, int]:
    assert finding.span is not None
    return finding.span.line, finding.span.column


def deployment(fields: str) -> str:
    return f"proxy:\n  model_host:\n    deployments:\n      chat: {{model: smollm2-135m-instruct, {fields}}}\n"


@pytest.mark.parametrize(
    ("fields", "code", "message", "label"),
    [
        ("replica: 2", "unknown_field", '"replica" is not a field of a deployment', 'did you mean "replicas"?'),
        ("zzz: 2", "unknown_field", '"zzz" is not a field of a deployment', ""),
        ("replicas: two", "wrong_type", '"replicas" must be a whole number, not text', ""),
        ("replicas: 1.5", "wrong_type", '"replicas" must be a whole number, not a number', ""),
        ("replicas: true", "wrong_type", '"replicas" must be a whole number, not true or false', ""),
        ("replicas: []", "wrong_type", '"replicas" must be a whole number, not a list', ""),
        ("replicas: 0", "out_of_range", '"replicas" must be at least 1', ""),
        ("max_concurrency: 0", "out_of_range", '"max_concurrency" must be more than 0', ""),
        ("keep_alive_secs: 99999999999", "out_of_range", '"keep_alive_secs" must be at most 31536000', ""),
        ("warm: yes", "wrong_type", '"warm" must be true or false, not text', ""),
        ("variant: 4", "wrong_type", '"variant" must be text, not a whole number: put it in quotes', ""),
        ("variant: 0.1", "wrong_type", '"variant" must be text, not a number: put it in quotes', ""),
        ("variant: {}", "wrong_type", '"variant" must be text, not a map', ""),
        ("pull: on_bot", "bad_value", '"pull" must be one of on_boot, on_demand, manual', 'did you mean "on_boot"?'),
        ("pull: 1", "bad_value", '"pull" must be one of on_boot, on_demand, manual', ""),
        ("spread_by: zone", "wrong_type", '"spread_by" must be a list, not text', ""),
        ("spread_by: [a, 'b c']", "bad_value", 'entry 2 of "spread_by" must be 1 to 128 of A-Z a-z 0-9 . _ / -', ""),
        ("spread_by: [a,b,c,d,e,f,g,h,i]", "out_of_range", '"spread_by" must have at most 8 entries', ""),
        ("required_labels: []", "wrong_type", '"required_labels" must be a map, not a list', ""),
        ("required_labels: ", "wrong_type", '"required_labels" must be a map, not nothing; write {} for none', ""),
        ("required_labels: {a: ''}", "bad_value", '"a" must be 1 to 256 visible characters in composed (NFC) form', ""),
        ("required_labels: {'a b': c}", "bad_key", 'the name "a b" must be 1 to 128 of A-Z a-z 0-9 . _ / -', ""),
        (
            "engine_version: latest",
            "bad_value",
            '"engine_version" must be an exact version: latest changes under you',
            "",
        ),
        ("engine_sha256: abc", "bad_value", '"engine_sha256" must be 64 hex characters: a SHA-256', ""),
        ("chunked_prefill: 5", "wrong_type", '"chunked_prefill" must be a map of fields, not a whole number', ""),
    ],
)
def test_words_for_one_finding(findings_of: Findings, fields: str, code: str, message: str, label: str) -> None:
    (finding,) = findings_of(deployment(fields))
    assert (finding.code, finding.message, finding.label) == (f"config.{code}", message, label)
    assert finding.span is not None
    assert finding.span.line == 4
    assert finding.span.source_line.startswith("      chat: {")


def test_the_place_is_that_of_the_key_or_of_the_value(findings_of: Findings) -> None:
    key, value = findings_of("proxy:\n  http_bind_prt: 1\n  http_bind_port: 0\n")
    assert at(key) == (2, 3)
    assert key.span is not None
    assert key.span.length == len("http_bind_prt")
    assert at(value) == (3, 19)


def test_a_missing_field_is_named_with_its_meaning(findings_of: Findings) -> None:
    (finding,) = findings_of("proxy: {model_host: {deployments: {chat: {}}}}\n")
    assert finding.message == 'a deployment needs "model"'
    assert finding.notes == ("model: Which model, by its id in the catalog.",)
    assert at(finding) == (1, 36)


def test_an_unknown_field_says_where_the_fields_are_explained(findings_of: Findings) -> None:
    (finding,) = findings_of(deployment("replica: 2"))
    assert finding.notes == ("fields of a deployment: sbctl explain proxy.model_host.deployments",)
    (top,) = findings_of("proxi: {}\n")
    assert top.notes == ("fields of sb.yml: sbctl explain",)


def test_names_of_other_planes_are_suggested_too(findings_of: Findings) -> None:
    (finding,) = findings_of("proxy: {metrcs: {}}\n")
    assert finding.label == 'did you mean "metrics"?'


def test_a_bad_engine_kind_is_a_bad_name(findings_of: Findings) -> None:
    (finding,) = findings_of("proxy: {model_host: {engines: {llamacpp: {}}}}\n")
    assert finding.message == 'the name "llamacpp" must be one of vllm, sglang, llama_cpp, mistralrs'
    assert finding.label == 'did you mean "llama_cpp"?'
    assert at(finding) == (1, 32)


def test_all_findings_of_a_file_come_in_one_run_and_in_file_order(findings_of: Findings) -> None:
    text = """\
required_sbctl: ">=99"
fleeet: {}
include: [a.yml]
secrets: {hf: plain-text-secret}
proxy:
  http_bind_port: 0x1
  admin: {enabled: treu, password: hunter2}
  model_host:
    deployments:
      chat: {model: smollm2-135m-instruct, replica: 2}
      big: {model: qwen3-8}
origins:
  localhost:
    action:
      type: ai_proxy
      providers: [{name: local, provider_type: managed_model, deployment: chta}]
"""
    found = findings_of(text)
    assert [(each.code, at(each)[0]) for each in found] == [
        ("config.unsupported_version", 1),
        ("config.unknown_field", 2),
        ("file.missing", 3),
        ("config.bad_value", 4),
        ("yaml.number_refused", 6),
        ("config.wrong_type", 7),
        ("config.unknown_field", 10),
        ("catalog.unknown_model", 11),
        ("config.unknown_deployment", 16),
    ]
    shown = " ".join(
        f"{each.message} {each.label} {each.notes} {each.span and each.span.source_line}" for each in found
    )
    assert "hunter2" not in shown
    assert "plain-text-secret" not in shown


def test_a_broken_list_entry_does_not_move_the_places_of_the_others(findings_of: Findings) -> None:
    text = """\
proxy: {model_host: {deployments: {chat: {model: smollm2-135m-instruct}}}}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {provider_type: managed_model, deployment: chat}
        - {name: b, provider_type: managed_model, deployment: chat, bogus: 1}
"""
    found = findings_of(text)
    assert [(each.code, at(each)) for each in found] == [
        ("config.missing_field", (7, 11)),
        ("config.unknown_field", (8, 69)),
    ]


def test_a_variable_that_a_text_field_gets_stays_text(load_text: Callable[..., object], findings_of: Findings) -> None:
    text = deployment("variant: '${V}', required_labels: {zone: '${Z}'}")
    fleet = "fleet: {hosts: {me: {address: local, labels: {zone: '1'}}}}\n"
    (finding,) = findings_of(fleet + text, {"V": "41", "Z": "1"})
    assert finding.message == '"smollm2-135m-instruct" has no variant "41"'
    load_text(fleet + text, {"V": "q4_1", "Z": "1"})


def test_a_variable_of_the_wrong_type_is_a_finding_without_its_value(findings_of: Findings) -> None:
    (finding,) = findings_of("proxy: {http_bind_port: '${P}'}\n", {"P": "canary"})
    assert finding.message == '"http_bind_port" must be a whole number, not text'
    assert "canary" not in str(finding)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("- a\n", "the file must be a map of blocks"),
        ("just text\n", "the file must be a map of blocks"),
    ],
)
def test_a_file_that_is_no_map(findings_of: Findings, text: str, message: str) -> None:
    (finding,) = findings_of(text)
    assert (finding.code, finding.message) == ("config.not_a_map", message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy: 5\n", "the file must be a map of fields, not a whole number"),
        ("origins: []\n", '"origins" must be a map, not a list'),
        ("fleet:\n", "the file must be a map of fields, not nothing; write {} for none"),
        ("secrets: x\n", '"secrets" must be a map, not text'),
    ],
)
def test_a_block_that_is_no_map(findings_of: Findings, text: str, message: str) -> None:
    assert message.split(" must ")[1] in findings_of(text)[0].message


def test_one_finding_from_many_hosts_is_one() -> None:
    report = Report()
    span = SourceSpan("sb.yml", 2, 1)
    for _ in range(3):
        report.add("config.x", "same", span)
    report.note("config.y", "a note", None)
    assert len(report.in_order("error")) == 1
    assert len(report.in_order("note")) == 1
