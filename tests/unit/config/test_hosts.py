"""Hosts: ranges, layers, connections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sbctl.base.connection import Connection
from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.config.hosts import expand_ranges

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

KEY = "SHA256:" + "a" * 43


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu", ["gpu"]),
        ("gpu-[1-3]", ["gpu-1", "gpu-2", "gpu-3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1,3]-n[1-2]", ["r1-n1", "r1-n2", "r3-n1", "r3-n2"]),
        ("a[5]", ["a5"]),
        ("10.0.0.[21-22]", ["10.0.0.21", "10.0.0.22"]),
    ],
)
def test_ranges(pattern: str, names: list[str]) -> None:
    assert expand_ranges(pattern) == names


@pytest.mark.parametrize(
    "pattern", ["a[", "a]", "a[]", "a[1-]", "a[-1]", "a[3-1]", "a[1,,2]", "a[1-99999]", "a[1-100]b[1-101]", "a[1-2-3]"]
)
def test_ranges_that_make_no_sense(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"range"):
        expand_ranges(pattern)


def test_without_hosts_there_is_this_machine(load_text: Load, minimal: str) -> None:
    config = load_text(minimal)
    assert list(config.hosts) == ["local"]
    host = config.hosts["local"]
    assert host.connection == Connection("local")
    assert host.roles == {"gateway", "worker"}
    assert host.delivery == "pull"
    assert host.data_address == "127.0.0.1"


def test_defaults_apply_to_this_machine_too(load_text: Load, minimal: str) -> None:
    fleet = "fleet: {defaults: {keep: [weights], delivery: push, python: /opt/py/bin/python3, labels: {a: b}, proxy: {http_bind_port: 8123}}}\n"
    host = load_text(fleet + minimal).hosts["local"]
    assert (host.keep_weights, host.delivery, host.python, host.labels) == (
        True,
        "push",
        "/opt/py/bin/python3",
        {"a": "b"},
    )
    assert host.proxy.http_bind_port == 8123
    assert host.deployments["chat"].delivery == "push"


def test_what_may_fetch_nothing_is_sent_everything(load_text: Load, minimal: str) -> None:
    fleet = "fleet: {defaults: {proxy: {model_host: {offline: true}}}}\n"
    host = load_text(fleet + minimal).hosts["local"]
    assert (host.delivery, host.deployments["chat"].delivery, host.model_host.offline) == ("push", "push", True)


FLEET = f"""\
fleet:
  name: production
  state: {{backend: local}}
  runtime: {{version: 0.1.0, python: /usr/bin/python3.11}}
  ssh: {{user: ops, identity_file: keys/id}}
  defaults: {{labels: {{site: x, tier: low}}, ssh: {{port: 2222}}}}
  groups:
    l4: {{roles: [worker], labels: {{tier: high, accelerator: l4}}, delivery: push, ssh: {{user: gpu}}, proxy: {{http_bind_port: 8001}}}}
  hosts:
    me: {{address: local, proxy: {{http_bind_port: 8002}}}}
    "gpu-[1-2]":
      address: "10.0.0.[1-2]"
      group: l4
      host_key: ["{KEY}", "ssh-ed25519 {"A" * 68}"]
      labels: {{zone: a}}
      data_address: gpu.example
      ssh: {{identity_file: ~/.ssh/other}}
