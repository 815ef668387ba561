"""An authenticated SSH connection to exactly the host that was pinned, or an error that says which of three kinds it is.

    retryable        no answer, refused, reset, no name: another try may work                  (`retryable=True`)
    authentication   the host is the right one, but does not let this key in                   (`ssh.authentication_failed`, `ssh.identity_*`)
    never retry      the host key is unknown or changed: nothing was sent, nobody logged in    (`ssh.host_key_unknown`, `ssh.host_key_changed`)

The host key is compared before authentication, with a pin from sb.yml; nobody's known_hosts is read, no key is ever accepted on first use,
no agent and no other key is tried, nothing is forwarded, no ssh_config runs. Weak ciphers and MACs are off.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import paramiko

from sbctl.base.connection import Connection
from sbctl.base.errors import UnreachableError
from sbctl.base.limits import SSH_CONNECT_DEADLINE_S, SSH_KEEPALIVE_S, SSH_UNANSWERED_S
from sbctl.remote.host_key import ANY_KEY, HostKeyPin, key_families
from sbctl.remote.transport import foreign_text

__all__ = ["DISABLED_ALGORITHMS", "connect", "ssh_place"]

DISABLED_ALGORITHMS: Final[dict[str, list[str]]] = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}
# The library logs tracebacks of broken connections; what matters of them is in our errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def ssh_place(host: str, connection: Connection) -> str:
    """How errors name a host."""
    return f"{host} (ssh {connection.address}:{connection.port})"


def connect(host: str, connection: Connection) -> paramiko.Transport:
    """Raises UnreachableError of one of the three kinds, InputError for a pin or key file that is none."""
    place = ssh_place(host, connection)
    pins = tuple(HostKeyPin(text) for text in connection.host_keys)
    identity = _identity(connection, place)
    shown: list[paramiko.PKey] = []
    for family in key_families(pins):
        if any(_is_of(key, family) for key in shown):
            continue
        transport = _handshake(connection, family, place, optional=bool(shown))
        if transport is None:
            continue
        key = transport.get_remote_server_key()
        if any(key.fingerprint == pin.fingerprint for pin in pins):
            _authenticate(transport, connection, identity, place)
            return transport
        transport.close()
        shown.append(key)
    raise _host_key_error(host, pins, shown, place)


def _is_of(key: paramiko.PKey, family: tuple[str, ...]) -> bool:
    name = key.get_name()
    return name in family or (name == "ssh-rsa" and "rsa-sha2-512" in family)


def _identity(connection: Connection, place: str) -> paramiko.PKey:
    if not connection.identity_file:
        raise UnreachableError(
            "ssh.identity_missing",
            "no key is named for this host, and no other way to log in is tried",
            place=place,
            next_step="set fleet.ssh.identity_file (or the host's ssh.identity_file) in sb.yml",
        )
    path = Path(connection.identity_file).expanduser()
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        what = "does not exist"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except (paramiko.PasswordRequiredException, TypeError):
        what = "is encrypted, and no passphrase can be given"
    except (paramiko.SSHException, ValueError, IndexError):
        what = "is not a private key that can be used"
    raise UnreachableError(
        "ssh.identity_unusable",
        f"the key file {what}",
        place=str(path),
        next_step="name an unencrypted OpenSSH private key",
    )


def _dial(connection: Connection, place: str) -> socket.socket:
    seconds = SSH_CONNECT_DEADLINE_S
    try:
        dialed = socket.create_connection((connection.address, connection.port), timeout=seconds)
    except socket.gaierror as error:
        code, what = "ssh.name_unknown", f"the name has no address ({error.strerror})"
    except TimeoutError:
        code, what = "ssh.no_answer", f"gave no answer in {seconds:g} s"
    except ConnectionRefusedError:
        code, what = "ssh.refused", "the connection was refused"
    except OSError as error:
        code, what = "ssh.no_route", f"the host cannot be reached ({error.strerror})"
    else:
        _notice_cuts(dialed)
        return dialed
    raise UnreachableError(
        code, what, place=place, next_step="check that the host is up and sshd listens there", retryable=True
    )


def _notice_cuts(dialed: socket.socket) -> None:
    """A cut cable sends nothing, and TCP by itself goes on hoping for a quarter of an hour."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        dialed.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SSH_UNANSWERED_S * 1000)


