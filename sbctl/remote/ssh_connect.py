"""One authenticated SSH connection to exactly the sshd that was pinned, or an error that says which of three kinds it is.

    retryable        no answer, refused, reset, no name: another try may work                  (`retryable=True`)
    authentication   the host is the right one, but does not let us in                         (`ssh.authentication_failed`, `ssh.identity_*`, …)
    never retry      the host key is unknown or changed: nothing was sent, nobody logged in    (`ssh.host_key_unknown`, `ssh.host_key_changed`)

The host key is compared before authentication, with a pin from sb.yml; nobody's known_hosts is read, no key is ever accepted on first use,
nothing is forwarded, no command of an ssh_config runs. Weak ciphers and MACs are off. A jump is one more such connection, and what it
carries is a connection of its own: the jump sees neither the host's key exchange nor what is said.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Sequence
from typing import Final

import paramiko

from sbctl.base.clock import Clock
from sbctl.base.connection import Jump
from sbctl.base.errors import UnreachableError
from sbctl.base.host_keys import HostKey, parse_host_key
from sbctl.base.limits import SSH_CONNECT_DEADLINE_S, SSH_KEEPALIVE_S, SSH_UNANSWERED_S
from sbctl.remote.host_key import ANY_KEY, KEY_FAMILIES, HostKeyPin, key_families
from sbctl.remote.ssh_channel import close_quietly
from sbctl.remote.ssh_login import Login
from sbctl.remote.transport import foreign_text

__all__ = ["DISABLED_ALGORITHMS", "connect_hop", "hop_place", "shown_host_key"]

DISABLED_ALGORITHMS: Final[dict[str, list[str]]] = {
    "ciphers": ["aes128-cbc", "aes192-cbc", "aes256-cbc", "3des-cbc"],
    "macs": ["hmac-sha1", "hmac-sha1-96", "hmac-md5", "hmac-md5-96"],
}

_READER_WAKES_S: Final = 1.0
"""How often the library's reader looks up while nothing comes. Its own tenth of a second is most of what fifty waiting hosts cost."""
_NEWER_SSHD: Final = (
    "its sshd needs an Ed25519, ECDSA or RSA key and algorithms of today: look at its version (ssh -V) and sshd_config"
)
_FORBIDDEN_BY_JUMP: Final = 1
_UNREACHED_BY_JUMP: Final = 2

# The library logs tracebacks of broken connections; what matters of them is in our errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def hop_place(path: Sequence[Jump]) -> str:
    """How errors name the last sshd of a path."""
    hop, before = path[-1], path[:-1]
    way = f" through {', '.join(jump.name for jump in before)}" if before else ""
    return f"{hop.name} (ssh {hop.address}:{hop.port}{way})"


def connect_hop(
    hop: Jump, login: Login, *, place: str, through: paramiko.Transport | None, seconds: float, clock: Clock
) -> paramiko.Transport:
    """Within about `seconds` a step. Raises UnreachableError of one of the three kinds, InputError `ssh.host_key_invalid`."""
    pins = tuple(HostKeyPin(text) for text in hop.host_keys)
    limit_s = min(SSH_CONNECT_DEADLINE_S, max(0.1, seconds))
    shown: list[paramiko.PKey] = []
    for family in key_families(pins):
        if any(_is_of(key, family) for key in shown):
            continue
        carrier = _carrier(hop, place, through, limit_s, clock)
        transport = _handshake(carrier, family, place, limit_s, optional=bool(shown))
        if transport is None:
            continue
        key = transport.get_remote_server_key()
        if any(key.fingerprint == pin.fingerprint for pin in pins):
            _authenticate(transport, hop, login, place, seconds=limit_s, clock=clock)
            return transport
        close_quietly(transport)
        shown.append(key)
    raise _host_key_error(hop.name, pins, shown, place)


