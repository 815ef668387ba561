"""Hosts that lie, stall or vanish: abuse cases E of SSH provisioning. Every one ends in a typed error, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, InputError, SbctlError, UnreachableError
from sbctl.remote.bootstrap import read_answer
from sbctl.remote.observe import observe_fleet
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.shell import command_line
from sbctl.remote.ssh import SshTransport
from sbctl.remote.transport import Completed
from tests.simulators.hostile_ssh import (
    Behaviour,
    CuttingProxy,
    HostileSsh,
    close_without_status,
    endless,
    flood_both_streams,
    honest_environment,
    never_ends,
    prints,
    runs_here,
    trickles,
    worker_that_answers,
)
from tests.simulators.scripted_node import ScriptedTransport

ROOT = Path(__file__).parents[2]
SHORT_S = 0.6
LONG_S = 20.0
ESCAPES = "\x1b]0;owned\x07\x1b[31mred\u202e"


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileSsh]:
    with HostileSsh(tmp_path) as server:
        yield server


def _run(connection: Connection, *, deadline_s: float = LONG_S, stdin: bytes = b"") -> Completed:
    transport = SshTransport("gpu-a", connection, SYSTEM_CLOCK)
    try:
        # The deadline is about the command, also where this machine is slow to connect.
        transport._connected(LONG_S)
        return transport.run(["probe"], stdin=stdin, deadline_s=deadline_s)
    finally:
        transport.close()


def _session(connection: Connection) -> HostSession:
    return open_session("gpu-a", connection, clock=SYSTEM_CLOCK)


def _failure(connection: Connection, deadline_s: float = LONG_S) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        _run(connection, deadline_s=deadline_s)
    return caught.value


def test_E1_unknown_host_key_fails_before_authentication_and_shows_what_to_write(hostile: HostileSsh) -> None:
    error = _failure(replace(hostile.connection, host_keys=()))
    assert isinstance(error, UnreachableError)
    assert error.code == "ssh.host_key_unknown"
    assert not error.retryable
    assert hostile.host_key.fingerprint in error.message
    assert f'host_key: "{hostile.host_key.fingerprint}"' in (error.next_step or "")
    assert hostile.seen.auth_attempts == []


def test_E1_nothing_in_the_source_could_accept_a_key_on_first_use_or_read_the_users_ssh() -> None:
    forbidden = (
        "AutoAddPolicy",
        "WarningPolicy",
        "load_system_host_keys",
        "load_host_keys",
        "SSHConfig",
        "ProxyCommand(",
        "AgentKey",
    )
    sources = [*(ROOT / "sbctl").rglob("*.py"), *(ROOT / "providers").rglob("*.py")]
    assert [(path.name, name) for path in sources for name in forbidden if name in path.read_text()] == []


@pytest.mark.parametrize("form", ["fingerprint", "public key"])
def test_E2_changed_host_key_fails_before_authentication_and_is_never_retried(hostile: HostileSsh, form: str) -> None:
    other = paramiko.ECDSAKey.generate()
    pin = other.fingerprint if form == "fingerprint" else f"{other.get_name()} {other.get_base64()} gpu-a"
    error = _failure(replace(hostile.connection, host_keys=(pin,)))
    assert error.code == "ssh.host_key_changed"
    assert not error.retryable
    assert other.fingerprint in error.message
    assert hostile.host_key.fingerprint in error.message
    assert hostile.seen.auth_attempts == []


def test_E2_observation_reports_a_changed_key_beside_the_hosts_that_answered(
    hostile: HostileSsh, tmp_path: Path
) -> None:
    hostile.behaviour = runs_here(honest_environment(tmp_path / "node"))
    changed = replace(hostile.connection, host_keys=(paramiko.ECDSAKey.generate().fingerprint,))
    with observe_fleet({"bad": changed, "good": hostile.connection}, clock=SYSTEM_CLOCK) as observed:
        assert set(observed.snapshots) == {"good"}
        assert observed.unreachable["bad"].code == "ssh.host_key_changed"


@pytest.mark.parametrize(
    "pin", ["SHA256:short", "MD5:aa:bb", "ssh-ed25519", "ssh-ed25519 %%%", "ssh-ed25519 AAAA", "@revoked x y"]
)
def test_E2_a_pin_that_is_none_is_refused_not_ignored(hostile: HostileSsh, pin: str) -> None:
    assert _failure(replace(hostile.connection, host_keys=(pin,))).code == "ssh.host_key_invalid"
    assert hostile.seen.connections == 0


@pytest.mark.parametrize("place", ["banner", "stdout", "stderr", "answer"])
def test_E3_terminal_escapes_from_a_host_never_reach_the_terminal(hostile: HostileSsh, place: str) -> None:
    hostile.banner = ESCAPES if place == "banner" else ""
    noise = ESCAPES.encode()
    hostile.behaviour = prints(noise if place == "stdout" else b"", noise if place == "stderr" else b"", 3)
    if place == "answer":
        hostile.behaviour = _answers({"error": {"family": "HostError", "code": "x.y", "message": ESCAPES}})
    with pytest.raises(SbctlError) as caught:
        _session(hostile.connection).snapshot(LONG_S)
    shown = f"{caught.value} {caught.value.next_step}"
    assert not any(char in shown for char in "\x1b\x07\u202e")


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (flood_both_streams, "remote.output_too_large"),
        (endless, "remote.output_too_large"),
        (trickles, "remote.timeout"),
        (never_ends, "remote.timeout"),
        (close_without_status, "remote.lost"),
    ],
)
def test_E4_output_and_time_of_a_command_are_bounded(hostile: HostileSsh, behaviour: Behaviour, code: str) -> None:
    hostile.behaviour = behaviour
    deadline_s = SHORT_S if code == "remote.timeout" else LONG_S
    assert _failure(hostile.connection, deadline_s).code == code


def test_E4_a_request_that_is_never_answered_ends_at_the_deadline(hostile: HostileSsh) -> None:
    hostile.never_answers_requests = True
    assert _failure(hostile.connection, SHORT_S).code == "remote.timeout"


def test_E4_a_host_without_file_transfer_is_told_what_to_enable(hostile: HostileSsh, tmp_path: Path) -> None:
    hostile.behaviour = runs_here(honest_environment(tmp_path / "node"))
    (tmp_path / "blob").write_bytes(b"x")
    session = _session(hostile.connection)
    with pytest.raises(UnreachableError) as caught:
        session.put("a" * 64, tmp_path / "blob", deadline_s=LONG_S, progress=lambda _done, _total: None)
    session.close()
    assert caught.value.code == "ssh.no_sftp"
    assert "Subsystem sftp" in (caught.value.next_step or "")


def test_E4_streams_within_the_caps_arrive_whole(hostile: HostileSsh) -> None:
    hostile.behaviour = prints(b"o" * 900_000, b"e" * 900_000, 7)
    done = _run(hostile.connection, stdin=b"i" * 3_000_000)
    assert (done.status, done.stdout) == (7, b"o" * 900_000)
    assert done.stderr == b"e" * len(done.stderr)


@pytest.mark.parametrize(
    ("flaw", "code"),
    [
        ("refuses_everybody", "ssh.authentication_failed"),
        ("opens_no_channels", "ssh.channel_refused"),
        ("refuses_commands", "ssh.command_refused"),
    ],
)
def test_E4_a_host_that_says_no_is_told_apart(hostile: HostileSsh, flaw: str, code: str) -> None:
    setattr(hostile, flaw, True)
    error = _failure(hostile.connection)
    assert error.code == code
    assert not error.retryable
    assert error.next_step


@pytest.mark.parametrize(
    ("flaw", "code"), [("ends_at_login", "ssh.connection_lost"), ("silent_at_login", "ssh.no_answer")]
)
def test_E4_an_end_or_silence_at_login_is_no_refusal_of_the_key(hostile: HostileSsh, flaw: str, code: str) -> None:
    setattr(hostile, flaw, True)
    error = _failure(hostile.connection, SHORT_S)
    assert error.code == code
    assert error.retryable
    assert error.next_step


NODE = """
import json, os, struct, sys
sys.stderr.write("noise " * 100000); sys.stderr.flush()
def write(message):
    body = json.dumps(message).encode()
    os.write(1, struct.pack(">I", len(body)) + body)
