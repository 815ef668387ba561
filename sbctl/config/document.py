"""A read YAML file: plain values, and for every value and key the place where it was written.

A path is a tuple of mapping keys and list indexes. Source lines leave here only through `span_at`, which masks values of fields that hold
secrets, so a diagnostic can show a line without showing a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from sbctl.base.errors import Diagnostic, SourceSpan

__all__ = ["ABSENT", "Document", "Node", "Path", "child", "is_reference", "mask_line", "names_secret", "split_lines"]

Path = tuple[str | int, ...]

_LINE_MAX_CHARS: Final = 400
_SECRET_NAME_RE: Final = re.compile(
    r"(?i)password|passphrase|passwd|secret|(?:^|[_.-])token$|api_?key$|shared_key|master_key|private_key|pepper|credential|signing_key$"
)
_REFERENCE_RE: Final = re.compile(r"(?:env|file|exec|node-file|secret):\S.*|\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_OPEN_KEY_FIELDS: Final = frozenset({"models", "priority", "requests_per_minute"})
_USER_INFO_RE: Final = re.compile(r"(://)([^/?#\s\"'@]{1,1024})(?=@)")
_SECRET_LINE_RE: Final = re.compile(
    r"(?i)((?:password|passphrase|passwd|secret|token|api_?key|shared_key|master_key|private_key|pepper|credential)[A-Za-z0-9_]*[\"']?\s*:\s*)(\S.*)"
)


class Node(NamedTuple):
    """Where a value stands. Lines and columns count from 0; `start` and `end` are offsets into the text."""

    key_line: int
    key_column: int
    key_length: int
    line: int
    column: int
    start: int
    end: int


ABSENT: Final = object()


def child(value: Any, part: str | int) -> Any:
    """The entry `part` of a map or a list; ABSENT when there is none."""
    if isinstance(value, dict):
        return value.get(part, ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return ABSENT


def split_lines(text: str) -> list[str]:
    """Lines as YAML counts them."""
    return re.split(r"\r\n|\r|\n", text)


def names_secret(name: str) -> bool:
    """Whether a field of this name may hold a secret."""
    return _SECRET_NAME_RE.search(name) is not None


def _hides_value(path: Path) -> bool:
    """Whether the value at `path` is not shown: a field that holds a secret, or an API key where its hash should stand."""
    if any(isinstance(part, str) and names_secret(part) for part in path):
        return True
    return "api_keys" in path[:-1] and _OPEN_KEY_FIELDS.isdisjoint(path)


def is_reference(text: str) -> bool:
    """Whether a value only says where a secret is, and so may be shown."""
    return _REFERENCE_RE.fullmatch(text) is not None


def mask_line(line: str) -> str:
    """A line of a file that could not be parsed, with everything after the name of a secret field masked."""
    return _mask_addresses(_SECRET_LINE_RE.sub(lambda match: match[1] + "*" * len(match[2]), line))[:_LINE_MAX_CHARS]


def _mask_addresses(line: str) -> str:
    """What stands before the host of an address may be a password."""
    return _USER_INFO_RE.sub(lambda match: match[1] + "*" * len(match[2]), line) if "://" in line else line


@dataclass
class Document:
    """One YAML file. `poisoned` are paths whose value was refused while reading; what stands there is not the user's value."""

    path: str
    text: str
    value: Any = None
    nodes: dict[Path, Node] = field(default_factory=dict)
    findings: list[Diagnostic] = field(default_factory=list)
    poisoned: set[Path] = field(default_factory=set)
    plain: set[Path] = field(default_factory=set)
    """Scalars written without quotes."""
    complete: bool = False
    """False: the parser stopped at an error."""
    parts: dict[Path, Document] = field(default_factory=dict)
    """Of a document joined from several files: the one that each path of `nodes` stands in."""

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.text)

    @cached_property
    def _masked_lines(self) -> dict[int, str]:
        """Lines that hold a secret, masked character by character so that columns stay."""
        masked: dict[int, list[str]] = {}
        containers = {path[:-1] for path in self.nodes if path}
        for path, node in self.nodes.items():
            if path in containers or not _hides_value(path):
                continue
            raw = self.text[node.start : node.end]
            if is_reference(raw.strip("'\" \r\n")):
                continue
            line, column = node.line, node.column
            for char in raw:
                if char == "\n":
                    line, column = line + 1, 0
                    continue
                row = masked.setdefault(line, list(self.lines[line]))
                if char not in " \r" and column < len(row):
                    row[column] = "*"
                column += 1
        return {line: "".join(row) for line, row in masked.items()}

    def source_line(self, line: int) -> str:
        """One line as it may be shown; `line` counts from 0."""
        if not 0 <= line < len(self.lines):
            return ""
        if not self.complete:
            return mask_line(self.lines[line])
        return _mask_addresses(self._masked_lines.get(line, self.lines[line]))[:_LINE_MAX_CHARS]

    def span_at(self, line: int, column: int, length: int = 1) -> SourceSpan:
        """`line` and `column` count from 0; the span counts from 1."""
        if self.parts:
            return self.parts[()].span_at(line, column, length)
        room = max(1, len(self.lines[line]) - column) if 0 <= line < len(self.lines) else 1
        return SourceSpan(self.path, line + 1, column + 1, max(1, min(length, room)), self.source_line(line))

    def key_span(self, path: Path) -> SourceSpan | None:
        """Where the key (or the list entry) of `path` stands; else that of its nearest parent; None without any."""
        for size in range(len(path), -1, -1):
            node = self.nodes.get(path[:size])
            if node is not None:
                part = self.parts.get(path[:size], self)
                if node.key_length:
                    return part.span_at(node.key_line, node.key_column, node.key_length)
                return part._value_span(node)
        return None

    def value_span(self, path: Path) -> SourceSpan | None:
        """Where the value of `path` stands; the key where the value is empty; else the key of its nearest parent."""
        node = self.nodes.get(path)
        if node is None or node.end == node.start:
            return self.key_span(path)
        return self.parts.get(path, self)._value_span(node)

    def _value_span(self, node: Node) -> SourceSpan:
        first = self.text[node.start : node.end].split("\n", 1)[0].rstrip()
        return self.span_at(node.line, node.column, len(first))

    def is_poisoned(self, path: Path) -> bool:
        """Whether the value at `path`, or one that it stands in, was refused while reading."""
        return bool(self.poisoned) and any(path[:size] in self.poisoned for size in range(len(path) + 1))

    def written(self, path: Path) -> str | None:
        """The characters of a plain scalar as they stand in the file; None for anything else."""
        node = self.nodes.get(path)
        return (
            None if node is None or path not in self.plain else self.parts.get(path, self).text[node.start : node.end]
        )