def shown_host_key(
    hop: Jump, *, place: str, through: paramiko.Transport | None, seconds: float, clock: Clock
) -> HostKey:
    """The best key that the sshd proves to have, pinned or not; nobody logs in. Raises UnreachableError."""
    limit_s = min(SSH_CONNECT_DEADLINE_S, max(0.1, seconds))
    for family in KEY_FAMILIES:
        carrier = _carrier(hop, place, through, limit_s, clock)
        transport = _handshake(carrier, family, place, limit_s, optional=True)
        if transport is None:
            continue
        shown = transport.get_remote_server_key()
        close_quietly(transport)
        try:
            return parse_host_key(shown.get_name(), shown.get_base64())
        except ValueError as error:
            raise UnreachableError(
                "ssh.host_key_unusable",
                f"the host shows no key to pin: {error}",
                place=place,
                next_step="look at the host's keys: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; ssh-keygen -A makes those that lack",
            ) from error
    raise UnreachableError(
        "ssh.no_common_algorithm",
        "the host has no key of an algorithm that we trust",
        place=place,
        next_step=_NEWER_SSHD,
    )


def _is_of(key: paramiko.PKey, family: tuple[str, ...]) -> bool:
    name = key.get_name()
    return name in family or (name == "ssh-rsa" and "rsa-sha2-512" in family)


def _carrier(
    hop: Jump, place: str, through: paramiko.Transport | None, seconds: float, clock: Clock
) -> socket.socket | paramiko.Channel:
    return _dial(hop, place, seconds) if through is None else _open_through(through, hop, place, seconds, clock)


def _dial(hop: Jump, place: str, seconds: float) -> socket.socket:
    try:
        dialed = socket.create_connection((hop.address, hop.port), timeout=seconds)
    except socket.gaierror as error:
        code, what = "ssh.name_unknown", f"the name has no address ({error.strerror})"
    except TimeoutError:
        code, what = "ssh.no_answer", f"gave no answer in {seconds:.3g} s"
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


