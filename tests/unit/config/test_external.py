"""External providers in sb.yml: read only in a fallback chain behind a model of one's own; keys by reference, never in what is compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from providers.bundle.spec import desired as desired_bundles
from providers.runtime.spec import desired, fields_for_reader, restored
from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.config.external import key_file

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

LOCAL = "{name: local, provider_type: managed_model, deployment: chat, models: [chat]}"
OTHER = 'name: other, base_url: "https://api.example.com/v1"'


def file(provider: str, *, routing: str = "routing: fallback_chain", first: str = LOCAL, last: str = "") -> str:
    listed = ", ".join(each for each in (first, provider, last) if each)
    return f"""\
secrets: {{main: "env:MAIN_KEY"}}
proxy:
  model_host:
    deployments:
      chat: {{model: smollm2-135m-instruct, variant: q4_1, cold_start: fallback}}
origins:
  ai.internal:
    action:
      type: ai_proxy
      {routing}
      providers: [{listed}]
"""


@pytest.mark.parametrize("routing", ["routing: fallback_chain", "routing: {strategy: fallback_chain}"])
def test_a_provider_of_a_chain_is_compiled_with_its_keys_as_references(load_text: Load, routing: str) -> None:
    more = "api_key: '${OLD_KEY}', api_keys: ['secret:main', 'env:OLD_KEY'], models: [chat], model_map: {chat: big}"
    config = load_text(
        file(f"{{{OTHER}, {more}, no_prompt_training: true, weight: 3}}", routing=routing),
        {"MAIN_KEY": "canary-main", "OLD_KEY": "canary-old"},
        lambda value: f"{len(value):016x}",
    )
    (external,) = config.hosts["local"].origins["ai.internal"].externals
    assert (external.name, external.base_url, external.models, external.no_prompt_training) == (
        "other",
        "https://api.example.com/v1",
        {"chat": "big"},
        True,
    )
    assert [(key.reference, key.name) for key in external.keys] == [
        ("env:OLD_KEY", key_file("env:OLD_KEY")),
        ("env:MAIN_KEY", key_file("env:MAIN_KEY")),
    ]
    assert "canary" not in repr(config)
    assert not [note for note in config.notes if "routing" in note.message]


def test_H1_what_hosts_get_names_files_and_the_runtime_row_names_references(load_text: Load) -> None:
    text = file(f"{{{OTHER}, api_key: 'env:OLD_KEY', models: [chat]}}")
    (runtime,) = desired(load_text(text, {"OLD_KEY": "canary"}, lambda _value: "f" * 16))
    name = key_file("env:OLD_KEY")
    assert runtime.spec["config"]["provider_keys"] == [name]
    assert runtime.spec["provider_keys"] == {name: {"reference": "env:OLD_KEY", "fingerprint": "f" * 16}}
    assert fields_for_reader(runtime.spec)["provider_keys"] == {"env:OLD_KEY": "f" * 16}
    (bundle,) = desired_bundles(load_text(text))
    assert bundle.spec["origins"]["ai.internal"]["stand_ins"] == [
        {
            "name": "other",
            "base_url": "https://api.example.com/v1",
            "models": {"chat": "chat"},
            "keys": [name],
            "no_prompt_training": False,
        }
    ]
    back = restored(runtime.spec, {**runtime.spec, "provider_keys": {}})
    assert back["provider_keys"][name]["fingerprint"] is None, "an exchanged key does not come back"


SPARE = "{name: spare, provider_type: managed_model, deployment: small, models: [chat]}"
TWO = "      small: {model: smollm2-135m-instruct, variant: q4_1}\norigins:"


def two_deployments(providers: str, *, routing: str = "routing: fallback_chain") -> str:
    return file("", first=providers, routing=routing).replace("origins:", TWO, 1)


def test_another_deployment_of_the_host_stands_in_where_the_list_has_it(load_text: Load) -> None:
    external = f"{{{OTHER}, models: [chat]}}"
    for providers, names in (
        (f"{LOCAL}, {SPARE}, {external}", ["spare", "other"]),
        (f"{LOCAL}, {external}, {SPARE}", ["other", "spare"]),
    ):
        config = load_text(two_deployments(providers))
        origin = config.hosts["local"].origins["ai.internal"]
        assert [(route.model, route.deployment) for route in origin.routes] == [("chat", "chat")]
        assert [each.name for each in origin.stand_ins] == names
        assert not [note for note in config.notes if "routing" in note.message]
        (bundle,) = desired_bundles(config)
        written = {each["name"]: each for each in bundle.spec["origins"]["ai.internal"]["stand_ins"]}
        assert written["spare"] == {"name": "spare", "deployment": "small", "models": ["chat"]}


def test_a_chain_never_comes_back_to_who_was_asked(load_text: Load) -> None:
    again = LOCAL.replace("name: local", "name: again")
    origin = load_text(two_deployments(f"{LOCAL}, {SPARE}, {again}")).hosts["local"].origins["ai.internal"]
    assert [each.name for each in origin.stand_ins] == ["spare"]


def test_two_deployments_of_one_name_without_a_chain_are_refused(findings_of: Findings) -> None:
    (found,) = findings_of(two_deployments(f"{LOCAL}, {SPARE}", routing="routing: round_robin"))
    assert found.code == "config.conflict"
    assert "fallback_chain" in str(found.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (file(f"{{{OTHER}, models: [chat]}}", routing="routing: round_robin"), "not a managed_model"),
        (file("{name: other, api_key: '${UNSET}', models: [chat]}"), "not a managed_model"),
        (file(f"{{{OTHER}, models: [chat, more]}}"), 'no deployment of this origin answers "more"'),
    ],
    ids=["another_routing", "no_base_url", "a_name_of_its_own"],
)
def test_what_is_not_asked_is_said(load_text: Load, text: str, message: str) -> None:
    config = load_text(text)
    assert [note for note in config.notes if message in note.message]
    assert all("more" not in each.models for each in config.hosts["local"].origins["ai.internal"].externals)


@pytest.mark.parametrize(
    ("provider", "code", "words"),
    [
        (f"{{{OTHER}, models: [chat], api_key: sk-canary}}", "config.bad_value", "a reference, never the key"),
        (f"{{{OTHER}, models: [chat], api_keys: ['secret:none']}}", "config.unknown_secret", "none"),
        (f"{{{OTHER}, models: [chat], no_prompt_traning: true}}", "config.unknown_field", "no_prompt_traning"),
        (f"{{{OTHER}, models: [other]}}", "config.conflict", "stands in for nothing"),
        (f"{{{OTHER}}}", "config.conflict", "stands in for nothing"),
        (f"{{{OTHER}, models: [chat], provider_type: anthropic}}", "config.not_available", "is not OpenAI's"),
        ('{name: x, base_url: "http://api.example.com/v1", models: [chat]}', "config.bad_value", "only https"),
        ('{name: x, base_url: "https://u:canary@a.example/v1", models: [chat]}', "config.bad_value", "password"),
        ('{name: x, base_url: "https://a.example/v1?key=canary", models: [chat]}', "config.bad_value", "query"),
        ('{name: x, base_url: "https://0x7f.1/v1", models: [chat]}', "config.bad_value", "host"),
    ],
)
def test_what_cannot_be_meant_is_refused(findings_of: Findings, provider: str, code: str, words: str) -> None:
    found = [each for each in findings_of(file(provider)) if each.code == code]
    assert found
    assert any(words in f"{each.message} {each.label}" for each in found)
    assert "canary" not in " ".join(each.message for each in found)


def test_the_model_of_the_host_is_asked_first(findings_of: Findings) -> None:
    provider = f"{{{OTHER}, models: [chat]}}"
    found = findings_of(file(provider, first="", last=LOCAL))
    assert [each.code for each in found] == ["config.not_available"]
    assert "stands before the deployment" in found[0].message


def test_a_host_that_is_offline_sends_no_prompts_out(findings_of: Findings) -> None:
    text = file(f"{{{OTHER}, models: [chat]}}").replace("  model_host:\n", "  model_host:\n    offline: true\n")
    assert [(each.code, "is outside" in each.message) for each in findings_of(text)] == [("config.conflict", True)]
