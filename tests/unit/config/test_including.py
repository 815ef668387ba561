"""`include:`: several files as one, every value with its file and line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.config.explain import explain_field
from sbctl.config.load import load

MINIMAL = """\
proxy:
  model_host:
    deployments:
      chat: {model: smollm2-135m-instruct, variant: q4_1}
origins:
  localhost:
    action:
      type: ai_proxy
      providers: [{name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}]
"""
PIN = "SHA256:" + "a" * 43


def host(name: str, address: str, extra: str = "") -> str:
    return f"fleet:\n  hosts:\n    {name}: {{address: {address}, host_key: '{PIN}'{extra}}}\n"


def write(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "sb.yml"


def loaded(directory: Path, files: Mapping[str, str]) -> CompiledConfig:
    return load(write(directory, files), environ={})


def findings(directory: Path, files: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, files)
    return caught.value.diagnostics


def said(directory: Path, found: Diagnostic) -> tuple[str, str]:
    return found.code, str(found.span).removeprefix(f"{directory}/")


def test_hosts_groups_and_models_may_come_from_several_files(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        {
            "sb.yml": "include: [hosts/*.yml, shared/groups.yml, models.yml]\nfleet: {ssh: {user: ops}}\n",
            "hosts/a.yml": host("gpu-a", "10.0.0.1", ", group: l4"),
            "hosts/b.yml": host("gpu-b", "10.0.0.2"),
            "hosts/README": "not a file of ours",
            "shared/groups.yml": "include: [more/*.yml]\nfleet: {groups: {l4: {labels: {accelerator: l4}}}}\n",
            "shared/more/ssh.yml": "fleet: {ssh: {port: 2222}}\n",
            "models.yml": MINIMAL,
        },
    )
    assert list(config.hosts) == ["gpu-a", "gpu-b"]
    assert config.hosts["gpu-a"].labels == {"accelerator": "l4"}
    assert (config.hosts["gpu-b"].connection.user, config.hosts["gpu-b"].connection.port) == ("ops", 2222)
    assert set(config.hosts["gpu-a"].deployments) == {"chat"}


def test_it_means_the_same_as_one_file(tmp_path: Path) -> None:
    parts = {
        "sb.yml": "include: [a.yml]\n" + MINIMAL,
        "a.yml": host("gpu-a", "10.0.0.1") + "  name: f\n  ssh: {identity_file: keys/id}\n",
    }
    whole = loaded(tmp_path, {"sb.yml": parts["a.yml"] + MINIMAL})
    assert loaded(tmp_path, parts).digest == whole.digest
    moved = {**parts, "a.yml": parts["a.yml"].replace("10.0.0.1", "10.0.0.2")}
    assert loaded(tmp_path, moved).digest != whole.digest


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("fleet:\n  hosts:\n    gpu-a:\n      adress: 10.0.0.1\n", "config.unknown_field", "part.yml:4:7"),
        ("fleet:\n  ssh: {prot: 22}\n", "config.unknown_field", "part.yml:2:9"),
        ("flete: {}\n", "config.unknown_field", "part.yml:1:1"),
        ("fleet: {defaults: {proxy: {http_bind_port: x}}}\n", "config.wrong_type", "part.yml:1:44"),
        ("fleet: {defaults: {labels: {a: '${NOPE}'}}}\n", "config.unset_variable", "part.yml:1:32"),
        ("a: &x 1\n", "yaml.alias_refused", "part.yml:1:4"),
        ("fleet: [\n", "yaml.syntax", "part.yml:2:1"),
        ("- 1\n", "config.not_a_map", "sb.yml:1:11"),
        ("include: x\n", "config.wrong_type", "part.yml:1:10"),
        ("include: [nope.yml]\n", "file.missing", "part.yml:1:11"),
        ("include: [part.yml]\n", "config.include_cycle", "part.yml:1:11"),
        ("include: [sb.yml]\n", "config.include_cycle", "part.yml:1:11"),
    ],
)
def test_what_is_wrong_in_an_included_file_has_its_place(tmp_path: Path, text: str, code: str, place: str) -> None:
    found = findings(tmp_path, {"sb.yml": "include: [part.yml]\n" + MINIMAL, "part.yml": text})
    assert (code, place) in [said(tmp_path, each) for each in found]


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        (host("gpu-a", "10.0.0.1"), host("gpu-a", "10.0.0.2"), "part.yml:3:5"),
        ("fleet: {ssh: {user: a}}\n", "fleet: {ssh: {user: a}}\n", "part.yml:1:15"),
        ("fleet: {defaults: {labels: {a: b}}}\n", "fleet: {defaults: {labels: {c: d}}}\n", "part.yml:1:9"),
        ("fleet:\n", "fleet: {name: x}\n", "part.yml:1:1"),
        ("other: 1\n", "other: {}\n", "part.yml:1:1"),
    ],
)
def test_what_two_files_write_is_an_error_with_both_places(tmp_path: Path, first: str, second: str, place: str) -> None:
    found = findings(tmp_path, {"sb.yml": "include: [part.yml]\n" + first + MINIMAL, "part.yml": second})
    (twice,) = (each for each in found if each.code == "config.duplicate_entry")
    assert said(tmp_path, twice) == ("config.duplicate_entry", place)
    assert f"{tmp_path}/sb.yml:" in twice.notes[0]


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("../other.yml", "config.include_outside"),
        ("/etc/passwd", "config.include_outside"),
        ("~/x.yml", "config.include_outside"),
        ("link.yml", "config.include_outside"),
        ("linked/*.yml", "config.include_outside"),
        ("nope/*.yml", "config.include_empty"),
        ("sb.y?l", "config.include_empty"),
        ("${HOME}/x.yml", "config.bad_value"),
        ("hosts", "file.not_regular"),
        ("gone.yml", "file.missing"),
    ],
)
def test_A16_what_may_not_be_included(tmp_path: Path, pattern: str, code: str) -> None:
    outside = tmp_path / "outside"
    here = tmp_path / "here"
    write(outside, {"secret.yml": "canary-77aa: 1\n"})
    write(here, {"hosts/a.yml": ""})
    (tmp_path / "other.yml").write_text("canary-77aa: 1\n")
    (here / "link.yml").symlink_to(outside / "secret.yml")
    (here / "linked").symlink_to(outside)
    found = findings(here, {"sb.yml": f"include: ['{pattern}']\n" + MINIMAL})
    assert [each.code for each in found] == [code]
    assert "canary" not in str(found)
    assert said(here, found[0])[1] == "sb.yml:1:11"


def test_links_inside_the_directory_are_followed_and_a_file_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, {"real/a.yml": host("gpu-a", "10.0.0.1")})
    (tmp_path / "link.yml").symlink_to(tmp_path / "real" / "a.yml")
    config = loaded(tmp_path, {"sb.yml": "include: [link.yml, 'real/*.yml', real/a.yml]\n" + MINIMAL})
    assert list(config.hosts) == ["gpu-a"]


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yml")
    assert findings(tmp_path, {"sb.yml": "include: [pipe.yml]\n" + MINIMAL})[0].code == "file.not_regular"


def test_files_include_each_other_only_so_deep(tmp_path: Path) -> None:
    files = {f"f{number}.yml": f"include: [f{number + 1}.yml]\n" for number in range(20)}
    found = findings(tmp_path, {"sb.yml": "include: [f0.yml]\n" + MINIMAL, **files})
    assert [each.code for each in found] == ["config.include_too_deep"]


def test_only_so_many_files_are_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbctl.config.including.INCLUDE_MAX_FILES", 3)
    files = {f"h/{number}.yml": "" for number in range(9)}
    found = findings(tmp_path, {"sb.yml": "include: ['h/*.yml']\n" + MINIMAL, **files})
    assert [each.code for each in found] == ["config.include_too_large"]


def test_secrets_of_an_included_file_are_masked_in_what_is_shown(tmp_path: Path) -> None:
    part = "proxy:\n  admin: {password: hunter2-canary, port: x}\n"
    found = findings(tmp_path, {"sb.yml": "include: [part.yml]\n", "part.yml": part})
    lines = [each.span.source_line for each in found if each.span is not None]
    assert any("port: x" in line for line in lines)
    assert "canary" not in " ".join(lines)


def test_explain_finds_values_in_every_file(tmp_path: Path) -> None:
    path = write(tmp_path, {"sb.yml": "include: [part.yml]\n", "part.yml": "fleet: {name: prod, ssh: {port: 2022}}\n"})
    (written,) = explain_field("fleet.ssh.port", path, {}).written
    assert (written.value, str(written.span)) == ("2022", f"{tmp_path}/part.yml:1:33")


def test_A16_a_key_that_is_included_by_mistake_is_not_shown(tmp_path: Path) -> None:
    for text in ("sk-canary-77aa", "-----BEGIN KEY-----\ncanary-77aa: [\n"):
        (found,) = findings(tmp_path, {"sb.yml": "include: [openai.key]\n" + MINIMAL, "openai.key": text})
        assert said(tmp_path, found) == ("config.not_a_map", "sb.yml:1:11")
        assert "canary" not in str(found)