def _open_through(through: paramiko.Transport, hop: Jump, place: str, seconds: float, clock: Clock) -> paramiko.Channel:
    """A TCP connection that the jump makes for us. Raises UnreachableError; what the library raises when the jump itself is gone."""
    asked_at_s = clock.monotonic_s()
    try:
        return through.open_channel("direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0), timeout=seconds)
    except paramiko.ChannelException as error:
        if error.code == _FORBIDDEN_BY_JUMP:
            raise UnreachableError(
                "ssh.jump_forbids",
                f"the jump does not connect us to {hop.address}:{hop.port}: {foreign_text(error.text)}",
                place=place,
                next_step="allow it in the jump's sshd_config: AllowTcpForwarding local, and PermitOpen where that is set",
            ) from error
        code, what = "ssh.jump_busy", "the jump makes no connection to"
        if error.code == _UNREACHED_BY_JUMP:
            code, what = "ssh.jump_cannot_reach", "the jump does not reach"
        raise UnreachableError(
            code,
            f"{what} {hop.address}:{hop.port}: {foreign_text(error.text)}",
            place=place,
            next_step="check that the host is up, and that the jump's network leads to it",
            retryable=True,
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        # A write may meet the end of a connection before its reader does: only time tells silence from an end.
        if clock.monotonic_s() - asked_at_s < seconds:
            raise
        raise UnreachableError(
            "ssh.no_answer",
            f"gave no answer in {seconds:.3g} s",
            place=place,
            next_step="check that the host is up, and that the jump's network leads to it",
            retryable=True,
        ) from error


def _notice_cuts(dialed: socket.socket) -> None:
    """A cut cable sends nothing, and TCP by itself goes on hoping for a quarter of an hour."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        dialed.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SSH_UNANSWERED_S * 1000)


def _handshake(
    carrier: socket.socket | paramiko.Channel, family: tuple[str, ...], place: str, seconds: float, *, optional: bool
) -> paramiko.Transport | None:
    """Key exchange only. None when the host has no key of this family and that is no error: `optional`, or the pinned type is not there."""
    transport = paramiko.Transport(carrier, disabled_algorithms=DISABLED_ALGORITHMS)
    try:
        transport.get_security_options().key_types = family
        transport.banner_timeout = transport.auth_timeout = seconds
        transport.start_client(timeout=seconds)
        # A handshake that took too long ends without an exception; asking for the key gives one.
        transport.get_remote_server_key()
    except paramiko.ssh_exception.IncompatiblePeer as error:
        close_quietly(transport)
        if "key" in str(error) and (optional or family != ANY_KEY):
            return None
        raise UnreachableError(
            "ssh.no_common_algorithm",
            f"the host offers nothing we trust: {foreign_text(str(error))}",
            place=place,
            next_step=_NEWER_SSHD,
        ) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        close_quietly(transport)
        raise UnreachableError(
            "ssh.connection_lost",
            f"the connection ended during the SSH handshake: {foreign_text(str(error)) or type(error).__name__}",
            place=place,
            next_step="check that sshd answers there (MaxStartups limits connections at once)",
            retryable=True,
        ) from error
    return transport


def _authenticate(
    transport: paramiko.Transport, hop: Jump, login: Login, place: str, *, seconds: float, clock: Clock
) -> None:
    user = hop.user or getpass.getuser()
    said = ""
    for key in login.keys:
        asked_at_s = clock.monotonic_s()
        try:
            further = transport.auth_publickey(user, key)
        except (paramiko.SSHException, OSError, EOFError) as error:
            # The library calls silence and an end "authentication failed" as well.
            is_late = clock.monotonic_s() - asked_at_s >= seconds
            if isinstance(error, paramiko.AuthenticationException) and transport.is_active() and not is_late:
                said = foreign_text(str(error))
                continue
            close_quietly(transport)
            if said and not is_late:
                # It ended the connection after one key too many.
                break
            raise _login_interrupted(place, seconds if is_late else None) from error
        else:
            if not further:
                transport.set_keepalive(SSH_KEEPALIVE_S)
                transport.sock.settimeout(_READER_WAKES_S)
                return
            said = f"the host also asks for {foreign_text(', '.join(further))}"
    close_quietly(transport)
    raise _refused(user, login, said, place)


def _login_interrupted(place: str, silent_s: float | None) -> UnreachableError:
    """`silent_s`: how long no answer came; None when the connection ended."""
    what = "the connection ended" if silent_s is None else f"no answer came in {silent_s:.3g} s"
    return UnreachableError(
        "ssh.connection_lost" if silent_s is None else "ssh.no_answer",
        f"{what} during authentication",
        place=place,
        next_step="check the load of the host and the network, then run the command again",
        retryable=True,
    )


def _refused(user: str, login: Login, said: str, place: str) -> UnreachableError:
    next_step = "add the key's public half to the user's authorized_keys on the host"
    if login.has_certificate:
        next_step = (
            "check its principals and validity (ssh-keygen -Lf), and that the host's TrustedUserCAKeys has its issuer"
        )
    return UnreachableError(
        "ssh.authentication_failed",
        f'the host does not let user "{user}" in with {login.name}: {said}',
        place=place,
        next_step=next_step,
    )


def _host_key_error(
    name: str, pins: Sequence[HostKeyPin], shown: Sequence[paramiko.PKey], place: str
) -> UnreachableError:
    if not shown:
        types = ", ".join(sorted({pin.key_type or "" for pin in pins}))
        return UnreachableError(
            "ssh.host_key_changed",
            f"the host has no key of the pinned type {types}",
            place=place,
            next_step="if the host was reinstalled on purpose, pin its new key (sbctl host trust)",
        )
    offered = "; ".join(f"{key.get_name()} {key.fingerprint}" for key in shown)
    line = f'for {name} in sb.yml: host_key: "{shown[0].fingerprint}"'
    if not pins:
        return UnreachableError(
            "ssh.host_key_unknown",
            f"no host key is pinned for this host; it shows {offered}",
            place=place,
            next_step=f"compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host, then: sbctl host trust {name}; or write {line}",
        )
    pinned = ", ".join(pin.fingerprint for pin in pins)
    return UnreachableError(
        "ssh.host_key_changed",
        f"THE HOST KEY IS NOT THE PINNED ONE: pinned {pinned}, shown {offered}; somebody may be in between",
        place=place,
        next_step=f"only if the host was reinstalled on purpose and the fingerprint was compared there: sbctl host trust {name}; or write {line}",
    )
