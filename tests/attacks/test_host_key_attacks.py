"""Impostors: abuse cases E1 and E2 from the command line down. No key is trusted by plan or apply, and none is pinned that nobody vouched for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from sbctl.cli.main import main
from sbctl.config.host_lock import read_host_lock
from tests.simulators.hostile_ssh import HostileSsh, prints

ORIGIN = """\
proxy: {model_host: {deployments: {chat: {model: smollm2-135m-instruct, variant: q4_1}}}}
origins: {ai.internal: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}
"""
ESCAPES = b"\x1b]0;owned\x07\x1b[31mred\xe2\x80\xae\xff"

Sbctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileSsh]:
    with HostileSsh(tmp_path) as running:
        yield running


@pytest.fixture
def sbctl(
    tmp_path: Path, hostile: HostileSsh, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Sbctl:
    """A fleet of one host that may not be who it says."""
    (tmp_path / "fleet").mkdir()
    monkeypatch.chdir(tmp_path / "fleet")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SBCTL_NODE_PREFIX", str(tmp_path / "node"))
    host = f"{{address: 127.0.0.1, ssh: {{port: {hostile.port}, user: ops, identity_file: {hostile.identity_file}}}}}"
    Path("sb.yml").write_text(f"fleet:\n  hosts:\n    gpu-a: {host}\n{ORIGIN}")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return run


def key_of(hostile: HostileSsh) -> tuple[str, str]:
    return hostile.host_key.get_name(), hostile.host_key.get_base64()


def known_hosts(hostile: HostileSsh, *more: str) -> Path:
    path = Path("known_hosts")
    path.write_text("".join(f"{line}\n" for line in (f"[127.0.0.1]:{hostile.port} {' '.join(key_of(hostile))}", *more)))
    return path


@pytest.mark.parametrize("command", [("plan",), ("apply", "--yes"), ("drift",), ("validate",)])
def test_E1_without_a_pin_nothing_is_connected_to(sbctl: Sbctl, hostile: HostileSsh, command: tuple[str, ...]) -> None:
    code, out, err = sbctl(*command)
    assert code == 3
    if command != ("drift",):
        assert "config.missing_host_key" in out + err
        assert "sbctl host trust gpu-a" in out + err
    assert hostile.seen.connections == 0
    assert not Path("sb.hosts.lock").exists()


@pytest.mark.parametrize("arguments", [("--all",), ("gpu-a", "--yes"), ("gpu-*", "--yes")])
def test_E1_without_a_terminal_yes_alone_pins_nothing(
    sbctl: Sbctl, hostile: HostileSsh, arguments: tuple[str, ...]
) -> None:
    code, _, err = sbctl("host", "trust", *arguments)
    assert code == 4
    assert "--fingerprint" in err
    assert hostile.seen.connections == 0
    assert not Path("sb.hosts.lock").exists()


def test_E1_trust_never_logs_in(sbctl: Sbctl, hostile: HostileSsh) -> None:
    code, out, _ = sbctl(
        "host", "trust", "gpu-a", "--yes", "--fingerprint", hostile.host_key.fingerprint, "--format", "json"
    )
    assert code == 0
    (host,) = json.loads(out)["hosts"]
    assert (host["status"], host["fingerprint"]) == ("pinned", hostile.host_key.fingerprint)
    assert hostile.seen.auth_attempts == []
    assert read_host_lock(Path("sb.hosts.lock")).pins("gpu-a") == (" ".join(key_of(hostile)),)
    assert sbctl("validate")[0] == 0


def test_E2_an_impostor_is_not_pinned_under_the_fingerprint_of_another(sbctl: Sbctl, hostile: HostileSsh) -> None:
    other = paramiko.ECDSAKey.generate().fingerprint
    code, out, _ = sbctl("host", "trust", "gpu-a", "--yes", "--fingerprint", other)
    assert code == 4
    assert "REFUSED" in out
    assert not Path("sb.hosts.lock").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        ("apply", "--yes"),
        ("host", "list", "--check"),
        ("host", "facts", "gpu-a"),
        ("host", "exec", "gpu-a", "--", "id"),
    ],
)
def test_E2_a_host_whose_key_changed_gets_nothing(sbctl: Sbctl, hostile: HostileSsh, command: tuple[str, ...]) -> None:
    assert sbctl("host", "trust", "gpu-a", "--yes", "--from", str(known_hosts(hostile)))[0] == 0
    hostile.host_key = paramiko.ECDSAKey.generate()
    connections = hostile.seen.connections
    code, out, err = sbctl(*command)
    assert code == 7
    assert "THE HOST KEY IS NOT THE PINNED ONE" in " ".join((out + err).split())
    assert hostile.seen.auth_attempts == []
    assert hostile.seen.connections <= connections + 3, "one for each key algorithm, and no retry"


def test_E2_a_changed_key_is_said_loudly_by_trust(sbctl: Sbctl, hostile: HostileSsh) -> None:
    assert sbctl("host", "trust", "gpu-a", "--yes", "--from", str(known_hosts(hostile)))[0] == 0
    before, hostile.host_key = hostile.host_key.fingerprint, paramiko.ECDSAKey.generate()
    _, out, _ = sbctl(
        "host", "trust", "gpu-a", "--yes", "--fingerprint", hostile.host_key.fingerprint, "--format", "json"
    )
    (host,) = json.loads(out)["hosts"]
    assert (host["changed"], host["previous"]) == (True, [before])


def test_E2_a_revoked_key_is_never_pinned(sbctl: Sbctl, hostile: HostileSsh) -> None:
    file = known_hosts(hostile, f"@revoked * {' '.join(key_of(hostile))}", "@cert-authority * ssh-rsa AAAA", "junk")
    code, out, _ = sbctl("host", "trust", "--all", "--yes", "--from", str(file), "--format", "json")
    body: dict[str, Any] = json.loads(out)
    assert code == 4
    assert body["hosts"][0]["status"] == "refused"
    assert [each["line"] for each in body["left_out"]] == [2, 3, 4]
    assert not Path("sb.hosts.lock").exists()
    assert hostile.seen.connections == 0


def test_E1_an_edited_lock_is_refused_before_anything_is_connected_to(sbctl: Sbctl, hostile: HostileSsh) -> None:
    assert sbctl("host", "trust", "gpu-a", "--yes", "--from", str(known_hosts(hostile)))[0] == 0
    lock = Path("sb.hosts.lock")
    impostor = paramiko.ECDSAKey.generate()
    lock.write_text(lock.read_text().replace(key_of(hostile)[1], impostor.get_base64()))
    for command in (("plan",), ("host", "trust", "gpu-a", "--yes", "--fingerprint", impostor.fingerprint)):
        code, _, err = sbctl(*command)
        assert code == 3
        assert "sb.hosts.lock:2" in err
    assert hostile.seen.connections == 0


def test_E3_what_a_host_prints_is_shown_escaped_and_labelled(sbctl: Sbctl, hostile: HostileSsh) -> None:
    assert sbctl("host", "trust", "gpu-a", "--yes", "--from", str(known_hosts(hostile)))[0] == 0
    hostile.behaviour = prints(ESCAPES + b"\nsecond\n", ESCAPES, 3)
    code, out, err = sbctl("host", "exec", "gpu-*", "--", "id")
    assert code == 1
    assert [line.startswith("gpu-a | ") for line in out.splitlines()] == [True, True]
    for text in (out, err):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\\x1b" in text
    assert "exit 3" in err
    code, out, _ = sbctl("host", "exec", "gpu-a", "--format", "json", "--", "id")
    assert code == 1
    assert json.loads(out)["hosts"][0]["exit_code"] == 3
    assert "\x1b" not in out


@pytest.mark.parametrize("banner", ["\x1b[2Jwelcome", "x" * 5000])
def test_E3_a_banner_is_not_shown_by_trust(sbctl: Sbctl, hostile: HostileSsh, banner: str) -> None:
    hostile.banner = banner
    code, out, err = sbctl("host", "trust", "gpu-a", "--yes", "--fingerprint", hostile.host_key.fingerprint)
    assert code == 0
    assert "\x1b" not in out + err
