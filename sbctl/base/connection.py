"""How a host is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Connection", "Jump"]


@dataclass(frozen=True, slots=True)
class Jump:
    """One sshd on the way to a host, or the host's own: where it listens, how it proves itself, how we log in."""

    name: str
    """As sb.yml calls it; errors name it so."""
    address: str
    port: int = 22
    user: str = ""
    host_keys: tuple[str, ...] = ()
    """`SHA256:…` or full OpenSSH public keys; any one of them proves it."""
    identity_file: str = ""
    certificate_file: str = ""
    agent_key: str = ""
    """The one key of the SSH agent to use, by its fingerprint `SHA256:…` or its comment."""
    passphrase: str = ""
    """A reference to the passphrase of `identity_file`; never the passphrase."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How a host is reached; recorded with each resource, so that it can be destroyed without sb.yml. No secrets: a key is named by its file,
    a password by its reference (`env:…`, `file:…`, `exec:…`, `prompt`)."""

    kind: Literal["local", "ssh"]
    address: str = ""
    port: int = 22
    user: str = ""
    host_keys: tuple[str, ...] = ()
    """`SHA256:…` or full OpenSSH public keys; empty only for local."""
    identity_file: str = ""
    certificate_file: str = ""
    agent_key: str = ""
    passphrase: str = ""
    become: Literal["", "sudo"] = ""
    """How the login becomes root."""
    become_password: str = ""
    """A reference to the password that `become` asks for; empty when it asks for none."""
    jumps: tuple[Jump, ...] = ()
    """The hosts in between, first the one that the operator's machine reaches by itself."""

    def path(self, host: str) -> tuple[Jump, ...]:
        """Every sshd on the way, the last one that of the host itself, which is called `host`."""
        login = Jump(
            host,
            self.address,
            self.port,
            self.user,
            self.host_keys,
            self.identity_file,
            self.certificate_file,
            self.agent_key,
            self.passphrase,
        )
        return (*self.jumps, login)
