"""The system's own `ssh`, for a person at a terminal: it knows what sb.yml says of the way to a host, and nothing else.

A private configuration names every hop with its user, port, key and the pinned host keys, so neither the user's ssh_config nor any other
known_hosts file has a say, no key is learnt, and nothing is forwarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.connection import Jump
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.fs import write_atomic
from sbctl.base.host_keys import fingerprint_of_pin
from sbctl.base.limits import SNAPSHOT_DEADLINE_S, SSH_CONNECT_DEADLINE_S, SSH_KEEPALIVE_S
from sbctl.remote.secrets import SecretSource, no_secrets
from sbctl.remote.ssh_connect import hop_place
from sbctl.remote.ssh_links import SshLinks

__all__ = ["KnownHop", "known_hops", "ssh_configuration", "write_ssh_files"]

_OPTIONS: Final = (
    ("GlobalKnownHostsFile", "/dev/null"),
    ("StrictHostKeyChecking", "yes"),
    ("UpdateHostKeys", "no"),
    ("CheckHostIP", "no"),
    ("VerifyHostKeyDNS", "no"),
    ("IdentitiesOnly", "yes"),
    ("PreferredAuthentications", "publickey"),
    ("ForwardAgent", "no"),
    ("ForwardX11", "no"),
    ("PermitLocalCommand", "no"),
    ("ConnectTimeout", f"{SSH_CONNECT_DEADLINE_S:.0f}"),
    ("ServerAliveInterval", str(SSH_KEEPALIVE_S)),
)


@dataclass(frozen=True, slots=True)
class KnownHop:
    """One sshd on the way, with whole host keys, and where the key of the login is for ssh."""

    hop: Jump
    host_keys: tuple[str, ...]
    identity: str
    """A file: a private key, or the public half of a key that the agent has."""

    @property
    def alias(self) -> str:
        """As the private configuration calls it; never an option, never an address."""
        return f"sbctl-{self.hop.name}"


def known_hops(
    path: Sequence[Jump], directory: Path, clock: Clock, *, secrets: SecretSource = no_secrets
) -> tuple[KnownHop, ...]:
    """Every hop with what ssh needs of it. A pin that is only a fingerprint is completed with the key that the host shows, if that has it.

    Raises RefusedError `shell.key_not_known`, UnreachableError `ssh.*`.
    """
    links = SshLinks(clock, secrets)
    try:
        return tuple(_known(path[:size], directory, links) for size in range(1, len(path) + 1))
    finally:
        links.close()


def _known(path: Sequence[Jump], directory: Path, links: SshLinks) -> KnownHop:
    hop = path[-1]
    keys = tuple(pin for pin in hop.host_keys if not pin.startswith("SHA256:"))
    if not keys:
        shown = links.host_key(path, deadline_s=SNAPSHOT_DEADLINE_S)
        if shown.fingerprint not in {fingerprint_of_pin(pin) for pin in hop.host_keys}:
            raise RefusedError(
                "shell.key_not_known",
                f"{hop.name} shows {shown.fingerprint} ({shown.algorithm}), which is not its pinned key, and ssh needs a whole key",
                place=hop_place(path),
                next_step=f"if the pin is of another algorithm, pin the whole key: sbctl host trust {hop.name}",
            )
        keys = (shown.text,)
    identity = hop.identity_file
    if hop.agent_key:
        with links.keyring.login(hop, hop_place(path)) as login:
            file = directory / f"{hop.name}.pub"
            write_atomic(file, f"{login.keys[0].get_name()} {login.keys[0].get_base64()}\n".encode("ascii"))
            identity = str(file)
    return KnownHop(hop, keys, identity)


def ssh_configuration(hops: Sequence[KnownHop], known_hosts: Path) -> str:
    """The text of the private configuration. Raises InputError `shell.refused` for a value that ssh's file cannot hold."""
    lines: list[str] = []
    for index, known in enumerate(hops):
        hop = known.hop
        fields = [
            ("HostName", hop.address),
            ("HostKeyAlias", known.alias),
            ("Port", str(hop.port)),
            ("User", hop.user),
            ("IdentityFile", known.identity),
            ("CertificateFile", hop.certificate_file),
            ("ProxyJump", hops[index - 1].alias if index else "none"),
            ("UserKnownHostsFile", str(known_hosts)),
        ]
        lines.append(f"Host {known.alias}")
        lines += [f"  {name} {_word(value)}" for name, value in (*fields, *_OPTIONS) if value]
    return "\n".join((*lines, ""))


def _word(value: str) -> str:
    """Quoted as ssh_config(5) has it; `%` is doubled, since ssh puts values in for it."""
    if any(char in value for char in '"\\\n\r\0') or value.startswith("-"):
        raise InputError(
            "shell.refused",
            f"ssh cannot be told a value such as {value[:64]!r}",
            next_step="correct the value in fleet.ssh of sb.yml, or of the host",
        )
    text = value.replace("%", "%%")
    return f'"{text}"' if any(char in text for char in " \t#'") else text


def write_ssh_files(hops: Sequence[KnownHop], directory: Path) -> tuple[str, ...]:
    """Write what ssh reads into `directory`, which only its owner may read. Returns the arguments that lead to the last hop."""
    known_hosts, configuration = directory / "known_hosts", directory / "config"
    lines = [f"{known.alias} {key}\n" for known in hops for key in known.host_keys]
    write_atomic(known_hosts, "".join(lines).encode("ascii"))
    write_atomic(configuration, ssh_configuration(hops, known_hosts).encode())
    return ("-F", str(configuration), "--", hops[-1].alias)