write({"hello": {"protocol": 1, "version": "0.0.1", "pid": 1}})
while head := sys.stdin.buffer.read(4):
    request = json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
    if request["method"] == "bundle.clear":
        os._exit(9)
    write({"id": request["id"], "result": {"host": {"hostname": "behind-noise"}}})
"""


def _with_runtime(hostile: HostileSsh, prefix: Path) -> None:
    programs = prefix / "opt/0.0.1/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "sbctl-runtime").write_text(NODE)
    (prefix / "opt/current").symlink_to("0.0.1")
    talkative = runs_here(honest_environment(prefix))

    def behave(channel: paramiko.Channel, command: str, ended: threading.Event) -> None:
        channel.sendall(b"Last login: \x00\x00\x00\x02{} never\n")
        talkative(channel, command, ended)

    hostile.behaviour = behave


def test_E3_what_a_login_shell_prints_is_not_taken_for_the_node_interface(hostile: HostileSsh, tmp_path: Path) -> None:
    _with_runtime(hostile, tmp_path / "node")
    session = _session(hostile.connection)
    for _ in range(2):
        assert session.snapshot(LONG_S).host.hostname == "behind-noise"
    session.close()


def test_E5_a_node_process_that_dies_in_a_change_leaves_the_outcome_unknown(
    hostile: HostileSsh, tmp_path: Path
) -> None:
    _with_runtime(hostile, tmp_path / "node")
    session = _session(hostile.connection)
    with pytest.raises(HostError) as caught:
        session.call("bundle.clear", {}, secrets={}, deadline_s=LONG_S, progress=lambda _done, _total: None)
    assert caught.value.code == "host.outcome_unknown"
    assert session.snapshot(LONG_S).bootstrapped
    session.close()


@pytest.mark.parametrize("share", [0.01, 0.25, 0.6, 0.97])
def test_E5_a_connection_that_ends_anywhere_gives_a_typed_error_and_a_rerun_converges(
    hostile: HostileSsh, tmp_path: Path, share: float
) -> None:
    _cut_and_rerun(hostile, tmp_path, [share])


@pytest.mark.soak
def test_E5_every_hundredth_of_the_conversation(hostile: HostileSsh, tmp_path: Path) -> None:
    _cut_and_rerun(hostile, tmp_path, [part / 100 for part in range(100)])


def _cut_and_rerun(hostile: HostileSsh, tmp_path: Path, shares: list[float]) -> None:
    hostile.behaviour = runs_here(honest_environment(tmp_path / "node"))
    with CuttingProxy(hostile.port) as proxy:
        through = replace(hostile.connection, port=proxy.port)
        claimed = _mark(through)
        total = proxy.passed
        for share in shares:
            proxy.cut_after = int(total * share)
            try:
                _mark(through)
            except HostError as error:
                assert error.code == "host.outcome_unknown"
            except UnreachableError as error:
                assert error.code in {"ssh.connection_lost", "remote.lost", "ssh.no_answer"}
            proxy.cut_after = None
            assert _mark(through) == claimed


def _mark(connection: Connection) -> object:
    session = _session(connection)
    try:
        params = {"lineage": "lineage-1", "host": "gpu-a"}
        return session.call("host.mark", params, secrets={}, deadline_s=LONG_S, progress=lambda _done, _total: None)
    finally:
        session.close()


_WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6
)


@settings(deadline=None, max_examples=60)
@given(_WORDS)
def test_E7_every_argument_comes_out_of_a_shell_as_it_went_in(words: list[str]) -> None:
    line = command_line(["/usr/bin/printf", "%s\\0", *words])
    shown = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True).stdout
    assert shown.decode().split("\0")[:-1] == words


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True), _WORDS.map("".join), max_size=4))
def test_E7_a_program_sees_exactly_the_environment_it_was_given(environment: dict[str, str]) -> None:
    line = command_line(["/usr/bin/env", "-0"], environment=environment)
    shown = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True).stdout
    assert dict(entry.split("=", 1) for entry in shown.decode().split("\0")[:-1]) == environment


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        ([], None),
        ([""], None),
        (["ls", "a\nb"], None),
        (["ls", "a\0b"], None),
        (["ls", "a\rb"], None),
        (["ls"], {"A B": "x"}),
        (["ls"], {"A": "x\ny"}),
        (["ls"], {"": "x"}),
        (["ls"], {"LD=PRELOAD": "x"}),
    ],
)
def test_E7_what_no_honest_command_has_is_refused(argv: list[str], environment: dict[str, str] | None) -> None:
    with pytest.raises(InputError) as caught:
        command_line(argv, environment=environment)
    assert caught.value.code == "shell.refused"


def _answers(message: object, *, raw: bytes | None = None) -> Behaviour:
    """A host that knows the marker, as every host does that reads the script, and answers what it likes."""

    def behave(channel: paramiko.Channel, _command: str, _ended: object) -> None:
        script = b""
        while data := channel.recv(1 << 16):
            script += data
        start = script.index(b"sbctl-", script.rindex(b"json.loads("))
        marker = script[start : script.index(b":", start) + 1]
        channel.sendall(b"motd\n" + marker + (raw if raw is not None else json.dumps(message).encode()) + b"\n")
        channel.send_exit_status(0)

    return behave


_FACTS = {"host": {}, "marker": None, "paths": None, "disk": {}, "runtime": {}, "environment": {}}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "host.answer_invalid"),
        (b"{", "host.answer_invalid"),
        (b"[]", "host.answer_invalid"),
        (b"{}", "host.answer_invalid"),
        (b'{"result": []}', "host.answer_invalid"),
        (b'{"result": {}, "result": {}}', "host.answer_invalid"),
        (b'{"result": {"host": {"cpu_count": 1e999}}}', "host.answer_invalid"),
        (b'{"result": {"host": {"cpu_count": -1}}}', "host.answer_invalid"),
        (b'{"result": {"host": {"uid": 99999999999999999999}}}', "host.answer_invalid"),
        (b'{"result": ' + b"[" * 100_000, "host.answer_invalid"),
        (json.dumps({"result": {**_FACTS, "host": {"hostname": "x" * 10_000}}}).encode(), "host.answer_invalid"),
        (json.dumps({"result": {**_FACTS, "paths": {"etc": 7}}}).encode(), "host.answer_invalid"),
        (json.dumps({"result": {**_FACTS, "runtime": {"current_version": ["a"]}}}).encode(), "host.answer_invalid"),
        (b'{"error": {}}', "host.unknown_error"),
        (b"\xff\xfe", "host.answer_invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:40]),
)
def test_E8_answers_that_make_no_sense_are_refused_by_name(answer: bytes, code: str) -> None:
    with pytest.raises(HostError) as caught:
        HostSession("gpu-a", _LyingTransport(answer), SYSTEM_CLOCK).snapshot(LONG_S)
    assert caught.value.code == code


class _LyingTransport(ScriptedTransport):
    """Answers the facts with bytes of its own behind the right marker."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    def bootstrap(self, *_: object, **__: object) -> Mapping[str, Any]:
        return read_answer(Completed(0, b"motd\nsbctl-1:" + self._answer + b"\n", b""), "sbctl-1:", place="gpu-a")


