"""Jumps and sudo that lie, stall, listen or vanish: abuse cases E on the way to a host. Nothing leaks, and every end is a typed error."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection
from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.base.limits import SSH_HANDSHAKES_MAX
from sbctl.base.secret import Secret
from sbctl.remote import ssh, ssh_connect
from sbctl.remote.observe import observe_fleet
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.ssh_links import SshLinks
from tests.simulators.hostile_ssh import CuttingProxy, HostileSsh, honest_environment, runs_here

LONG_S = 120.0
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers, clients and neighbours share two cores here; only what is about time is about time."""
    monkeypatch.setattr(ssh_connect, "SSH_CONNECT_DEADLINE_S", LONG_S)
    monkeypatch.setattr(ssh, "SSH_CONNECT_DEADLINE_S", LONG_S)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostileSsh]:
    """An honest host."""
    (tmp_path / "host").mkdir()
    with HostileSsh(tmp_path / "host", runs_here(honest_environment(tmp_path / "node"))) as server:
        yield server


@pytest.fixture
def jump(tmp_path: Path) -> Iterator[HostileSsh]:
    """An honest jump."""
    (tmp_path / "jump").mkdir()
    with HostileSsh(tmp_path / "jump") as server:
        server.leads_to = lambda destination: destination
        yield server


def _through(host: HostileSsh, *jumps: HostileSsh) -> Connection:
    hops = tuple(jump.connection.path(f"jump-{number}")[-1] for number, jump in enumerate(jumps, 1))
    return replace(host.connection, jumps=hops)


def _session(connection: Connection, password: str = PASSWORD) -> HostSession:
    return open_session("gpu-a", connection, clock=SYSTEM_CLOCK, secrets=lambda *_: Secret(password.encode()))


def _failure(connection: Connection, deadline_s: float = LONG_S) -> SbctlError:
    session = _session(connection)
    with pytest.raises(SbctlError) as caught:
        session.snapshot(deadline_s)
    session.close()
    return caught.value


def test_a_host_behind_a_jump_answers_and_the_jump_learns_only_where_it_is(host: HostileSsh, jump: HostileSsh) -> None:
    session = _session(_through(host, jump))
    assert not session.snapshot(LONG_S).bootstrapped
    session.close()
    assert jump.seen.destinations == [("127.0.0.1", host.port)]
    assert jump.seen.commands == []


def test_E2_a_jump_that_leads_to_an_impostor_gains_nothing(host: HostileSsh, jump: HostileSsh, tmp_path: Path) -> None:
    (tmp_path / "impostor").mkdir()
    with HostileSsh(tmp_path / "impostor") as impostor:
        jump.leads_to = lambda _destination: ("127.0.0.1", impostor.port)
        error = _failure(_through(host, jump))
        assert impostor.seen.auth_attempts == []
    assert error.code == "ssh.host_key_changed"
    assert not error.retryable
    assert str(error.place).startswith("gpu-a (ssh 127.0.0.1:")


def test_E2_a_jump_with_another_key_is_left_before_anybody_logs_in(host: HostileSsh, jump: HostileSsh) -> None:
    connection = _through(host, jump)
    wrong = replace(connection.jumps[0], host_keys=(paramiko.ECDSAKey.generate().fingerprint,))
    error = _failure(replace(connection, jumps=(wrong,)))
    assert error.code == "ssh.host_key_changed"
    assert str(error.place).startswith("jump jump-1 (ssh ")
    assert (jump.seen.auth_attempts, jump.seen.destinations, host.seen.connections) == ([], [], 0)


@pytest.mark.parametrize(
    ("flaw", "code", "retryable"),
    [
        ("refuses everybody", "ssh.authentication_failed", False),
        ("connects nobody", "ssh.jump_forbids", False),
        ("reaches nothing", "ssh.jump_cannot_reach", True),
        ("leads into silence", "ssh.connection_lost", True),
    ],
)
def test_E4_a_jump_that_does_not_do_its_work_is_told_apart(
    host: HostileSsh, jump: HostileSsh, flaw: str, code: str, retryable: bool
) -> None:
    silence = CuttingProxy(host.port)
    silence.cut_after = 0
    with silence:
        if flaw == "refuses everybody":
            jump.refuses_everybody = True
        elif flaw == "connects nobody":
            jump.leads_to = None
        elif flaw == "reaches nothing":
            jump.leads_to = lambda _destination: ("127.0.0.1", 1)
        else:
            jump.leads_to = lambda _destination: ("127.0.0.1", silence.port)
        error = _failure(_through(host, jump))
    assert (error.code, error.retryable) == (code, retryable)
    assert error.next_step


