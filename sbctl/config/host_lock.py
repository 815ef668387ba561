"""`sb.hosts.lock`: the pinned SSH keys of hosts, one a line, made to be committed and read in a diff.

    # sb.hosts.lock v1: pinned SSH host keys, written by `sbctl host trust`; commit this file
    gpu-a 10.10.0.21:22 ssh-ed25519 AAAAC3Nz… # SHA256:…

A line is a host's name, the address it was trusted at, the key and its fingerprint, which must be the key's: what a reviewer reads is what
counts. The name decides, the address informs. A host may have one key of each algorithm. Lines may stand in any order (merges do that) and
are written sorted. Everything else is an error with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import ConfigError, Diagnostic, InputError, SourceSpan
from sbctl.base.fs import read_bounded, write_atomic
from sbctl.base.host_keys import HostKey, parse_host_key
from sbctl.base.ids import is_id
from sbctl.base.limits import HOST_LOCK_MAX_BYTES

__all__ = ["LOCK_NAME", "HostLock", "LockedKey", "read_host_lock", "write_host_lock"]

LOCK_NAME: Final = "sb.hosts.lock"
_HEAD: Final = f"# {LOCK_NAME} v1"
_HEAD_START: Final = f"# {LOCK_NAME} ".encode("ascii")
_HEAD_LINE: Final = f"{_HEAD}: pinned SSH host keys, written by `sbctl host trust`; commit this file"
_HEAD_RE: Final = re.compile(r"# sb\.hosts\.lock v([0-9]{1,6})(?::.*)?")
_ADDRESS_RE: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%a-z]{2,64})\]|([A-Za-z0-9._-]{1,253})):([1-9][0-9]{0,4})")
_SHAPE: Final = "a line is: NAME ADDRESS:PORT ALGORITHM KEY # SHA256:…"
_MAX_FINDINGS: Final = 50
_SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class LockedKey:
    """One line."""

    name: str
    address: str
    port: int
    key: HostKey
    line: int = field(default=0, compare=False)
    """Counts from 1; 0 for one that stands in no file yet."""

    @property
    def text(self) -> str:
        """As it is written."""
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.name} {shown}:{self.port} {self.key.text} # {self.key.fingerprint}"


@dataclass(frozen=True, slots=True)
class HostLock:
    """All pins of one file; a file that does not exist has none."""

    path: Path
    keys: Mapping[str, tuple[LockedKey, ...]] = field(default_factory=dict)
    """By the host's name; the keys of one host by algorithm."""

    def pins(self, name: str) -> tuple[str, ...]:
        """As `Connection.host_keys` wants them; empty when nothing is pinned."""
        return tuple(each.key.text for each in self.keys.get(name, ()))

    def place(self, name: str) -> str:
        """`FILE:LINE` of a host's first key."""
        return f"{self.path}:{self.keys[name][0].line}"

    def pinned(self, name: str, keys: Iterable[LockedKey]) -> HostLock:
        """With `keys` in place of all that was pinned for `name`."""
        return HostLock(self.path, {**self.keys, name: tuple(sorted(keys, key=lambda each: each.key))})

    def without(self, names: Iterable[str]) -> HostLock:
        """Less all that was pinned for `names`."""
        gone = set(names)
        return HostLock(self.path, {name: keys for name, keys in self.keys.items() if name not in gone})

    def text(self) -> str:
        """The file."""
        lines = [each.text for name in sorted(self.keys) for each in self.keys[name]]
        return "\n".join((_HEAD_LINE, *lines, ""))


def read_host_lock(path: Path, *, shown: str | None = None) -> HostLock:
    """`shown` is how messages call the file. Raises ConfigError with every finding, InputError `file.*`; a missing file is empty."""
    try:
        data = read_bounded(path, max_bytes=HOST_LOCK_MAX_BYTES)
    except InputError as error:
        if error.code == "file.missing":
            return HostLock(path)
        raise
    reader = _Reader(shown or str(path))
    reader.read(data)
    if reader.findings:
        raise ConfigError(reader.findings[:_MAX_FINDINGS])
    return HostLock(path, {name: tuple(sorted(keys, key=lambda each: each.key)) for name, keys in reader.keys.items()})


