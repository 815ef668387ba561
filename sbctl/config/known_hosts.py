"""OpenSSH's known_hosts, read line by line: what somebody has come to trust by other means, to pin hosts from.

Hashed names, `[host]:port`, wildcards and negations mean what sshd(8) says. A line with `@cert-authority`, an algorithm that is not
accepted, or nonsense is reported with its number and left out; it never stops the rest. A key that any `@revoked` line has is revoked for
every host.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.fs import read_bounded
from sbctl.base.host_keys import HostKey, parse_host_key
from sbctl.base.limits import KNOWN_HOSTS_MAX_BYTES
from sbctl.base.patterns import matches_wildcard

__all__ = ["KnownHosts", "LineNote", "parse_known_hosts", "read_known_hosts"]

_LINE_MAX_BYTES: Final = 16 * 1024
_NOTES_MAX: Final = 1000
_HASH_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class LineNote:
    """What is said of a line that was left out. `line` counts from 1."""

    line: int
    sentence: str


@dataclass(frozen=True, slots=True)
class _Known:
    line: int
    names: tuple[str, ...]
    key: HostKey


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """A file as far as it can be used."""

    entries: tuple[_Known, ...]
    revoked: frozenset[HostKey]
    notes: tuple[LineNote, ...]

    def keys_for(self, address: str, port: int) -> tuple[tuple[int, HostKey], ...]:
        """(line, key) of every key that the file knows for a host, revoked ones too; each key once, with its first line."""
        found: dict[HostKey, int] = {}
        for entry in self.entries:
            if _names(entry.names, address.lower(), port):
                found.setdefault(entry.key, entry.line)
        return tuple((line, key) for key, line in found.items())


def read_known_hosts(path: Path) -> KnownHosts:
    """Raises InputError `file.*`."""
    return parse_known_hosts(read_bounded(path, max_bytes=KNOWN_HOSTS_MAX_BYTES))


def parse_known_hosts(data: bytes) -> KnownHosts:
    """Never raises: what cannot be read is in the notes."""
    entries: list[_Known] = []
    revoked: set[HostKey] = set()
    notes: list[LineNote] = []
    for number, raw in enumerate(data.split(b"\n"), start=1):
        try:
            line = _parsed(raw)
        except ValueError as error:
            if len(notes) < _NOTES_MAX:
                notes.append(LineNote(number, str(error)))
            continue
        if line is None:
            continue
        marker, names, key = line
        if marker == "@revoked":
            revoked.add(key)
            if len(notes) < _NOTES_MAX:
                notes.append(LineNote(number, f"the key {key.fingerprint} is revoked; it is never pinned"))
        else:
            entries.append(_Known(number, names, key))
    return KnownHosts(tuple(entries), frozenset(revoked), tuple(notes))


def _parsed(raw: bytes) -> tuple[str, tuple[str, ...], HostKey] | None:
    """Marker, names and key of a line; None for a comment. Raises ValueError with a sentence."""
    words = raw.strip(b" \t\r").split(None, 4) if len(raw) <= _LINE_MAX_BYTES else None
    if words is None:
        raise ValueError("the line is longer than any line of the format")
    if not words or words[0].startswith(b"#"):
        return None
    marker = ""
    if words[0].startswith(b"@"):
        marker = words.pop(0).decode("ascii", "replace")
    if marker == "@cert-authority":
        raise ValueError("a certificate authority: only the keys of single hosts are pinned, so it is left out")
    if marker not in ("", "@revoked"):
        raise ValueError("the marker is none of @cert-authority and @revoked")
    if len(words) < 3:
        raise ValueError("a line is: NAMES ALGORITHM KEY")
    try:
        names, algorithm, blob = (word.decode("ascii") for word in words[:3])
    except UnicodeDecodeError:
        raise ValueError("names, algorithm and key must be plain ASCII") from None
    return marker, tuple(names.split(",")), parse_host_key(algorithm, blob)


def _names(patterns: tuple[str, ...], address: str, port: int) -> bool:
    """Whether a line's names are the host's; one `!pattern` that matches rules the whole line out."""
    found = False
    for pattern in patterns:
        negated = pattern.startswith("!")
        if any(_is_name(pattern.removeprefix("!"), form) for form in _forms(address, port)):
            if negated:
                return False
            found = True
    return found


def _forms(address: str, port: int) -> Iterator[str]:
    yield f"[{address}]:{port}"
    if port == 22:
        yield address


def _is_name(pattern: str, form: str) -> bool:
    if pattern.startswith("|"):
        return _is_hash(pattern, form)
    return matches_wildcard(pattern.lower(), form)


def _is_hash(pattern: str, form: str) -> bool:
    parts = pattern.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[2:])
    except (ValueError, binascii.Error):
        return False
    if len(salt) != _HASH_BYTES or len(digest) != _HASH_BYTES:
        return False
    return hmac.compare_digest(hmac.new(salt, form.encode(), hashlib.sha1).digest(), digest)
