"""SBproxy's older way to host a model: read as what it means, refused where it has no like, and rewritten without losing a comment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError
from sbctl.config.legacy_migration import migrated
from sbctl.config.legacy_serve import lowered
from sbctl.config.load import load
from sbctl.config.reader import parse_yaml

LEGACY = """\
# The gateway of the lab.
proxy:
  http_bind_port: 8081   # not 8080
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        # Runs here.
        - name: local
          models: [qwen, small]
          default_model: small
          serve:
            # One disk for all.
            cache_dir: /data/models
            max_concurrent_requests: 3
            models:
              - model: qwen2.5-0.5b-instruct   # the big one
                name: qwen
                variant: q4_k_m
                keep_alive: 1h30m
              - {model: smollm2-135m-instruct, name: small, variant: q4_1, pinned: true}
        # Somebody else's.
        - name: cloud
          api_key: ${CLOUD_KEY}
  other.internal:
    action:
      type: ai_proxy
      providers:
        - {name: local, serve: {models: [{model: qwen2.5-0.5b-instruct, name: qwen, variant: q4_k_m, keep_alive: 1h30m}],
           max_concurrent_requests: 3}}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "sb.yml"
    path.write_text(text)
    return path


def test_entries_become_deployments_and_equal_ones_one(tmp_path: Path) -> None:
    config = load(write(tmp_path, LEGACY), environ={})
    host = config.hosts["local"]
    big, small = sorted(host.deployments.values(), key=lambda each: each.artifact.model)
    assert (big.artifact.variant, big.model.keep_alive_secs, big.max_concurrency) == ("q4_k_m", 5400, 3)
    assert big.id.startswith("legacy-local-qwen2.5-0.5b-instruct-")
    assert host.model_host.cache.directory == "/data/models"
    routes = {route.model: route.deployment for route in host.origins["localhost"].routes}
    assert routes == {"qwen": big.id, "small": small.id}
    assert host.origins["localhost"].default_model == "small"
    assert [route.deployment for route in host.origins["other.internal"].routes] == [big.id]
    said = [note.message for note in config.notes]
    assert any("sbctl migrate rewrites it" in each for each in said)
    assert any(each.startswith("pinned is left out") for each in said)


def test_a_migrated_file_means_the_same_and_keeps_every_comment(tmp_path: Path) -> None:
    before = load(write(tmp_path, LEGACY), environ={})
    new = migrated(parse_yaml(LEGACY.encode(), "sb.yml"))
    assert new is not None
    after = load(write(tmp_path, new.text), environ={})
    assert after.digest == before.digest
    assert list(after.hosts["local"].deployments) == list(before.hosts["local"].deployments) == list(new.deployments)
    for note in (
        "The gateway of the lab.",
        "not 8080",
        "Runs here.",
        "One disk for all.",
        "the big one",
        "Somebody else's.",
    ):
        assert new.text.count(f"# {note}") == 1, note
    lines = [line.strip() for line in new.text.splitlines()]
    assert lines[lines.index("# Somebody else's.") + 1] == "- name: cloud"
    assert migrated(parse_yaml(new.text.encode(), "sb.yml")) is None


def test_a_finding_points_to_the_entry_that_somebody_wrote(tmp_path: Path) -> None:
    text = LEGACY.replace("variant: q4_k_m\n", "variant: q4_k_n\n", 1)
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environ={})
    finding = next(each for each in caught.value.diagnostics if each.code == "catalog.unknown_variant")
    assert finding.span is not None
    assert text.splitlines()[finding.span.line - 1].strip() == "variant: q4_k_n"


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("pinned: true", "speculative: {method: ngram}"), "config.not_available", "speculative"),
        (("pinned: true", "lora_adapters: [{name: a, source: b}]"), "config.not_available", "lora"),
        (("pinned: true", "gguf_file: x.gguf"), "config.not_available", "gguf_file"),
        (("pinned: true", "keepalive: 5m"), "config.unknown_field", "keepalive"),
        (("keep_alive: 1h30m\n", "keep_alive: a while\n"), "config.bad_value", "a duration"),
        (("model: smollm2-135m-instruct", "model: 'hf:Org/Repo'"), "config.not_available", "not pinned by digests"),
        (("cache_dir: /data/models", "cache_directory: /x"), "config.unknown_field", "cache_directory"),
        (("cache_dir: /data/models", "keep_alive: 30m"), "config.unknown_field", "keep_alive"),
        (("cache_dir: /data/models", "eviction: never"), "config.not_available", "eviction: never"),
        (("name: local, serve: {", "name: local, serve: {cache_dir: /other, "), "config.conflict", "a host has one"),
        (
            ("  http_bind_port: 8081 ", "  model_host: {cache: {directory: /mine}}\n  http_bind_port: 8081 "),
            "config.conflict",
            "a host has one",
        ),
    ],
)
def test_what_has_no_like_or_is_said_in_two_ways_refuses_the_file(
    tmp_path: Path, change: tuple[str, str], code: str, words: str
) -> None:
    assert change[0] in LEGACY
    text = LEGACY.replace(*change, 1)
    for read in (
        lambda: load(write(tmp_path, text), environ={}),
        lambda: migrated(parse_yaml(text.encode(), "sb.yml")),
    ):
        with pytest.raises(ConfigError) as caught:
            read()
        assert [each for each in caught.value.diagnostics if each.code == code and words in each.message]


def test_ids_follow_from_what_is_said_and_weights_of_the_catalog_that_come_at_start_are_warm() -> None:
    value = parse_yaml(LEGACY.encode(), "sb.yml").value
    first, again = lowered(value), lowered(value)
    assert first.value == again.value
    warm = lowered(value, lambda _: "on_boot").value["proxy"]["model_host"]["deployments"]
    assert all(each["warm"] and each["pull"] == "on_boot" for each in warm.values())
    assert list(warm) == list(first.deployments)
    assert parse_yaml(LEGACY.encode(), "sb.yml").value == value