def test_E8_an_answer_without_an_end_is_cut_off(hostile: HostileSsh) -> None:
    hostile.behaviour = _answers(None, raw=b'{"result": {"host": "' + b"x" * 3_000_000)
    with pytest.raises(HostError) as caught:
        _session(hostile.connection).snapshot(LONG_S)
    assert caught.value.code == "remote.output_too_large"


def _flood(channel: paramiko.Channel, _marker: bytes) -> None:
    while True:
        channel.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    "lie",
    [
        lambda channel, marker: channel.sendall(marker + b"[]\n"),
        lambda channel, marker: channel.sendall(marker + b'{"result": ' + b"[" * 5000 + b"\n"),
        lambda channel, marker: channel.sendall(b"sbctl-0123:" + b'{"result": {}}\n'),
        lambda channel, _marker: channel.send_exit_status(137),
        lambda channel, marker: channel.sendall(marker + b'{"result": {"marker": 1}}'),
        _flood,
    ],
    ids=["no result", "too deep", "a guessed marker", "killed", "no end of line", "a flood"],
)
def test_E8_a_host_that_lies_about_a_change_leaves_the_outcome_unknown(
    hostile: HostileSsh, tmp_path: Path, lie: Callable[[paramiko.Channel, bytes], None]
) -> None:
    hostile.behaviour = worker_that_answers(honest_environment(tmp_path / "node"), lie)
    with pytest.raises(HostError) as caught:
        _mark(hostile.connection)
    assert caught.value.code == "host.outcome_unknown"


