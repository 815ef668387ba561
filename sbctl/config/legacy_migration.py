"""`serve:` blocks rewritten in the file itself: what was written and noted stays, and the result means what the file meant.

The guarded reader has accepted the text before ruamel's round-trip loader sees it. What comes out is read again and must be exactly the file
in today's words. A note that stood inside a block that is gone moves to the deployments that came of it.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from sbctl.base.errors import ConfigError, Diagnostic, InputError
from sbctl.config.document import Document, Path
from sbctl.config.legacy_document import catalog_pull
from sbctl.config.legacy_serve import Lowered, lowered, serve_blocks
from sbctl.config.reader import parse_yaml

__all__ = ["Migrated", "migrated"]

_WIDTH: Final = 4096
_NOTE_RE: Final = re.compile(r"(?m)(?:^|[ \t])#[ \t]*([^\n]*\S)")
_FLUSH_LIST_RE: Final = re.compile(r"(?m)^( *)[A-Za-z_][^\n#]*:[ ]*\n\1- ")


@dataclass(frozen=True, slots=True)
class Migrated:
    """`text` is the new file; `deployments` are the ids that it gained; `left_out` says what has no like today and means nothing here."""

    text: str
    deployments: tuple[str, ...]
    left_out: tuple[str, ...]


def migrated(document: Document) -> Migrated | None:
    """None when there is nothing to rewrite. Raises ConfigError with everything that keeps a block from being rewritten, InputError `migrate.refused`."""
    if document.findings or not document.complete:
        raise ConfigError(document.findings)
    if not serve_blocks(document.value):
        return None
    result = lowered(document.value, catalog_pull(document))
    wrong = [problem for problem in result.problems if not problem.is_note]
    if wrong:
        raise ConfigError(
            [
                Diagnostic(
                    problem.code,
                    problem.message,
                    document.key_span(problem.path),
                    notes=(problem.remedy,) if problem.remedy else (),
                )
                for problem in wrong
            ]
        )
    text = _rewritten(document, result)
    again = parse_yaml(text.encode(), document.path)
    if again.findings or again.value != result.value:
        raise InputError(
            "migrate.refused",
            "the file cannot be rewritten without changing something else in it",
            place=document.path,
            next_step="move the models by hand, as docs/authority.md shows",
        )
    return Migrated(text, tuple(result.deployments), tuple(problem.message for problem in result.problems))


def _rewritten(document: Document, result: Lowered) -> str:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    flush = _FLUSH_LIST_RE.search(document.text) is not None
    yaml.indent(mapping=2, sequence=2 if flush else 4, offset=0 if flush else 2)
    tree = yaml.load(document.text)
    for path in sorted({path[:-1] for path in serve_blocks(document.value)}, key=str):
        _rewrite_providers(tree, path, result)
    _merge(tree, result.value, ("proxy",), first="origins")
    written = _dumped(yaml, tree)
    lost = _lost_notes(document.text, written)
    _give_back(document, tree, lost)
    if lost:
        model_host = tree["proxy"]["model_host"]
        model_host.yaml_set_comment_before_after_key("deployments", before="\n".join(lost), indent=4)
        written = _dumped(yaml, tree)
    return written


def _dumped(yaml: YAML, tree: Any) -> str:
    out = io.StringIO()
    yaml.dump(tree, out)
    return out.getvalue()


def _rewrite_providers(tree: Any, path: Path, result: Lowered) -> None:
    """Providers that stay are the very objects, with their comments; a block's first provider takes the place of its own."""
    providers, wanted = tree, result.value
    for part in path:
        providers, wanted = providers[part], wanted[part]
    old = list(providers)
    used: set[int] = set()
    new = []
    for index, each in enumerate(wanted):
        place = result.places[(*path, index)][-1]
        assert isinstance(place, int), "providers are a list"
        if place in used:
            new.append(CommentedMap(each))
            continue
        used.add(place)
        entry = old[place]
        for key in [key for key in entry if key not in each]:
            del entry[key]
        for key, value in each.items():
            if key not in entry or entry[key] != value:
                entry[key] = value
        new.append(entry)
    providers.clear()
    providers.extend(new)


def _merge(tree: Any, wanted: Any, path: Path, *, first: str) -> None:
    """Give `tree` what `wanted` has more below `path`; a block that is new stands before `first`."""
    name = path[-1]
    if name not in tree:
        position = list(tree).index(first) if first in tree else len(tree)
        tree.insert(position, name, _block(wanted[name]))
        return
    for key, value in wanted[name].items():
        if key not in tree[name]:
            tree[name][key] = _block(value)
        elif isinstance(value, dict):
            _merge(tree[name], wanted[name], (*path, key), first="")


def _block(value: Any) -> Any:
    return CommentedMap({key: _block(each) for key, each in value.items()}) if isinstance(value, dict) else value


def _give_back(document: Document, tree: Any, lost: list[str]) -> None:
    """Notes between a block and the provider after it belong to that provider; they leave `lost`."""
    for path in serve_blocks(document.value):
        index = path[-1]
        assert isinstance(index, int), "providers are a list"
        following = document.nodes.get((*path[:-1], index + 1))
        if following is None:
            continue
        between = document.text[_last_value_end(document, path) : following.start]
        notes = [note for note in _notes(between) if note in lost]
        if not notes:
            continue
        providers = tree
        for part in path[:-1]:
            providers = providers[part]
        name = document.value
        for part in (*path[:-1], index + 1):
            name = name[part]
        position = next((at for at, each in enumerate(providers) if dict(each) == name), None)
        if position is not None:
            indent = max(0, following.column - 2)
            providers.yaml_set_comment_before_after_key(position, before="\n".join(notes), indent=indent)
            for note in notes:
                lost.remove(note)


def _last_value_end(document: Document, path: Path) -> int:
    """Where the last scalar of a provider ends: what the reader calls the end of a map is the beginning of what follows."""
    inside = [each for each in document.nodes if each[: len(path)] == path]
    maps = {each[:-1] for each in inside}
    return max(document.nodes[each].end for each in inside if each not in maps)


def _lost_notes(before: str, after: str) -> list[str]:
    left = Counter(_notes(after))
    lost = []
    for note in _notes(before):
        if left[note]:
            left[note] -= 1
        else:
            lost.append(note)
    return lost


def _notes(text: str) -> Iterable[str]:
    return (match[1] for match in _NOTE_RE.finditer(text))
