"""`fleet.ssh`, and `ssh` of defaults, groups and hosts: how logins are made, and which hosts stand in between."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.base.field_types import Block, FilePath, HostAddress, Id, Items, PlainText, Port, expected

__all__ = ["NO_JUMP", "BecomeModel", "HostKey", "JumpModel", "LoginSecret", "SshModel"]

NO_JUMP: Final = "none"
_SOURCES: Final = ("env:", "file:", "exec:", "secret:")


def _check_host_key(text: str) -> str:
    fingerprint = text.removeprefix("SHA256:")
    if fingerprint != text and len(fingerprint) == 43:
        return text
    parts = text.split(" ")
    if len(parts) >= 2 and parts[0].startswith(("ssh-", "ecdsa-sha2-", "sk-")) and len(parts[1]) > 40:
        return text
    raise expected("a host key: SHA256:<43 characters> as ssh-keygen -lf prints it, or a public key line")


HostKey = Annotated[
    str,
    AfterValidator(_check_host_key),
    WithJsonSchema({"type": "string", "maxLength": 2048, "pattern": "^(SHA256:|ssh-|ecdsa-sha2-|sk-)"}),
]


def _check_login_secret(text: str) -> str:
    source = next((each for each in _SOURCES if text.startswith(each)), None)
    named = source is not None and text[len(source) :].strip() and len(text) <= 4096 and text.isprintable()
    if text != "prompt" and not named:
        raise expected(
            "a reference, never the secret itself: env:NAME, file:PATH, exec:COMMAND, secret:NAME, or prompt"
        )
    return text


LoginSecret = Annotated[
    str,
    AfterValidator(_check_login_secret),
    WithJsonSchema({"type": "string", "maxLength": 4096, "pattern": "^(env:|file:|exec:|secret:|prompt)"}),
]


class BecomeModel(Block):
    """How a login becomes root."""

    noun: ClassVar[str] = "become"

    method: Literal["sudo"] = Field(default="sudo", description="How the login becomes root.")
    password: LoginSecret | None = Field(
        default=None, description="What sudo asks for: a reference, or prompt. Unset: sudo must not ask."
    )


class _LoginModel(Block):
    user: PlainText | None = Field(default=None, description="Login name. Unset: root.")
    port: Port | None = Field(default=None, description="Port of sshd. Unset: 22.")
    identity_file: FilePath | None = Field(
        default=None,
        description="Private key file in OpenSSH's form. Every SSH host needs one, or agent_key; no other key is tried.",
    )
    passphrase: LoginSecret | None = Field(
        default=None, description="What opens identity_file, if it is encrypted: a reference, or prompt."
    )
    certificate_file: FilePath | None = Field(
        default=None, description="OpenSSH user certificate of the key, as ssh-keygen -s makes it."
    )
    agent_key: PlainText | None = Field(
        default=None,
        description="One key of the SSH agent (SSH_AUTH_SOCK), by fingerprint SHA256:… or comment, instead of identity_file.",
    )


class JumpModel(_LoginModel):
    """A host in between, which sbctl does not manage."""

    noun: ClassVar[str] = "a jump"

    address: HostAddress | None = Field(default=None, description="How SSH reaches the jump. Unset: its name.")
    host_key: HostKey | Items[HostKey] | None = Field(
        default=None, description="Its pinned SSH key: SHA256:… or a public key line. Unset: the one in sb.hosts.lock."
    )
    jump: Id | None = Field(default=None, description="The jump before this one. Unset: it is reached directly.")


class SshModel(_LoginModel):
    """How to log in to hosts."""

    noun: ClassVar[str] = "ssh settings"

    become: Literal["sudo", "none"] | BecomeModel | None = Field(
        default=None, description="sudo: a login that is not root does its work as root. Unset: it does not."
    )
    jump: Id | None = Field(
        default=None,
        description="The host in between: one of fleet.ssh.jumps or of fleet.hosts; none: reached directly. Unset: none.",
    )
    jumps: dict[Id, JumpModel] | None = Field(
        default=None, max_length=256, description="Hosts in between that sbctl does not manage; only in fleet.ssh."
    )
    config: FilePath | None = Field(
        default=None,
        description="An ssh_config to take HostName, User, Port, IdentityFile and ProxyJump from, where this file says nothing. "
        "Unset: none is read.",
    )
    host_keys: FilePath | None = Field(
        default=None, description="File of pinned host keys; only in fleet.ssh. Unset: sb.hosts.lock beside this file."
    )
