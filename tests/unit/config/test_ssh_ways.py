"""ssh settings: which login each host gets, through which hosts, and what is wrong with a way that leads nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

KEY = "SHA256:" + "a" * 43
OTHER = "SHA256:" + "b" * 43


def _file(ssh: str, hosts: str = "", *, more: str = "", top: str = "") -> str:
    lines = hosts or f"a: {{address: 10.0.0.1, host_key: '{KEY}'}}"
    return f"fleet:\n  ssh: {ssh}\n{more}  hosts:\n    {lines.replace(chr(10), chr(10) + '    ')}\n{top}"


def _connections(load_text: Load, minimal: str, text: str) -> dict[str, Connection]:
    return {name: host.connection for name, host in load_text(text + minimal).hosts.items()}


BASTION = f"bastion: {{address: bastion.corp, user: hop, host_key: '{OTHER}'}}"


def test_an_unmanaged_jump_takes_the_fleets_key_and_its_own_user(load_text: Load, minimal: str) -> None:
    ssh = f"{{user: ops, port: 2222, identity_file: ~/.ssh/id, jump: bastion, jumps: {{{BASTION}}}}}"
    found = _connections(load_text, minimal, _file(ssh))["a"]
    assert (found.user, found.port, found.host_keys) == ("ops", 2222, (KEY,))
    assert found.jumps == (Jump("bastion", "bastion.corp", 22, "hop", (OTHER,), "~/.ssh/id"),)


def test_a_chain_is_in_the_order_of_the_way(load_text: Load, minimal: str) -> None:
    inner = f"inner: {{host_key: '{OTHER}', jump: bastion, port: 99, agent_key: me@corp}}"
    found = _connections(
        load_text, minimal, _file(f"{{identity_file: /k, jump: inner, jumps: {{{BASTION}, {inner}}}}}")
    )["a"]
    assert [(jump.name, jump.address, jump.port, jump.identity_file, jump.agent_key) for jump in found.jumps] == [
        ("bastion", "bastion.corp", 22, "/k", ""),
        ("inner", "inner", 99, "", "me@corp"),
    ]


def test_a_managed_jump_is_reached_as_the_host_it_is(load_text: Load, minimal: str) -> None:
    hosts = f"""gw: {{address: 10.0.0.1, host_key: '{OTHER}', ssh: {{user: hop, port: 23, jump: none}}}}
a: {{address: 10.0.0.2, host_key: '{KEY}'}}
b: {{address: 10.0.0.3, host_key: '{KEY}', ssh: {{jump: none}}}}"""
    found = _connections(load_text, minimal, _file("{identity_file: /k, jump: gw}", hosts))
    assert found["gw"].jumps == found["b"].jumps == ()
    assert found["a"].jumps == (Jump("gw", "10.0.0.1", 23, "hop", (OTHER,), "/k"),)
    assert found["a"].jumps[0] == found["gw"].path("gw")[0]


def test_a_host_that_inherits_itself_as_its_jump_is_reached_directly(load_text: Load, minimal: str) -> None:
    hosts = f"gw: {{address: 10.0.0.1, host_key: '{KEY}'}}\na: {{address: 10.0.0.2, host_key: '{KEY}'}}"
    found = _connections(load_text, minimal, _file("{jump: gw}", hosts))
    assert found["gw"].jumps == ()
    assert [jump.name for jump in found["a"].jumps] == ["gw"]


def test_the_same_private_address_behind_two_jumps_is_two_machines(load_text: Load, minimal: str) -> None:
    jumps = f"{{jumps: {{x: {{host_key: '{KEY}'}}, y: {{host_key: '{KEY}'}}}}}}"
    hosts = "\n".join(
        f"{name}: {{address: 10.0.0.1, host_key: '{KEY}', ssh: {{jump: {jump}}}}}" for name, jump in ("ax", "by")
    )
    assert len(_connections(load_text, minimal, _file(jumps, hosts))) == 2


def test_a_layer_that_names_a_key_replaces_all_that_weaker_ones_say_of_keys(load_text: Load, minimal: str) -> None:
    ssh = "{identity_file: /fleet, certificate_file: /fleet-cert, passphrase: 'env:P', user: ops}"
    hosts = f"""a: {{address: 10.0.0.1, host_key: '{KEY}', ssh: {{agent_key: me@corp}}}}
