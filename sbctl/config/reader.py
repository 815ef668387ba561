"""The one YAML reader, for sb.yml and catalogs. It works on the parser's events, so nothing dangerous is ever built.

Refused, each with its place: anchors, aliases and merge keys (a 652-byte file of them can run for minutes), tags, directives, a second
document, a byte order mark and anything but UTF-8, duplicate keys, keys that are not text, nesting beyond 64, control and bidirectional
characters, and the numbers and dates of `scalars`. A file may have 1 MiB (a catalog 4) and must be a regular file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from sbctl.base.errors import Diagnostic, InputError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import CONFIG_MAX_BYTES, CONFIG_MAX_DEPTH
from sbctl.config.document import Document, Node, Path
from sbctl.config.scalars import ScalarRefusedError, typed_scalar

__all__ = ["parse_yaml", "read_yaml"]

_MAX_FINDINGS: Final = 50
_RAW_REFUSED_RE: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ufffe\\uffff]"
)
_VALUE_REFUSED_RE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]"
)
_PARSER_FAULTS: Final = (
    ValueError, IndexError, AttributeError, TypeError, KeyError, AssertionError, NotImplementedError, OverflowError, RecursionError,
)  # fmt: skip
"""What the parser itself raises on some damaged files, beside its own errors."""


def _syntax_hints(problem: str, written: str) -> Iterator[str]:
    """What is usually wrong where the parser gives up, which often is a line later."""
    if "${" in written:
        yield "inside { } and [ ], write a variable in quotes"
    if "mapping values are not allowed" in problem or "could not find expected ':'" in problem:
        yield "a line just above may lack its colon, or the space after it; a text with a colon in it needs quotes"
    elif "expected <block end>" in problem:
        yield "this line is indented unlike those it belongs to"


class _StopReading(Exception):  # noqa: N818 - it ends a loop
    """The rest of the file cannot be trusted."""


def read_yaml(path: FilePath, *, max_bytes: int = CONFIG_MAX_BYTES) -> Document:
    """Read a file. What is wrong inside it is in `findings`; raises InputError `file.*` when it cannot be read at all."""
    return parse_yaml(read_bounded(path, max_bytes=max_bytes), str(path), max_bytes=max_bytes)


def parse_yaml(data: bytes, name: str, *, max_bytes: int = CONFIG_MAX_BYTES) -> Document:
    """Parse bytes; `name` is how messages call the file. Raises only InputError `file.too_large`."""
    if len(data) > max_bytes:
        raise InputError(
            "file.too_large",
            f"the file is larger than the {max_bytes} bytes that are read",
            place=name,
            next_step="see whether it is the right file; a long sb.yml may be split with include",
        )
    text, complaint = _decode(data)
    document = Document(name, text)
    if complaint is not None:
        document.findings.append(Diagnostic("yaml.encoding", complaint, document.span_at(0, 0)))
        return document
    refused = _RAW_REFUSED_RE.search(text)
    if refused is not None:
        line = len(re.findall(r"\r\n|\r|\n", text[: refused.start()]))
        column = refused.start() - max(text.rfind("\n", 0, refused.start()), text.rfind("\r", 0, refused.start())) - 1
        message = f"the character U+{ord(refused[0]):04X} is not allowed in the file"
        document.findings.append(Diagnostic("yaml.text_refused", message, document.span_at(line, column)))
        return document
    _Builder(document).run()
    return document


def _decode(data: bytes) -> tuple[str, str | None]:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]:
        return "", "the file is UTF-16 or UTF-32; save it as UTF-8"
    if data.startswith(b"\xef\xbb\xbf"):
        return "", "the file starts with a byte order mark; save it as UTF-8 without one"
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", f"the file is not UTF-8 (line {line})"


def _respan(document: Document, finding: Diagnostic) -> Diagnostic:
    """Until the end is reached, lines are masked coarsely; then the exact places of secrets are known."""
    span = finding.span
    return (
        finding
        if span is None
        else replace(finding, span=document.span_at(span.line - 1, span.column - 1, span.length))
    )


class _Frame:
    """A mapping or a list that is being filled."""

    __slots__ = ("container", "index", "key", "key_event", "path")

    def __init__(self, container: dict[str, Any] | list[Any], path: Path) -> None:
        self.container = container
        self.path = path
        self.key: str | None = None
        self.key_event: ScalarEvent | None = None
        self.index = 0


class _Builder:
    """Turns events into values. One use."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.stack: list[_Frame] = []
        self.documents = 0
        self.skip_depth = 0
        """> 0 inside a key that is a mapping or a list."""

    def run(self) -> None:
        document = self.document
        self._directives()
        try:
            for event in self._events():
                self._take(event)
                if len(document.findings) >= _MAX_FINDINGS:
                    return
        except _StopReading:
            return
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line, mark.column) if mark is not None else (0, 0)
            problem = " ".join(str(error.problem or error.context or "it cannot be parsed").split())
            if "'\\t'" in problem:
                problem = "a tab cannot indent"
            written = document.lines[line] if line < len(document.lines) else ""
            hints = [*_syntax_hints(problem, written)]
            if error.context_mark is not None and error.context_mark.line < line:
                hints.append(
                    f"{error.context}, which began at {error.context_mark.line + 1}:{error.context_mark.column + 1}"
                )
            self._find("syntax", f"this is not YAML: {problem}", line, column, 1, *hints)
            return
        except (YAMLError, *_PARSER_FAULTS):
            self._find("syntax", "this is not YAML: it cannot be parsed", 0, 0)
            return
        document.complete = True
        document.findings = [_respan(document, finding) for finding in document.findings]

    def _events(self) -> Iterator[Event]:
        yield from YAML(typ="safe", pure=True).parse(self.document.text)

    def _directives(self) -> None:
        for number, line in enumerate(self.document.lines):
            if line.startswith("%"):
                self._find("directive_refused", "directives are not read: they change what the file means", number, 0)
            elif line.strip() and not line.lstrip().startswith("#"):
                return

    def _find(self, code: str, message: str, line: int, column: int, length: int = 1, *notes: str) -> None:
        span = self.document.span_at(line, column, length)
        self.document.findings.append(Diagnostic(f"yaml.{code}", message, span, notes=notes))

    def _find_at(self, event: Event, code: str, message: str, *notes: str) -> None:
        start, end = event.start_mark, event.end_mark
        same_line = end.line == start.line
        self._find(code, message, start.line, start.column, end.column - start.column if same_line else 1, *notes)

    def _take(self, event: Event) -> None:
        if isinstance(event, ScalarEvent):
            self._guard(event)
            self._scalar(event)
        elif isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._guard(event)
            self._open(event)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._close(event)
        elif isinstance(event, AliasEvent):
            self._find_at(event, "alias_refused", "aliases are not read; write the value out", *_NO_ALIAS)
            self._place(event, None, poisoned=True)
        elif isinstance(event, DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self._find_at(event, "multiple_documents", "the file holds more than one document")
                raise _StopReading

    def _guard(self, event: ScalarEvent | MappingStartEvent | SequenceStartEvent) -> None:
        if event.anchor is not None:
            self._find_at(event, "alias_refused", "anchors are not read; write the value out", *_NO_ALIAS)
        if event.tag is not None:
            self._find_at(event, "tag_refused", "tags are not read; write the value without it")

    def _open(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        depth = len(self.stack) + self.skip_depth
        if depth >= CONFIG_MAX_DEPTH:
            self._find_at(event, "too_deep", f"the file is nested deeper than {CONFIG_MAX_DEPTH}")
            raise _StopReading
        frame = self.stack[-1] if self.stack else None
        if self.skip_depth or (frame is not None and isinstance(frame.container, dict) and frame.key is None):
            if not self.skip_depth:
                self._find_at(event, "key_refused", "a key must be text, not a list or a map")
            self.skip_depth += 1
            return
        container: dict[str, Any] | list[Any] = {} if isinstance(event, MappingStartEvent) else []
        self.stack.append(_Frame(container, self._place(event, container)))

    def _close(self, event: Event) -> None:
        if self.skip_depth:
            self.skip_depth -= 1
            if not self.skip_depth:
                self._take_key(_UNREADABLE, None)
            return
        frame = self.stack.pop()
        node = self.document.nodes[frame.path]
        self.document.nodes[frame.path] = node._replace(end=event.end_mark.index)

    def _scalar(self, event: ScalarEvent) -> None:
        if self.skip_depth:
            return
        text = event.value
        plain = bool(event.implicit[0]) and event.style is None
        bad = _VALUE_REFUSED_RE.search(text)
        if bad is not None:
            self._find_at(event, "text_refused", f"the character U+{ord(bad[0]):04X} is not allowed in a value")
        frame = self.stack[-1] if self.stack else None
        if frame is not None and isinstance(frame.container, dict) and frame.key is None:
            self._key(event, text, plain=plain)
            return
        value: Any = text
        poisoned = bad is not None
        if plain:
            try:
                value = typed_scalar(text)
            except ScalarRefusedError as error:
                self._find_at(event, error.code, error.sentence)
                value, poisoned = None, True
        path = self._place(event, value, poisoned=poisoned)
        if plain:
            self.document.plain.add(path)

    def _key(self, event: ScalarEvent, text: str, *, plain: bool) -> None:
        frame = self.stack[-1]
        assert isinstance(frame.container, dict)
        if plain and text == "<<":
            self._find_at(event, "merge_refused", "merge keys are not read; write the fields out", *_NO_ALIAS)
            self._take_key(_UNREADABLE, event)
            return
        if plain:
            try:
                is_text = isinstance(typed_scalar(text), str)
            except ScalarRefusedError:
                is_text = False
            if not is_text:
                self._find_at(event, "key_refused", "a key must be text; put it in quotes")
        if text in frame.container:
            first = self.document.nodes[(*frame.path, text)]
            note = f"it stands first at {self.document.path}:{first.key_line + 1}:{first.key_column + 1}"
            self._find_at(event, "duplicate_key", f'the key "{text[:64]}" appears twice in one map', note)
            text = _REPEATED
        self._take_key(text, event)

    def _take_key(self, key: str, event: ScalarEvent | None) -> None:
        frame = self.stack[-1]
        frame.key, frame.key_event = key, event

    def _place(self, event: Event, value: Any, *, poisoned: bool = False) -> Path:
        """Put a value where it belongs and note where it stands. Returns its path."""
        start, end = event.start_mark, event.end_mark
        if self.skip_depth:
            return ()
        if not self.stack:
            self.document.value = value
            path: Path = ()
            self.document.nodes[path] = Node(
                start.line, start.column, 0, start.line, start.column, start.index, end.index
            )
        else:
            frame = self.stack[-1]
            if isinstance(frame.container, list):
                path = (*frame.path, frame.index)
                frame.index += 1
                frame.container.append(value)
                self.document.nodes[path] = Node(
                    start.line, start.column, 0, start.line, start.column, start.index, end.index
                )
            elif frame.key is None:
                # An alias as a key: reported by the caller, its value has no place.
                self._take_key(_UNREADABLE, None)
                return ()
            else:
                path = self._place_in_map(frame, event, value)
        if poisoned:
            self.document.poisoned.add(path)
        return path

    def _place_in_map(self, frame: _Frame, event: Event, value: Any) -> Path:
        assert isinstance(frame.container, dict)
        start, end = event.start_mark, event.end_mark
        key, key_event = frame.key or "", frame.key_event
        frame.key = frame.key_event = None
        path = (*frame.path, key)
        at = key_event.start_mark if key_event is not None else start
        length = key_event.end_mark.index - at.index if key_event is not None else 0
        self.document.nodes[path] = Node(at.line, at.column, length, start.line, start.column, start.index, end.index)
        if key is _UNREADABLE:
            self.document.poisoned.add(frame.path)
        elif key is not _REPEATED:
            frame.container[key] = value
        return path


_NO_ALIAS: Final = ("a small file with aliases can expand without bound, so none is read",)
_UNREADABLE: Final = "\0unreadable"
"""Stands for a key that was refused: what its map holds is not known. No key can be this text, since control characters are refused."""
_REPEATED: Final = "\0repeated"
"""Stands for a key that was there before; the first one counts."""