def test_E4_a_jump_that_never_says_whether_it_connects_is_given_up_at_the_deadline(
    host: HostileSsh, jump: HostileSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, path = SshLinks(SYSTEM_CLOCK), _through(host, jump).path("gpu-a")
    links.connect(path, deadline_s=LONG_S).close()
    jump.never_answers_requests = True
    monkeypatch.setattr(ssh_connect, "SSH_CONNECT_DEADLINE_S", 1.0)
    with pytest.raises(UnreachableError) as caught:
        links.connect(path, deadline_s=LONG_S)
    links.close()
    assert (caught.value.code, caught.value.retryable) == ("ssh.no_answer", True)


@pytest.mark.parametrize("seed", range(4))
def test_E5_a_jump_that_is_cut_after_some_bytes_is_a_typed_error_and_the_next_try_works(
    host: HostileSsh, jump: HostileSsh, seed: int
) -> None:
    with CuttingProxy(jump.port) as proxy:
        connection = _through(host, jump)
        connection = replace(connection, jumps=(replace(connection.jumps[0], port=proxy.port),))
        proxy.cut_after = random.Random(seed).randrange(12_000)
        session = _session(connection)
        try:
            session.snapshot(LONG_S)
        except SbctlError as error:
            assert isinstance(error, UnreachableError)
            assert error.retryable
        proxy.cut_after = None
        session.close()
        assert not session.snapshot(LONG_S).bootstrapped
        session.close()


def test_hosts_behind_one_jump_share_its_connection_and_few_start_at_once(host: HostileSsh, jump: HostileSsh) -> None:
    connection = _through(host, jump)
    fleet = {f"gpu-{number}": connection for number in range(14)}
    with observe_fleet(fleet, clock=SYSTEM_CLOCK, deadline_s=LONG_S, max_parallel=14) as observed:
        assert {name: error.message for name, error in observed.unreachable.items()} == {}
    assert jump.seen.connections == 1
    assert host.seen.connections == 14
    assert host.seen.starting_most <= SSH_HANDSHAKES_MAX


def test_a_jump_that_lets_nobody_in_is_asked_once_for_all_hosts_behind_it(host: HostileSsh, jump: HostileSsh) -> None:
    jump.refuses_everybody = True
    fleet = {f"gpu-{number}": _through(host, jump) for number in range(12)}
    with observe_fleet(fleet, clock=SYSTEM_CLOCK, deadline_s=LONG_S, max_parallel=4) as observed:
        assert {error.code for error in observed.unreachable.values()} == {"ssh.authentication_failed"}
        assert len(observed.unreachable) == 12
    assert jump.seen.connections == 1


def test_a_jump_that_was_lost_is_connected_anew(host: HostileSsh, jump: HostileSsh, tmp_path: Path) -> None:
    connection = _through(host, jump)
    with observe_fleet({"gpu-a": connection}, clock=SYSTEM_CLOCK, deadline_s=LONG_S) as observed:
        jump.drop_everybody()
        session = observed.sessions["gpu-a"]
        assert not session.snapshot(LONG_S).bootstrapped
    assert jump.seen.connections == 2


# sudo


SUDO = """#!/bin/sh
prompt=
while [ "$1" != -- ]; do
  case $1 in
    -p) prompt=$2; shift 2 ;;
    *) shift ;;
  esac
done
shift
{body}
"""
ASKS = 'printf %s "$prompt" >&2; IFS= read -r given; '


def _with_sudo(host: HostileSsh, tmp_path: Path, body: str, *, password: bool = True) -> Connection:
    directory = tmp_path / "bin"
    directory.mkdir(exist_ok=True)
    program = directory / "sudo"
    program.write_text(SUDO.format(body=body))
    program.chmod(0o755)
    environment = honest_environment(tmp_path / "node")
    host.behaviour = runs_here({**environment, "PATH": f"{directory}:{environment['PATH']}"})
    return replace(host.connection, become="sudo", become_password="env:PW" if password else "")


@pytest.mark.parametrize(
    "body",
    [
        ASKS + f'[ "$given" = "{PASSWORD}" ] && exec "$@"',
        'echo "We trust you have received the usual lecture" >&2; ' + ASKS + 'exec "$@"',
        'exec "$@"',
    ],
    ids=["asks", "lectures", "does not ask"],
)
def test_E6_the_program_behind_sudo_gets_its_input_and_never_the_password(
    host: HostileSsh, tmp_path: Path, body: str
) -> None:
    # What the program is given is kept, so that a password in it would be seen.
    body = body.replace('exec "$@"', f'tee -a {tmp_path}/given | "$@"; exit $?')
    session = _session(_with_sudo(host, tmp_path, body))
    assert not session.snapshot(LONG_S).bootstrapped
    session.call(
        "host.mark", {"lineage": "l", "host": "gpu-a"}, secrets={}, deadline_s=LONG_S, progress=lambda *_: None
    )
    session.close()
    assert PASSWORD.encode() not in (tmp_path / "given").read_bytes()
    assert not any(PASSWORD in command for command in host.seen.commands)


@pytest.mark.parametrize(
    ("body", "password", "code"),
    [
        (ASKS + ASKS, True, "ssh.become_password_wrong"),
        (ASKS + 'echo "sudo: 1 incorrect password attempt: $given" >&2; exit 1', True, "ssh.become_password_wrong"),
        (ASKS + 'echo "you said $given" >&2; exit 1', True, "ssh.become_failed"),
        ('echo "sudo: a password is required" >&2; exit 1', False, "ssh.become_password_needed"),
        ('echo "sudo: sorry, you must have a tty to run sudo" >&2; exit 1', True, "ssh.become_needs_terminal"),
        ("exit 0", True, "ssh.become_failed"),
    ],
)
def test_E6_a_sudo_that_says_no_is_told_apart_and_nothing_it_repeats_is_shown(
    host: HostileSsh, tmp_path: Path, body: str, password: bool, code: str
) -> None:
    error = _failure(_with_sudo(host, tmp_path, body, password=password))
    assert error.code == code
    assert PASSWORD not in f"{error} {error.message} {error.next_step}"
    assert error.next_step
    assert not error.retryable


def test_E6_a_sudo_that_waits_for_ever_ends_at_the_deadline(host: HostileSsh, tmp_path: Path) -> None:
    session = _session(_with_sudo(host, tmp_path, 'exec "$@"'))
    session.snapshot(LONG_S)
    _with_sudo(host, tmp_path, "exec cat > /dev/null")
    with pytest.raises(UnreachableError) as caught:
        session.snapshot(2.0)
    session.close()
    assert caught.value.code == "remote.timeout"


@pytest.mark.parametrize("seed", range(4))
def test_E5_an_upload_behind_sudo_that_is_cut_goes_on_and_arrives_whole(
    host: HostileSsh, tmp_path: Path, seed: int
) -> None:
    source = tmp_path / "weights"
    source.write_bytes(random.Random(seed).randbytes(2_000_000))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    connection = _with_sudo(host, tmp_path, ASKS + 'exec "$@"')
    with CuttingProxy(host.port) as proxy:
        connection = replace(connection, port=proxy.port)
        session = _session(connection)
        session.snapshot(LONG_S)
        session.close()
        proxy.cut_after = 60_000 + random.Random(seed).randrange(2_000_000)
        with pytest.raises(SbctlError) as caught:
            session.put(digest, source, deadline_s=LONG_S, progress=lambda *_: None)
        assert caught.value.retryable
        proxy.cut_after = None
        session.close()
        session.put(digest, source, deadline_s=LONG_S, progress=lambda *_: None)
        session.close()
    blob = tmp_path / "node/state/staging/blobs" / digest
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == digest


def test_E9_a_link_in_the_place_of_an_upload_is_not_followed(host: HostileSsh, tmp_path: Path) -> None:
    source, precious = tmp_path / "weights", tmp_path / "precious"
    source.write_bytes(b"x" * 1000)
    precious.write_text("precious")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    blobs = tmp_path / "node/state/staging/blobs"
    blobs.mkdir(parents=True)
    os.symlink(precious, blobs / f"{digest}.part")
    session = _session(_with_sudo(host, tmp_path, 'exec "$@"'))
    with pytest.raises(SbctlError):
        session.put(digest, source, deadline_s=LONG_S, progress=lambda *_: None)
    session.close()
    assert precious.read_text() == "precious"