def test_E8_facts_that_are_missing_are_unknown_not_invented(hostile: HostileSsh) -> None:
    hostile.behaviour = _answers({"result": {}})
    snapshot = _session(hostile.connection).snapshot(LONG_S)
    assert not snapshot.bootstrapped
    assert snapshot.host.arch == ""
    assert snapshot.paths is None


def test_E14_one_named_key_is_offered_and_nothing_of_the_users_ssh_is_used(
    hostile: HostileSsh, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh_directory = own_home / ".ssh"
    ssh_directory.mkdir()
    ran = own_home / "proxy-command-ran"
    (ssh_directory / "config").write_text(f"Host *\n  ProxyCommand touch {ran}\n  ForwardAgent yes\n")
    (ssh_directory / "known_hosts").write_text("@cert-authority * ssh-ed25519 broken\n")
    paramiko.ECDSAKey.generate().write_private_key_file(str(ssh_directory / "id_ecdsa"))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(own_home / "agent.sock"))
    hostile.behaviour = prints(b"ok")
    assert _run(hostile.connection).stdout == b"ok"
    assert {(method, key) for method, _user, key in hostile.seen.auth_attempts} == {
        ("publickey", hostile.client_key.fingerprint)
    }
    assert hostile.seen.agent_requests == 0
    assert not ran.exists()
    assert sorted(os.listdir(ssh_directory)) == ["config", "id_ecdsa", "known_hosts"]


def test_E14_a_refused_key_is_not_followed_by_others(hostile: HostileSsh, own_home: Path) -> None:
    hostile.refuses_everybody = True
    assert _failure(hostile.connection).code == "ssh.authentication_failed"
    assert {method for method, _user, _key in hostile.seen.auth_attempts} == {"publickey"}
    assert len({key for _method, _user, key in hostile.seen.auth_attempts}) == 1


def test_E14_weak_algorithms_are_off(hostile: HostileSsh) -> None:
    hostile.behaviour = prints(b"ok")
    transport = SshTransport("gpu-a", hostile.connection, SYSTEM_CLOCK)
    transport.run(["probe"], stdin=b"", deadline_s=LONG_S)
    inner = transport._connected(LONG_S)
    offered = {*inner.preferred_ciphers, *inner.preferred_macs, *inner.preferred_keys}
    transport.close()
    assert not [name for name in offered if any(weak in name for weak in ("cbc", "md5", "sha1", "3des", "ssh-rsa"))]
