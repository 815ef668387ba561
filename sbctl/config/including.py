"""`include:` of other files: sb.yml and all it includes become one document in which every value knows its file and line.

An included file is written like sb.yml itself (`fleet: {hosts: …}`), and may include further ones. `include` lists paths and patterns
(`hosts/*.yml`, also `?` and `[a-d]`), relative to the file that includes. Maps of named things (hosts, groups, callers, signers, secrets,
engines, deployments, origins) are joined; anything that two files write is an error with both places, so the order never matters. Nothing
outside the directory of sb.yml is read, links resolved. A pattern without a match is an error: a lost file must not read as hosts that
are given up. Other paths in an included file (keys, catalogs, secrets) count from sb.yml, as everywhere.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final

from sbctl.base.display import display_safe
from sbctl.base.errors import Diagnostic, InputError
from sbctl.base.limits import INCLUDE_MAX_BYTES, INCLUDE_MAX_DEPTH, INCLUDE_MAX_FILES
from sbctl.config.document import Document, Path
from sbctl.config.reader import read_yaml

__all__ = ["read_config"]

_INCLUDE: Final = "include"
_LOOKS_LIKE_RE: Final = re.compile(r"(?m)^['\"]?(?:fleet|proxy|origins|secrets|include)['\"]?[ \t]*:")
_JOINED: Final[frozenset[Path]] = frozenset(
    {
        (),
        ("secrets",),
        ("origins",),
        ("fleet",),
        ("fleet", "hosts"),
        ("fleet", "groups"),
        ("fleet", "api_keys"),
        ("fleet", "trust"),
        ("fleet", "trust", "signers"),
        ("fleet", "ssh"),
        ("fleet", "ssh", "jumps"),
        ("proxy",),
        ("proxy", "model_host"),
        ("proxy", "model_host", "engines"),
        ("proxy", "model_host", "deployments"),
    }
)
"""Maps whose entries may come from several files."""


def read_config(path: FilePath) -> Document:
    """sb.yml with what it includes. What is wrong inside is in `findings`; raises InputError `file.*` when sb.yml cannot be read at all."""
    root = read_yaml(path)
    if not root.complete or not isinstance(root.value, dict) or _INCLUDE not in root.value:
        return root
    gathering = _Gathering(root)
    gathering.follow(root, (os.path.realpath(root.path),))
    return _joined(root, gathering)


class _Gathering:
    """Files in the order in which they are found, each once."""

    def __init__(self, root: Document) -> None:
        self.directory = os.path.dirname(os.path.realpath(root.path))
        self.documents: list[Document] = []
        self.findings: list[Diagnostic] = []
        self._seen: set[str] = set()
        self._bytes = len(root.text)
        self._full = False

    def follow(self, document: Document, chain: tuple[str, ...]) -> None:
        """Read what `document` includes; `chain` are the files that led here, itself last."""
        for index, pattern in enumerate(self._patterns(document, is_root=len(chain) == 1)):
            where: Path = (_INCLUDE, index)
            try:
                for name in self._matches(document, pattern, chain):
                    self._take(document, where, name, chain)
            except _Refused as refused:
                self._say(refused.code, refused.sentence, document, where)

    def _say(self, code: str, sentence: str, document: Document, where: Path) -> None:
        self.findings.append(Diagnostic(code, sentence, document.value_span(where)))

    def _patterns(self, document: Document, *, is_root: bool) -> list[str]:
        written = document.value.get(_INCLUDE)
        if isinstance(written, list) and all(isinstance(each, str) for each in written):
            return written
        if written is not None and not is_root:
            self._say("config.wrong_type", '"include" must be a list of paths', document, (_INCLUDE,))
        return []

    def _matches(self, document: Document, pattern: str, chain: tuple[str, ...]) -> Iterator[str]:
        """Paths as messages show them. Raises _Refused."""
        if not pattern or pattern.startswith(("/", "~")) or "\0" in pattern:
            raise _Refused("config.include_outside", "a path in include is relative to its file")
        if "${" in pattern:
            raise _Refused("config.bad_value", "variables are not put into include: files are read before any is known")
        directory = os.path.dirname(document.path)
        is_pattern = glob.has_magic(pattern)
        if not is_pattern:
            yield os.path.join(directory, pattern)
            return
        found = [os.path.join(directory, name) for name in sorted(glob.glob(pattern, root_dir=directory or "."))]
        # A pattern may match the very file that holds it.
        others = [name for name in found if os.path.realpath(name) not in chain]
        if not others:
            raise _Refused("config.include_empty", f'no file matches "{display_safe(pattern, max_chars=120)}"')
        yield from others

    def _take(self, document: Document, where: Path, name: str, chain: tuple[str, ...]) -> None:
        real = os.path.realpath(name)
        shown = display_safe(name, max_chars=200)
        if os.path.commonpath([real, self.directory]) != self.directory:
            raise _Refused("config.include_outside", f"{shown} is outside the directory of sb.yml")
        if real in chain:
            raise _Refused(
                "config.include_cycle",
                f"{shown} includes itself, by way of {' and '.join(map(os.path.basename, chain[-2:]))}",
            )
        if real in self._seen or self._full:
            return
        if len(chain) > INCLUDE_MAX_DEPTH:
            raise _Refused("config.include_too_deep", f"files include each other deeper than {INCLUDE_MAX_DEPTH}")
        self._seen.add(real)
        try:
            included = read_yaml(FilePath(name))
        except InputError as error:
            self._say(error.code, f"{shown} cannot be included: {error.message}", document, where)
            return
        self._bytes += len(included.text)
        if len(self._seen) > INCLUDE_MAX_FILES or self._bytes > INCLUDE_MAX_BYTES:
            self._full = True
            raise _Refused(
                "config.include_too_large",
                f"more than {INCLUDE_MAX_FILES} files or {INCLUDE_MAX_BYTES >> 20} MiB are included",
            )
        if not _is_like_ours(included):
            # Nothing of it is shown: it may be a key.
            self._say("config.not_a_map", f"{shown} is no map of blocks, as sb.yml is", document, where)
            return
        self.documents.append(included)
        if included.complete and included.value is not None:
            self.follow(included, (*chain, real))


def _is_like_ours(document: Document) -> bool:
    if document.complete:
        return document.value is None or isinstance(document.value, dict)
    return _LOOKS_LIKE_RE.search(document.text) is not None


class _Refused(Exception):  # noqa: N818 - it becomes a finding where the entry stands
    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


def _joined(root: Document, gathering: _Gathering) -> Document:
    joining = _Joining(Document(root.path, root.text, value={}))
    for document in (root, *gathering.documents):
        joining.add(document, is_root=document is root)
    whole = joining.whole
    whole.complete = all(document.complete for document in (root, *gathering.documents))
    whole.findings.extend(gathering.findings)
    return whole


class _Joining:
    def __init__(self, whole: Document) -> None:
        self.whole = whole

    def add(self, document: Document, *, is_root: bool) -> None:
        """Put a document's values, places and findings into the whole."""
        self.whole.findings.extend(document.findings)
        if not isinstance(document.value, dict):
            return
        left_out: set[Path] = set() if is_root else {(_INCLUDE,)}
        self._join(self.whole.value, document, (), document.value, left_out)
        for path, node in document.nodes.items():
            if path in self.whole.nodes or (
                left_out and any(path[:size] in left_out for size in range(1, len(path) + 1))
            ):
                continue
            self.whole.nodes[path] = node
            self.whole.parts[path] = document
            if path in document.plain:
                self.whole.plain.add(path)
        self.whole.poisoned |= document.poisoned

    def _join(
        self, into: dict[str, Any], document: Document, path: Path, value: dict[str, Any], left_out: set[Path]
    ) -> None:
        for key, child in value.items():
            place = (*path, key)
            if place in left_out:
                continue
            if place in _JOINED and isinstance(child, dict) and isinstance(into.get(key, {}), dict):
                self._join(into.setdefault(key, {}), document, place, child, left_out)
            elif key not in into:
                into[key] = child
            else:
                left_out.add(place)
                first = self.whole.key_span(place)
                message = f'"{display_safe(key, max_chars=64)}" is written in two files'
                notes = (f"it stands first at {first}",)
                self.whole.findings.append(
                    Diagnostic("config.duplicate_entry", message, document.key_span(place), notes=notes)
                )
