"""`~/.ssh/config`, read where sb.yml says so: Host, HostName, User, Port, IdentityFile, ProxyJump, and nothing that runs a command.

A reader of our own. The first value of a matching block wins, as in ssh_config(5). `Match` blocks and `Include` are not followed and are
listed in `ignored`; a `ProxyCommand` is never run and is part of the answer, so that the caller can refuse what would need it. Of the
tokens, `%%` and `%h` (and `%d`, `%u` in IdentityFile) are known; a value with another one is ignored and listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.fs import read_bounded
from sbctl.base.limits import SSH_CONFIG_MAX_BYTES

__all__ = ["SshConfig", "SshConfigAnswer", "SshHop", "parse_ssh_config", "read_ssh_config"]

_LINE: Final = re.compile(r"[ \t]*([A-Za-z0-9]+)(?:[ \t]*=[ \t]*|[ \t]+|\Z)(.*?)[ \t]*\Z")
_WORD: Final = re.compile(r'[ \t]*(?:"([^"]*)"|([^ \t"]+))')
_ADDRESS: Final = re.compile(r"[A-Za-z0-9._:][A-Za-z0-9._:-]{0,252}\Z")
_USER: Final = re.compile(r"[^\s\x00-\x1f\x7f@:-][^\s\x00-\x1f\x7f@:]{0,127}\Z")
_TOKEN: Final = re.compile(r"%(.?)")
_VALUES: Final = ("hostname", "user", "port", "identityfile", "proxyjump", "proxycommand")


@dataclass(frozen=True, slots=True)
class SshHop:
    """One word of a ProxyJump. `user` is empty and `port` 0 where it has none."""

    host: str
    user: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class SshConfigAnswer:
    """What the file says of one name; empty or 0: nothing."""

    address: str = ""
    user: str = ""
    port: int = 0
    identity_file: str = ""
    jumps: tuple[SshHop, ...] = ()
    command_line: int = 0
    """The line of the ProxyCommand that ssh would run to get there."""


@dataclass(frozen=True, slots=True)
class _Setting:
    patterns: tuple[str, ...]
    keyword: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class SshConfig:
    """The file, read. `ignored` has line and sentence of what could have mattered and is not followed."""

    settings: tuple[_Setting, ...] = ()
    ignored: tuple[tuple[int, str], ...] = ()

    def lookup(self, name: str, *, home: str, local_user: str) -> SshConfigAnswer:
        """What ssh would take for `name`. `home` and `local_user` are what %d and %u stand for."""
        first: dict[str, _Setting] = {}
        for setting in self.settings:
            if _matches(setting.patterns, name):
                first.setdefault(setting.keyword, setting)
        found = {keyword: setting.value for keyword, setting in first.items()}
        address = _expanded(found.get("hostname", ""), {"h": name})
        identity = _expanded(found.get("identityfile", ""), {"h": address or name, "d": home, "u": local_user})
        command, jump = first.get("proxycommand"), first.get("proxyjump")
        if command is not None and jump is not None:
            # Whichever stands first switches the other off.
            command, jump = (command, None) if command.line < jump.line else (None, jump)
        return SshConfigAnswer(
            address=address if _ADDRESS.match(address) else "",
            user=found.get("user", ""),
            port=int(found.get("port", "0")),
            identity_file="" if identity.lower() == "none" else identity,
            jumps=_hops(jump.value) if jump is not None else (),
            command_line=command.line if command is not None and command.value.lower() != "none" else 0,
        )


def read_ssh_config(path: Path) -> SshConfig:
    """Raises InputError `file.*`."""
    return parse_ssh_config(read_bounded(path, max_bytes=SSH_CONFIG_MAX_BYTES).decode("utf-8", "replace"))


def parse_ssh_config(text: str) -> SshConfig:
    """Never raises: a line that makes no sense is in `ignored`."""
    settings: list[_Setting] = []
    ignored: list[tuple[int, str]] = []
    patterns: tuple[str, ...] = ("*",)
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r\f")
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        keyword, value = (match[1].lower(), match[2]) if match is not None else ("", "")
        if keyword == "host":
            patterns = tuple(_words(value))
        elif keyword == "match":
            patterns = ()
            ignored.append((number, "Match is not read, nor what stands below it up to the next Host"))
        elif keyword == "include":
            ignored.append((number, "Include is not followed"))
        elif keyword in _VALUES and patterns:
            wrong = _problem(keyword, value)
            if wrong:
                ignored.append((number, wrong))
            else:
                settings.append(_Setting(patterns, keyword, _plain(keyword, value), number))
    return SshConfig(tuple(settings), tuple(ignored))


def _words(text: str) -> Iterator[str]:
    at = 0
    while (match := _WORD.match(text, at)) is not None:
        word = match[1] if match[1] is not None else match[2]
        if word.startswith("#"):
            return
        yield word
        at = match.end()


def _plain(keyword: str, value: str) -> str:
    return value if keyword == "proxycommand" else next(_words(value), "")


def _problem(keyword: str, value: str) -> str:
    """What is wrong with a value that we would use, or nothing."""
    word = _plain(keyword, value)
    allowed = {"hostname": "h%", "identityfile": "hdu%"}.get(keyword, "")
    if not word:
        return f"{keyword} has no value"
    if keyword == "proxycommand":
        return ""
    if not word.isprintable():
        return f"{keyword} has characters that no terminal shows"
    if any(token not in allowed or not token for token in _TOKEN.findall(word)) and keyword != "proxyjump":
        return f"{keyword} has a token that is not known here"
    if keyword == "port" and not _is_port(word):
        return "Port is no number from 1 to 65535"
    if keyword == "user" and not _USER.match(word):
        return "User is no name of a user"
    if keyword == "proxyjump" and word.lower() != "none" and not _hops(word):
        return "ProxyJump is not [user@]host[:port], …"
    return ""


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535


def _hops(value: str) -> tuple[SshHop, ...]:
    """Empty for `none`, and for what cannot be read whole."""
    if value.lower() == "none":
        return ()
    hops = [_hop(part) for part in value.split(",")]
    return tuple(hop for hop in hops if hop is not None) if None not in hops else ()


def _hop(text: str) -> SshHop | None:
    rest = text.removeprefix("ssh://").removesuffix("/")
    user, at, place = rest.rpartition("@")
    if place.startswith("["):
        host, closed, port = place[1:].partition("]")
        port = port.removeprefix(":") if closed else "-"
    elif place.count(":") > 1:
        host, port = place, ""
    else:
        host, _, port = place.partition(":")
    if not _ADDRESS.match(host) or (at and not _USER.match(user)) or (port and not _is_port(port)):
        return None
    return SshHop(host, user, int(port or 0))


def _expanded(value: str, tokens: dict[str, str]) -> str:
    return _TOKEN.sub(lambda match: {"%": "%", **tokens}.get(match[1], match[0]), value)


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    """A name that one pattern takes and no negated one does."""
    lowered = name.lower()
    if any(pattern.startswith("!") and _glob(pattern[1:].lower(), lowered) for pattern in patterns):
        return False
    return any(not pattern.startswith("!") and _glob(pattern.lower(), lowered) for pattern in patterns)


def _glob(pattern: str, text: str) -> bool:
    """`*` and `?`, in time bounded by the product of the lengths."""
    at, star, resume = 0, -1, 0
    index = 0
    while index < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume, at = at, index, at + 1
        elif at < len(pattern) and pattern[at] in ("?", text[index]):
            at, index = at + 1, index + 1
        elif star >= 0:
            resume += 1
            at, index = star + 1, resume
        else:
            return False
    return all(char == "*" for char in pattern[at:])