def _handshake(
    connection: Connection, family: tuple[str, ...], place: str, *, optional: bool
) -> paramiko.Transport | None:
    """Key exchange only. None when the host has no key of this family and that is no error: `optional`, or the pinned type is not there."""
    dialled = _dial(connection, place)
    transport = paramiko.Transport(dialled, disabled_algorithms=DISABLED_ALGORITHMS)
    try:
        transport.get_security_options().key_types = family
        transport.banner_timeout = transport.auth_timeout = SSH_CONNECT_DEADLINE_S
        transport.start_client(timeout=SSH_CONNECT_DEADLINE_S)
        # A handshake that took too long ends without an exception; asking for the key gives one.
        transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        transport.close()
        if "key" in str(error) and (optional or family != ANY_KEY):
            return None
        raise UnreachableError(
            "ssh.no_common_algorithm", f"the host offers nothing we trust: {foreign_text(str(error))}", place=place
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise UnreachableError(
            "ssh.connection_lost",
            f"the connection ended during the SSH handshake: {foreign_text(str(error)) or type(error).__name__}",
            place=place,
            next_step="check that sshd answers there (MaxStartups limits connections at once)",
            retryable=True,
        ) from error
    return transport


def _authenticate(transport: paramiko.Transport, connection: Connection, identity: paramiko.PKey, place: str) -> None:
    user = connection.user or getpass.getuser()
    try:
        further = transport.auth_publickey(user, identity)
    except paramiko.AuthenticationException as error:
        transport.close()
        raise _refused(user, connection, foreign_text(str(error)), place) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        transport.close()
        raise UnreachableError(
            "ssh.connection_lost", "the connection ended during authentication", place=place, retryable=True
        ) from error
    if further:
        transport.close()
        raise _refused(user, connection, f"the host also asks for {foreign_text(', '.join(further))}", place)
    transport.set_keepalive(SSH_KEEPALIVE_S)


def _refused(user: str, connection: Connection, said: str, place: str) -> UnreachableError:
    return UnreachableError(
        "ssh.authentication_failed",
        f'the host does not let user "{user}" in with {connection.identity_file}: {said}',
        place=place,
        next_step="add the key's public half to the user's authorized_keys on the host",
    )


def _host_key_error(host: str, pins: Sequence[HostKeyPin], shown: list[paramiko.PKey], place: str) -> UnreachableError:
    if not shown:
        types = ", ".join(sorted({pin.key_type or "" for pin in pins}))
        return UnreachableError(
            "ssh.host_key_changed",
            f"the host has no key of the pinned type {types}",
            place=place,
            next_step="if the host was reinstalled on purpose, pin its new key in sb.yml",
        )
    offered = "; ".join(f"{key.get_name()} {key.fingerprint}" for key in shown)
    line = f'hosts.{host}.host_key: "{shown[0].fingerprint}"'
    if not pins:
        return UnreachableError(
            "ssh.host_key_unknown",
            f"no host key is pinned for this host; it shows {offered}",
            place=place,
            next_step=f"compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host, then write {line}",
        )
    pinned = ", ".join(pin.fingerprint for pin in pins)
    return UnreachableError(
        "ssh.host_key_changed",
        f"THE HOST KEY IS NOT THE PINNED ONE: pinned {pinned}, shown {offered}; somebody may be in between",
        place=place,
        next_step=f"only if the host was reinstalled on purpose and the fingerprint was compared there, write {line}",
    )
