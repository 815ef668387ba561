"""From `ssh` settings to connections: which login each host gets, and through which hosts it is reached.

Host over group over `defaults` over `fleet.ssh`, then the ssh_config that sb.yml names, then root and port 22. A layer that names a key
replaces all that weaker layers say of keys. A jump takes user and key from `fleet.ssh` where it names none.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Final

from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import InputError, SourceSpan
from sbctl.base.suggest import did_you_mean
from sbctl.config.diagnose import Report
from sbctl.config.document import Document, Path
from sbctl.config.fleet import FleetModel
from sbctl.config.pins import PinBook
from sbctl.config.ssh_config import SshConfig, SshConfigAnswer, SshHop, read_ssh_config
from sbctl.config.ssh_fields import NO_JUMP, BecomeModel, JumpModel, SshModel

__all__ = ["SshWays"]

_KEY_FIELDS: Final = ("identity_file", "agent_key", "certificate_file", "passphrase")
_ROOT: Final = "root"


@dataclass(frozen=True, slots=True)
class _Way:
    """What comes before a host: a name of sb.yml, or hops of an ssh_config; `own` when the host itself names it."""

    name: str = ""
    hops: tuple[SshHop, ...] = ()
    span: SourceSpan | None = None
    own: bool = False


@dataclass
class SshWays:
    """One run over one file. First `direct` for every host, then `whole`. Findings go to the report."""

    report: Report
    document: Document
    fleet: FleetModel
    book: PinBook
    secrets: Mapping[str, str]
    """Names under `secrets`, and the reference that each stands for."""
    _hosts: dict[str, Connection] = field(default_factory=dict)
    _ways: dict[str, _Way] = field(default_factory=dict)
    _paths: dict[str, tuple[Jump, ...]] = field(default_factory=dict)
    _files: dict[str, SshConfig] = field(default_factory=dict)
    _circles: set[frozenset[str]] = field(default_factory=set)

    def direct(self, name: str, address: str, layers: Sequence[tuple[Path, SshModel]]) -> Connection:
        """How host `name` is logged in to, without pins and jumps. `layers`: where each stands and what it says, weakest first."""
        if address == "local":
            connection = Connection("local")
            self._hosts[name] = connection
            return connection
        ssh = self._merged(layers)
        answer = self._asked(ssh.config, address)
        user = ssh.user or answer.user or _ROOT
        become, password = self._become(ssh, user, layers)
        has_key = ssh.identity_file or ssh.agent_key
        connection = Connection(
            "ssh",
            address=answer.address or address,
            port=ssh.port or answer.port or 22,
            user=user,
            identity_file=self._absolute(ssh.identity_file if has_key else answer.identity_file),
            certificate_file=self._absolute(ssh.certificate_file),
            agent_key=ssh.agent_key or "",
            passphrase=self._secret(ssh.passphrase, _span(self.document, layers, "passphrase")),
            become="sudo" if become else "",
            become_password=password,
        )
        self._ways[name] = self._way(ssh, answer, name, layers)
        self._hosts[name] = connection
        return connection

    def pinned(self, name: str, connection: Connection) -> None:
        """The connection of `direct` with its pins, for hosts that are reached through this one."""
        self._hosts[name] = connection

    def whole(self, name: str, connection: Connection) -> Connection:
        """With its jumps; every host has had its `pinned`."""
        if connection.kind == "local":
            return connection
        return replace(connection, jumps=self._before(name, ()))

    def _before(self, name: str, seen: tuple[str, ...]) -> tuple[Jump, ...]:
        """The jumps on the way to a host of sb.yml."""
        way = self._ways.get(name, _Way())
        if way.name == name and not way.own:
            return ()
        if way.name:
            return self._path_to(way.name, way.span, (*seen, name))
        path: tuple[Jump, ...] = ()
        for index, hop in enumerate(way.hops):
            found = self._path_to(hop.host, way.span, (*seen, name), from_config=True)
            if not found:
                return ()
            last = replace(
                found[-1],
                user=hop.user or found[-1].user,
                port=hop.port or found[-1].port,
            )
            path = (*found[:-1], last) if index == 0 else (*path, last)
        return path

    def _path_to(
        self, name: str, span: SourceSpan | None, seen: tuple[str, ...], *, from_config: bool = False
    ) -> tuple[Jump, ...]:
        """The jumps up to and with `name`; empty after a finding."""
        if name in seen:
            circle = seen[seen.index(name) :]
            if frozenset(circle) not in self._circles:
                self._circles.add(frozenset(circle))
                shown = " → ".join((*circle, name))
                self.report.add("config.jump_cycle", f"the way leads in a circle: {shown}", span)
            return ()
        if name in self._paths:
            return self._paths[name]
        jumps = self.fleet.ssh.jumps or {}
        if name in jumps:
            model, where = jumps[name], ("fleet", "ssh", "jumps", name)
            if name in self._hosts:
                message = f'"{name}" is a host and a jump; a managed host needs no entry in jumps'
                self.report.add("config.duplicate_host", message, self.document.key_span(where))
            before: tuple[Jump, ...] = ()
            if model.jump is not None and model.jump != NO_JUMP:
                before = self._path_to(model.jump, self.document.value_span((*where, "jump")), (*seen, name))
            found: tuple[Jump, ...] = (*before, self._jump(name, model, where))
        elif name in self._hosts:
            if self._hosts[name].kind == "local":
                message = f'"{name}" is this machine; a jump is a host that SSH reaches'
                self.report.add("config.unknown_jump", message, span)
                return ()
            found = (*self._before(name, seen), self._hosts[name].path(name)[-1])
        else:
            self._unknown(name, span, from_config=from_config)
            return ()
        self._paths[name] = found
        return found

    def _unknown(self, name: str, span: SourceSpan | None, *, from_config: bool) -> None:
        known = (*(self.fleet.ssh.jumps or ()), *self._hosts)
        close = did_you_mean(name, known)
        label = f'did you mean "{close}"?' if close else ""
        if from_config:
            message = f'the ssh_config leads through "{name}", whose key sb.yml does not pin'
            notes = [f'add it: fleet.ssh.jumps: {{{name}: {{host_key: "SHA256:…"}}}}']
        else:
            message = f'there is no jump "{name}"'
            notes = [f"jumps and hosts: {', '.join(sorted(known)[:12]) or 'none'}"]
        self.report.add("config.unknown_jump", message, span, label=label, notes=notes)

    def _jump(self, name: str, model: JumpModel, where: Path) -> Jump:
        answer = self._asked(self.fleet.ssh.config, model.address or name)
        written = (model.host_key,) if isinstance(model.host_key, str) else tuple(model.host_key or ())
        shared = self.fleet.ssh
        own_key = model.identity_file or model.agent_key
        keys: JumpModel | SshModel = model if own_key or answer.identity_file else shared
        place = where if keys is model else ("fleet", "ssh")
        self._one_key(keys, place)
        return Jump(
            name,
            answer.address or model.address or name,
            model.port or answer.port or 22,
            model.user or answer.user or shared.user or _ROOT,
            self.book.pins(name, where, written),
            self._absolute(keys.identity_file or ("" if keys.agent_key else answer.identity_file)),
            self._absolute(keys.certificate_file),
            keys.agent_key or "",
            self._secret(keys.passphrase, self.document.value_span((*place, "passphrase"))),
        )

    def _merged(self, layers: Sequence[tuple[Path, SshModel]]) -> SshModel:
        values: dict[str, object] = {}
        for path, layer in layers:
            said = {name: value for name, value in layer if value is not None}
            self._one_key(layer, path)
            if "identity_file" in said or "agent_key" in said:
                for name in _KEY_FIELDS:
                    values.pop(name, None)
            values.update(said)
        return SshModel.model_construct(None, **values)

    def _one_key(self, login: SshModel | JumpModel, path: Path) -> None:
        if login.identity_file and login.agent_key:
            message = "identity_file and agent_key are two keys; name one"
            self.report.add("config.rule", message, self.document.key_span((*path, "agent_key")))
        if login.passphrase and login.agent_key:
            message = "a key of the agent needs no passphrase"
            self.report.add("config.rule", message, self.document.key_span((*path, "passphrase")))

    def _become(self, ssh: SshModel, user: str, layers: Sequence[tuple[Path, SshModel]]) -> tuple[bool, str]:
        become = ssh.become
        if become is None or become == NO_JUMP or user == _ROOT:
            return False, ""
        password = become.password if isinstance(become, BecomeModel) else None
        return True, self._secret(password, _span(self.document, layers, "become"))

    def _secret(self, reference: str | None, span: SourceSpan | None) -> str:
        """A reference that needs no sb.yml: names of `secrets` replaced, files absolute."""
        found = reference or ""
        if found.startswith("secret:"):
            name = found.removeprefix("secret:")
            if name not in self.secrets:
                close = did_you_mean(name, self.secrets)
                self.report.add(
                    "config.unknown_secret",
                    f'there is no secret "{name}"',
                    span,
                    label=f'did you mean "{close}"?' if close else "",
                    notes=(f"secrets: {', '.join(sorted(self.secrets)) or 'none'}",),
                )
                return ""
            found = self.secrets[name]
            if found.startswith("node-file:"):
                message = f'the secret "{name}" is a file on a host; a login needs it before it gets there'
                self.report.add("config.rule", message, span)
        if found.startswith("file:"):
            return f"file:{self._absolute(found.removeprefix('file:'))}"
        return found

    def _absolute(self, path: str | None) -> str:
        if not path or path.startswith(("/", "~")):
            return path or ""
        return str(FilePath(self.document.path).absolute().parent / path)

    def _way(self, ssh: SshModel, answer: SshConfigAnswer, name: str, layers: Sequence[tuple[Path, SshModel]]) -> _Way:
        if ssh.jump is not None:
            at = next(path for path, layer in reversed(layers) if layer.jump is not None)
            span = self.document.value_span((*at, "jump"))
            own = at == layers[-1][0]
            return _Way(span=span) if ssh.jump == NO_JUMP else _Way(ssh.jump, span=span, own=own)
        span = _span(self.document, layers, "config")
        if answer.command_line:
            self.report.add(
                "config.ssh_config_command",
                f'line {answer.command_line} of {ssh.config} reaches "{name}" by a ProxyCommand, and sbctl runs none',
                span,
                notes=("name the host in between: ssh.jump (or jump: none, if there is none)",),
            )
        return _Way(hops=answer.jumps, span=span)

    def _asked(self, config: str | None, name: str) -> SshConfigAnswer:
        if not config:
            return SshConfigAnswer()
        if config not in self._files:
            self._files[config] = self._read(config)
        return self._files[config].lookup(name, home=str(FilePath("~").expanduser()), local_user=getpass.getuser())

    def _read(self, config: str) -> SshConfig:
        path = FilePath(self._absolute(config)).expanduser()
        span = self.document.value_span(("fleet", "ssh", "config"))
        try:
            found = read_ssh_config(path)
        except InputError as error:
            self.report.add("config.ssh_config_unreadable", f"{config} cannot be read: {error.message}", span)
            return SshConfig()
        for line, sentence in found.ignored:
            self.report.note("config.ssh_config_ignored", f"{config}:{line}: {sentence}", span)
        return found


def _span(document: Document, layers: Sequence[tuple[Path, SshModel]], name: str) -> SourceSpan | None:
    at = next((path for path, layer in reversed(layers) if getattr(layer, name) is not None), ("fleet", "ssh"))
    return document.value_span((*at, name))