def write_host_lock(lock: HostLock) -> None:
    """Replace the file whole and durably; others may read it. Raises SbctlError `disk.*`."""
    write_atomic(lock.path, lock.text().encode("ascii"), mode=0o644)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.findings: list[Diagnostic] = []
        self.keys: dict[str, list[LockedKey]] = {}

    def read(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if lines and lines[-1] == b"":
            lines.pop()
        else:
            self._say("lock.cut", "the last line has no end, so it may have been cut", len(lines), "")
            return
        if not data.startswith(_HEAD_START):
            # Nothing of it is shown: it may be any file of this machine.
            self._say(
                "lock.no_head", f'the first line must begin with "{_HEAD}"', 1, "", "sbctl host trust writes the file"
            )
            return
        texts = list(self._texts(lines))
        if not self.findings:
            self._head(texts[0])
        for number, text in enumerate(texts, start=1):
            if len(self.findings) >= _MAX_FINDINGS:
                return
            if text and not text.startswith("#"):
                self._line(number, text)

    def _texts(self, lines: list[bytes]) -> Iterator[str]:
        for number, raw in enumerate(lines, start=1):
            text = raw.decode("ascii", "replace")
            if not text.isascii() or any(ord(char) < 32 or ord(char) == 127 for char in text):
                what = (
                    "a carriage return: save it with plain line ends"
                    if text.endswith("\r")
                    else "characters that no key line has"
                )
                self._say("lock.text_refused", f"the line has {what}", number, text)
                text = ""
            yield text

    def _head(self, text: str) -> None:
        match = _HEAD_RE.fullmatch(text)
        if match is None:
            self._say(
                "lock.no_head", f'the first line must begin with "{_HEAD}"', 1, text, "sbctl host trust writes the file"
            )
        elif match[1] != "1":
            self._say(
                "lock.unsupported_version",
                f"the file has version {match[1]}; this sbctl reads 1",
                1,
                text,
                "use a newer sbctl",
            )

    def _line(self, number: int, text: str) -> None:
        if text.startswith(("<<<<<<<", "=======", ">>>>>>>", "|||||||")):
            self._say(
                "lock.merge_conflict",
                "a merge was left unfinished here",
                number,
                text,
                "settle it, or take one side and run sbctl host trust",
            )
            return
        words = text.split(" ")
        if len(words) != 6 or words[4] != "#":
            self._say("lock.syntax", "this is not a line of the file", number, text, _SHAPE)
            return
        name, address, algorithm, blob, _, shown = words
        at = _ADDRESS_RE.fullmatch(address)
        if not is_id(name):
            self._say("lock.bad_name", "this is not the name of a host", number, text, _SHAPE)
        elif at is None or int(at[3]) > 65535:
            self._say("lock.bad_address", "this is not ADDRESS:PORT", number, text, _SHAPE)
        else:
            self._key(number, text, _Place(name, at[1] or at[2], int(at[3])), (algorithm, blob, shown))

    def _key(self, number: int, text: str, place: _Place, written: tuple[str, str, str]) -> None:
        algorithm, blob, shown = written
        try:
            key = parse_host_key(algorithm, blob)
        except ValueError as error:
            self._say("lock.bad_key", str(error), number, text)
            return
        if key.fingerprint != shown:
            message = f"the fingerprint is not that of the key, which is {key.fingerprint}"
            self._say(
                "lock.fingerprint_mismatch",
                message,
                number,
                text,
                "somebody edited one of the two; find out who before trusting either",
            )
            return
        before = self.keys.setdefault(place.name, [])
        first = next((each for each in before if each.key.algorithm == algorithm), None)
        if first is not None:
            message = f'host "{place.name}" has two keys of {algorithm}'
            self._say(
                "lock.duplicate_key",
                message,
                number,
                text,
                f"the first: {self.name}:{first.line}; sbctl host trust {place.name}",
            )
            return
        before.append(LockedKey(place.name, place.address, place.port, key, number))

    def _say(self, code: str, message: str, line: int, text: str, *notes: str) -> None:
        shown = display_safe(text, max_chars=_SHOWN_CHARS)
        span = SourceSpan(self.name, max(1, line), 1, max(1, min(len(shown), _SHOWN_CHARS)), shown)
        self.findings.append(Diagnostic(code, message, span, notes=notes))


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose key a line has."""

    name: str
    address: str
    port: int