b: {{address: 10.0.0.2, host_key: '{KEY}', ssh: {{user: gpu}}}}
c: {{address: 10.0.0.3, host_key: '{KEY}', ssh: {{identity_file: own}}}}"""
    found = _connections(load_text, minimal, _file(ssh, hosts))
    keys = {
        name: (each.identity_file.rpartition("/")[2], each.certificate_file, each.passphrase, each.agent_key)
        for name, each in found.items()
    }
    assert keys == {
        "a": ("", "", "", "me@corp"),
        "b": ("fleet", "/fleet-cert", "env:P", ""),
        "c": ("own", "", "", ""),
    }


@pytest.mark.parametrize(
    ("ssh", "expected"),
    [
        ("{become: sudo}", ("", "")),
        ("{user: ops, become: sudo}", ("sudo", "")),
        ("{user: ops, become: {password: prompt}}", ("sudo", "prompt")),
        ("{user: ops, become: {method: sudo, password: 'secret:pw'}}", ("sudo", "env:PW")),
        ("{user: ops, become: {password: 'file:/etc/pw'}}", ("sudo", "file:/etc/pw")),
        ("{user: ops, become: none}", ("", "")),
    ],
)
def test_become(load_text: Load, minimal: str, ssh: str, expected: tuple[str, str]) -> None:
    found = _connections(load_text, minimal, _file(ssh, top="secrets: {pw: 'env:PW'}\n"))["a"]
    assert (found.become, found.become_password) == expected


def test_a_secret_file_is_recorded_by_where_it_is_so_that_destroy_needs_no_sb_yml(
    load_text: Load, minimal: str, tmp_path: Path
) -> None:
    found = _connections(load_text, minimal, _file("{user: o, become: {password: 'file:pw.txt'}}"))["a"]
    assert found.become_password == f"file:{tmp_path}/pw.txt"


def test_another_way_is_another_configuration(load_text: Load, minimal: str) -> None:
    texts = ["{}", "{user: o}", "{user: o, become: sudo}", f"{{jump: bastion, jumps: {{{BASTION}}}}}", "{agent_key: x}"]
    digests = {load_text(_file(text) + minimal).digest for text in texts}
    assert len(digests) == len(texts)


CIRCLE = f"x: {{host_key: '{KEY}', jump: y}}, y: {{host_key: '{KEY}', jump: x}}"


@pytest.mark.parametrize(
    ("text", "code", "words", "line"),
    [
        (_file(f"{{jump: x, jumps: {{{CIRCLE}}}}}"), "config.jump_cycle", "x → y → x", 2),
        (
            _file("{}", f"a: {{address: 10.0.0.1, host_key: '{KEY}', ssh: {{jump: b}}}}\n"
                  f"b: {{address: 10.0.0.2, host_key: '{KEY}', ssh: {{jump: a}}}}"),
            "config.jump_cycle", "a → b → a", 5,
        ),
        (_file("{}", f"a: {{address: 10.0.0.1, host_key: '{KEY}', ssh: {{jump: a}}}}"), "config.jump_cycle", "a → a", 4),
        (_file(f"{{jump: bastian, jumps: {{{BASTION}}}}}"), "config.unknown_jump", 'no jump "bastian"', 2),
        (_file("{}", f"a: {{address: 10.0.0.1, host_key: '{KEY}', ssh: {{jump: me}}}}\nme: {{address: local}}"),
         "config.unknown_jump", "is this machine", 4),
        (_file("{jump: x, jumps: {x: {user: hop}}}"), "config.missing_host_key", '"x" has no pinned', 2),
        (_file(f"{{jump: a, jumps: {{a: {{host_key: '{KEY}'}}}}}}", f"a: {{address: 10.0.0.1, host_key: '{KEY}'}}\n"
               f"b: {{address: 10.0.0.2, host_key: '{KEY}'}}"), "config.duplicate_host", "a host and a jump", 2),
        (_file("{identity_file: /k, agent_key: x}"), "config.rule", "two keys", 2),
        (_file("{agent_key: x, passphrase: prompt}"), "config.rule", "needs no passphrase", 2),
        (_file("{user: o, become: {password: 'secret:pw'}}"), "config.unknown_secret", 'no secret "pw"', 2),
        (_file("{user: o, become: {password: 'secret:pw'}}", top="secrets: {pw: 'node-file:/x'}\n"), "config.rule", "file on a host", 2),
        (_file("{identity_file: /k, passphrase: hunter2}"), "config.bad_value", "never the secret itself", 2),
        (_file("{config: nowhere}"), "config.ssh_config_unreadable", "nowhere cannot be read", 2),
    ],
)  # fmt: skip
def test_ways_that_lead_nowhere(
    findings_of: Findings, minimal: str, text: str, code: str, words: str, line: int
) -> None:
    found = findings_of(text + minimal)
    assert [(each.code, words in each.message, each.span and each.span.line) for each in found] == [(code, True, line)]
    assert not any("hunter2" in str(each.message) for each in found)


# values of an ssh_config

CONFIG = """\
Host gpu
  HostName 10.1.0.1
  User theirs
  Port 2222
  IdentityFile ~/.ssh/theirs
  ProxyJump door
