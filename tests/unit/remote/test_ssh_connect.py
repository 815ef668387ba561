"""Reaching a host fails in kinds that tell the reader who must act; pins are read exactly."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection
from sbctl.base.errors import InputError, UnreachableError
from sbctl.remote import ssh_connect
from sbctl.remote.host_key import HostKeyPin, key_families
from sbctl.remote.ssh_links import SshLinks
from tests.simulators.hostile_ssh import HostileSsh

SHORT_S = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileSsh]:
    with HostileSsh(tmp_path) as running:
        yield running


def _connect(connection: Connection) -> paramiko.Transport:
    return SshLinks(SYSTEM_CLOCK).connect(connection.path("gpu-a"), deadline_s=30)


def _failure(connection: Connection) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        _connect(connection)
    return caught.value


def test_a_port_where_nobody_listens_is_refused(server: HostileSsh) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    error = _failure(replace(server.connection, port=port))
    assert (error.code, error.retryable) == ("ssh.refused", True)
    assert error.place == f"gpu-a (ssh 127.0.0.1:{port})"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (socket.gaierror(-2, "Name or service not known"), "ssh.name_unknown"),
        (TimeoutError(), "ssh.no_answer"),
        (OSError(113, "No route to host"), "ssh.no_route"),
    ],
)
def test_a_host_that_cannot_be_dialled_may_be_later(
    server: HostileSsh, monkeypatch: pytest.MonkeyPatch, failure: OSError, code: str
) -> None:
    def dial(*_: object, **__: object) -> socket.socket:
        raise failure

    monkeypatch.setattr(socket, "create_connection", dial)
    error = _failure(server.connection)
    assert (error.code, error.retryable) == (code, True)


def test_a_network_that_is_cut_is_noticed_long_before_tcp_gives_up(
    server: HostileSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    dial = socket.create_connection
    dialed: list[socket.socket] = []

    def kept(*arguments: Any, **more: Any) -> socket.socket:
        dialed.append(dial(*arguments, **more))
        return dialed[-1]

    monkeypatch.setattr(socket, "create_connection", kept)
    transport = _connect(server.connection)
    limits = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in dialed if each.fileno() >= 0]
    transport.close()
    assert set(limits) == {45_000}


@pytest.mark.parametrize("behaviour", ["silent", "closes", "speaks something else"])
def test_a_port_that_does_not_speak_ssh_is_a_lost_connection(
    server: HostileSsh, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setattr(ssh_connect, "SSH_CONNECT_DEADLINE_S", SHORT_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        if behaviour == "closes":
            accepted.close()
        elif behaviour != "silent":
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        monkeypatch.setattr(socket, "create_connection", lambda *_, **__: client)
        error = _failure(server.connection)
        accepted.close()
    assert (error.code, error.retryable) == ("ssh.connection_lost", True)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, "ssh.identity_unusable", "does not exist"),
        (b"", "ssh.identity_unusable", "not a private key"),
        (b"ssh-ed25519 AAAA", "ssh.identity_unusable", "not a private key"),
        ("encrypted", "ssh.passphrase_needed", "encrypted"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_named_and_nobody_is_dialled(
    server: HostileSsh, tmp_path: Path, content: bytes | str | None, code: str, words: str
) -> None:
    path = tmp_path / "key"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "encrypted":
        paramiko.ECDSAKey.generate().write_private_key_file(str(path), password="hunter2")
    error = _failure(replace(server.connection, identity_file=str(path)))
    assert error.code == code
    assert words in error.message
    assert error.place == str(path)
    assert server.seen.connections == 0


def test_without_a_key_file_nothing_else_is_tried(server: HostileSsh) -> None:
    error = _failure(replace(server.connection, identity_file=""))
    assert (error.code, error.retryable) == ("ssh.identity_missing", False)
    assert server.seen.connections == 0


def test_a_pinned_type_that_the_host_does_not_have_is_a_changed_key(server: HostileSsh) -> None:
    blob = b"\0\0\0\x0bssh-ed25519" + b"\0\0\0\x20" + bytes(32)
    error = _failure(replace(server.connection, host_keys=(f"ssh-ed25519 {base64.b64encode(blob).decode()}",)))
    assert error.code == "ssh.host_key_changed"
    assert server.seen.auth_attempts == []


@pytest.mark.parametrize("comment", ["", " ops@laptop", " several words here"])
def test_a_public_key_and_its_fingerprint_are_the_same_pin(comment: str) -> None:
    key = paramiko.ECDSAKey.generate()
    by_key = HostKeyPin(f"{key.get_name()} {key.get_base64()}{comment}")
    by_fingerprint = HostKeyPin(key.fingerprint)
    assert by_key.fingerprint == by_fingerprint.fingerprint == key.fingerprint
    assert key_families((by_key,)) == (("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),)
    assert key_families((by_key, by_fingerprint))[0][0] == "ssh-ed25519"


def test_an_rsa_key_is_asked_for_with_sha_2_only() -> None:
    key = paramiko.RSAKey.generate(2048)
    assert key_families((HostKeyPin(f"ssh-rsa {key.get_base64()}"),)) == (("rsa-sha2-512", "rsa-sha2-256"),)


@pytest.mark.parametrize(
    "text",
    [
        "SHA256:",
        "SHA256:" + "A" * 42,
        "sha256:" + "A" * 43,
        "SHA256:" + "A" * 43 + " x",
        "ssh-rsa AAAA",
        "x y",
        "\N{KELVIN SIGN} AAAA",
    ],
)
def test_anything_else_is_no_pin(text: str) -> None:
    with pytest.raises(InputError) as caught:
        HostKeyPin(text)
    assert caught.value.code == "ssh.host_key_invalid"
    assert "ssh-keygen" in (caught.value.next_step or "")