"""


def test_host_over_group_over_defaults_over_global(load_text: Load, minimal: str, tmp_path: object) -> None:
    config = load_text(FLEET + minimal)
    assert config.fleet_name == "production"
    assert config.runtime_version == "0.1.0"
    assert list(config.hosts) == ["me", "gpu-1", "gpu-2"]
    me, first, second = config.hosts.values()
    assert me.connection == Connection("local")
    assert me.labels == {"site": "x", "tier": "low"}
    assert me.python == "/usr/bin/python3.11"
    assert me.proxy.http_bind_port == 8002
    assert first.connection == Connection("ssh", "10.0.0.1", 2222, "gpu", (KEY,), "~/.ssh/other")
    assert second.connection.host_keys[0].startswith("ssh-ed25519 ")
    assert first.labels == {"site": "x", "tier": "high", "accelerator": "l4", "zone": "a"}
    assert (first.roles, first.delivery, first.data_address) == (frozenset({"worker"}), "push", "gpu.example")
    assert first.proxy.http_bind_port == 8001


def test_a_relative_identity_file_starts_at_the_directory_of_the_file(
    load_text: Load, minimal: str, tmp_path: object
) -> None:
    fleet = f"fleet: {{ssh: {{identity_file: keys/id}}, hosts: {{a: {{address: 10.0.0.1, host_key: '{KEY}'}}}}}}\n"
    connection = load_text(fleet + minimal).hosts["a"].connection
    assert connection.identity_file == f"{tmp_path}/keys/id"
    assert (connection.user, connection.port) == ("root", 22)


def host(fields: str, name: str = "a") -> str:
    return f"fleet:\n  hosts:\n    '{name}': {{{fields}}}\n"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (host("address: local", "local"), "config.reserved_name", '"local" is a reserved name'),
        (host("address: local", "cluster"), "config.reserved_name", '"cluster" is a reserved name'),
        (host("address: 10.0.0.1"), "config.missing_host_key", "no pinned host key"),
        (host("address: 10.0.0.1, host_key: abc"), "config.bad_value", "a host key"),
        (host(f"address: '10.0.0.[1-2]', host_key: '{KEY}'"), "config.bad_range", "as many of each"),
        (
            host(f"address: '10.0.0.[1-3]', host_key: ['{KEY}', '{KEY}']", "a[1-3]"),
            "config.bad_range",
            "as many of each",
        ),
        (
            host(f"address: '10.0.0.[1-3]', data_address: 'd[1-2]', host_key: '{KEY}'", "a[1-3]"),
            "config.bad_range",
            "2 data addresses",
        ),
        (host(f"address: '10.0.0.[1-]', host_key: '{KEY}'"), "config.bad_range", "a range is written"),
        (host(f"address: '10.0.0.[1-2]', host_key: '{KEY}'", "a[2-1]"), "config.bad_range", "counts upwards"),
        (host("address: 'a b'"), "config.bad_value", "a host name or an IP address"),
        (host("address: local, group: nope"), "config.unknown_group", 'no group "nope"'),
        (host("address: local", "a b"), "config.bad_key", "a host name of"),
        (host("address: local, roles: []"), "config.out_of_range", "at least 1 entries"),
        (host("address: local, labels: {a: 1}"), "config.wrong_type", "text"),
        (host("address: local, vars: {a-b: 1}"), "config.bad_key", "does not start with a digit"),
        (host("address: local, vars: {a: [1]}"), "config.wrong_type", "text"),
        (host("address: local, vars: {1a: 1}"), "config.bad_key", "does not start with a digit"),
        (host("{}")[:-1].replace("{{}}", "{}") + "\n", "config.missing_field", 'a host needs "address"'),
        (host(f"address: '10.0.0.[1,2]', host_key: '{KEY}'", "x,[1-2]"), "config.bad_key", "host name"),
    ],
)
def test_findings(findings_of: Findings, minimal: str, text: str, code: str, words: str) -> None:
    found = findings_of(text + minimal)
    assert any(each.code == code and words in each.message for each in found), found


def test_two_hosts_at_one_address_or_of_one_name(findings_of: Findings, minimal: str) -> None:
    fleet = f"""\
fleet:
  hosts:
    a: {{address: 10.0.0.1, host_key: "{KEY}"}}
    b: {{address: 10.0.0.1, host_key: "{KEY}"}}
    "b[1-2]": {{address: "10.0.1.[1-2]", host_key: "{KEY}"}}
    b1: {{address: 10.0.2.1, host_key: "{KEY}"}}
    c: {{address: local}}
    d: {{address: local}}
"""
    assert [each.code for each in findings_of(fleet + minimal)] == [
        "config.duplicate_address",
        "config.duplicate_host",
        "config.duplicate_address",
    ]


def test_ipv6_addresses_are_no_ranges(load_text: Load, minimal: str) -> None:
    fleet = host(f"address: 'fe80::1', host_key: '{KEY}'")
    assert load_text(fleet + minimal).hosts["a"].connection.address == "fe80::1"


def test_a_single_host_may_prove_itself_with_any_key_of_a_list(load_text: Load, minimal: str) -> None:
    other = "SHA256:" + "b" * 43
    config = load_text(host(f"address: 10.0.0.1, host_key: ['{KEY}', '{other}']") + minimal)
    assert config.hosts["a"].connection.host_keys == (KEY, other)


def test_data_addresses_have_ranges_too(load_text: Load, minimal: str) -> None:
    fields = f"address: '10.0.0.[1-2]', data_address: 'gpu-[1-2].example', host_key: '{KEY}'"
    hosts = load_text(host(fields, "n[1-2]") + minimal).hosts
    assert [each.data_address for each in hosts.values()] == ["gpu-1.example", "gpu-2.example"]


@pytest.mark.flow
def test_a_fleet_has_an_end(findings_of: Findings, minimal: str) -> None:
    entries = "".join(f"    'r{n}-[1-5000]': {{address: 'r{n}.[1-5000]', host_key: '{KEY}'}}\n" for n in range(3))
    found = findings_of("fleet:\n  hosts:\n" + entries + minimal)
    assert [each.code for each in found] == ["config.too_many_hosts"]