Host door
  HostName door.corp
  User doorman
Host odd
  ProxyCommand nc %h %p
Match exec "touch owned"
  User root
"""


def _with_config(tmp_path: Path, rest: str = "") -> str:
    (tmp_path / "ssh_config").write_text(CONFIG)
    return f"{{config: ssh_config{rest}}}"


DOOR = f", jumps: {{door: {{host_key: '{OTHER}'}}}}"
GPU = f"a: {{address: gpu, host_key: '{KEY}'}}"


def test_values_are_taken_only_where_the_file_is_named(load_text: Load, minimal: str, tmp_path: Path) -> None:
    text = _file(_with_config(tmp_path, DOOR), GPU)
    found = _connections(load_text, minimal, text)["a"]
    assert (found.address, found.port, found.user, found.identity_file) == (
        "10.1.0.1", 2222, "theirs", "~/.ssh/theirs",
    )  # fmt: skip
    assert found.jumps == (Jump("door", "door.corp", 22, "doorman", (OTHER,), ""),)
    assert "config.ssh_config_ignored" in {note.code for note in load_text(text + minimal).notes}
    plain = _connections(load_text, minimal, _file("{}", GPU))["a"]
    assert (plain.address, plain.port, plain.user, plain.identity_file, plain.jumps) == ("gpu", 22, "root", "", ())


def test_sb_yml_wins_over_an_ssh_config(load_text: Load, minimal: str, tmp_path: Path) -> None:
    ssh = _with_config(tmp_path, ", user: ours, port: 7, identity_file: /ours, jump: none")
    found = _connections(load_text, minimal, _file(ssh, GPU))["a"]
    assert (found.address, found.port, found.user, found.identity_file, found.jumps) == (
        "10.1.0.1",
        7,
        "ours",
        "/ours",
        (),
    )


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [("gpu", "config.unknown_jump", 'through "door"'), ("odd", "config.ssh_config_command", "line 11 of ssh_config")],
)
def test_E14_what_an_ssh_config_would_run_or_not_pin_is_an_error(
    findings_of: Findings, minimal: str, tmp_path: Path, address: str, code: str, words: str
) -> None:
    text = _file(_with_config(tmp_path), f"a: {{address: {address}, host_key: '{KEY}'}}")
    found = [each for each in findings_of(text + minimal) if each.severity == "error"]
    assert [(each.code, words in each.message) for each in found] == [(code, True)]


def test_a_jump_of_ones_own_makes_a_proxy_command_harmless(load_text: Load, minimal: str, tmp_path: Path) -> None:
    text = _file(_with_config(tmp_path, DOOR + ", jump: door"), f"a: {{address: odd, host_key: '{KEY}'}}")
    assert [jump.name for jump in _connections(load_text, minimal, text)["a"].jumps] == ["door"]
