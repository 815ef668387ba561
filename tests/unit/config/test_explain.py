"""`explain`: any field by its dotted name, with or without the names a user chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, InputError
from sbctl.config.explain import Explanation, explain_field

FILE = """\
fleet:
  defaults: {proxy: {http_bind_port: 8001}}
  hosts:
    me: {address: local, proxy: {http_bind_port: 8002}}
secrets: {pw: "env:PW"}
proxy:
  http_bind_port: ${PORT:-8080}
  metrics: {}
  admin: {password: hunter2, port: "${ADMIN}"}
  model_host:
    deployments:
      chat: {model: a, replicas: 2, spread_by: [zone, rack]}
      other: {model: b}
origins:
  ai.internal:
    action:
      type: ai_proxy
      providers:
        - {name: local, provider_type: managed_model, deployment: chat}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sb.yml"
    path.write_text(FILE)
    return path


def shown(explanation: Explanation) -> list[tuple[str, str, int]]:
    return [(each.layer, each.value, each.span.line) for each in explanation.written]


@pytest.mark.parametrize(
    ("field", "dotted", "written"),
    [
        ("proxy.model_host.deployments.chat.replicas", "proxy.model_host.deployments.replicas", ["2"]),
        ("proxy.model_host.deployments.model", "proxy.model_host.deployments.model", ["a", "b"]),
        ("proxy.model_host.deployments.other.model", "proxy.model_host.deployments.model", ["b"]),
        ("proxy.model_host.deployments.chat.spread_by", "proxy.model_host.deployments.spread_by", ["[zone, rack]"]),
        ("proxy.model_host.deployments", "proxy.model_host.deployments", ["a map of 2"]),
        ("proxy.model_host.deployments.chat", "proxy.model_host.deployments", ["a map of 3"]),
        ("proxy.http_bind_port", "proxy.http_bind_port", ["8001", "8002", "${PORT:-8080} (set by a variable)"]),
        ("proxy.admin.port", "proxy.admin.port", ["${ADMIN} (not set here)"]),
        ("proxy.admin.password", "proxy.admin.password", ["(secret)"]),
        ("secrets.pw", "secrets", ["(secret)"]),
        ("origins.ai.internal.action.type", "origins.action.type", ["ai_proxy"]),
        ("origins.ai.internal.action.providers.0.deployment", "origins.action.providers.deployment", ["chat"]),
        ("origins.action.providers.deployment", "origins.action.providers.deployment", ["chat"]),
        ("fleet.hosts.me.address", "fleet.hosts.address", ["local"]),
        ("fleet.trust.signers", "fleet.trust.signers", []),
    ],
)
def test_a_field_and_where_it_is_written(file: Path, field: str, dotted: str, written: list[str]) -> None:
    explanation = explain_field(field, file, {})
    assert explanation.field == dotted
    assert [each.value for each in explanation.written] == written


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("max_concurrency", "that name is at proxy.model_host.deployments.max_concurrency"),
        ("fleet.identity_file", "that name is at fleet.ssh.identity_file"),
    ],
)
def test_a_name_that_stands_further_in_is_found(name: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        explain_field(name, None, {})
    assert (caught.value.next_step or "").startswith(said)


def test_a_map_or_a_list_of_blocks_tells_the_fields_of_each() -> None:
    for field, inner in (("proxy.model_host.deployments", "max_concurrency"), ("origins.action.providers", "models")):
        assert inner in {line.name for line in explain_field(field, None, {}).fields}


def test_layers_are_named_with_their_place(file: Path) -> None:
    explanation = explain_field("proxy.http_bind_port", file, {})
    assert shown(explanation)[:2] == [
        ("fleet.defaults.proxy.http_bind_port", "8001", 2),
        ("fleet.hosts.me.proxy.http_bind_port", "8002", 4),
    ]


def test_type_default_and_bounds() -> None:
    port = explain_field("proxy.http_bind_port", None, {})
    assert (port.type, port.default, port.bounds, port.required) == (
        "whole number",
        "8080",
        ("at least 1", "at most 65535"),
        False,
    )
    model = explain_field("proxy.model_host.deployments.model", None, {})
    assert (model.required, model.default) == (True, "")
    margin = explain_field("proxy.model_host.safety_margin", None, {})
    assert margin.bounds == ("at least 0", "less than 1")
    launch = explain_field("proxy.model_host.engines.llama_cpp.launch", None, {})
    assert launch.type == "one of binary, container, uv, wheel"
    assert explain_field("proxy.model_host.deployments.spread_by", None, {}).bounds == ("at most 8 entries",)
    assert explain_field("fleet.public", None, {}).default == "false"


def test_a_block_lists_its_fields() -> None:
    top = explain_field("", None, {})
    assert [each.name for each in top.fields] == ["required_sbctl", "include", "fleet", "secrets", "proxy", "origins"]
    deployment = explain_field("proxy.model_host.deployments", None, {})
    assert deployment.type == "map of name to a deployment"
    chat = explain_field("proxy.model_host.deployments.x", None, {})
    assert {each.name: each.default for each in chat.fields}["model"] == "required"


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("proxy.metrics", "not managed by sbctl"),
        ("origins.h.policies", "restricts access"),
        ("access_log", "kept in the file"),
    ],
)
def test_blocks_of_other_planes(file: Path, field: str, words: str) -> None:
    explanation = explain_field(field, file, {})
    assert not explanation.managed
    assert words in explanation.description
    assert len(explanation.written) == (1 if field == "proxy.metrics" else 0)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("proxy.model_host.deployments.chat.replica", 'did you mean "replicas"?'),
        ("prxy", 'did you mean "proxy"?'),
        ("proxy.http_bind_port.x", "fields: none"),
    ],
)
def test_a_field_that_nobody_knows(field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        explain_field(field, None, {})
    assert caught.value.code == "config.unknown_field"
    assert caught.value.next_step == words


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text("a: [\n")
    with pytest.raises(ConfigError):
        explain_field("proxy", path, {})


def test_an_empty_file_has_no_values(tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text("")
    assert explain_field("proxy", path, {}).written == ()


def test_as_json(file: Path) -> None:
    document = json.loads(json.dumps(explain_field("proxy.admin.password", file, {}).to_wire()))
    assert document["written"] == [
        {"layer": "proxy.admin.password", "value": "(secret)", "filename": str(file), "line": 9, "column": 21}
    ]
