"""What a field of sb.yml means, and where its value comes from in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sbctl.base.display import display_safe
from sbctl.base.errors import ConfigError, InputError, SourceSpan
from sbctl.base.field_types import Block
from sbctl.base.suggest import did_you_mean
from sbctl.config.document import Document, Path, names_secret
from sbctl.config.fields import Place, children_of, type_in_words
from sbctl.config.file_model import SbFile
from sbctl.config.including import read_config
from sbctl.config.interpolate import Variables, expanded
from sbctl.config.planes import ACCESS, foreign_names

__all__ = [
    "Explanation",
    "FieldLine",
    "WrittenValue",
    "bounds_in_words",
    "default_in_words",
    "explain_field",
    "field_lines",
]

_VALUE_MAX_CHARS: Final = 200
_PLACES_MAX: Final = 3
_BOUND_WORDS: Final = {
    "gt": "more than {}", "ge": "at least {}", "lt": "less than {}", "le": "at most {}",
    "min_length": "at least {} entries", "max_length": "at most {} entries",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldLine:
    """A field of a block, in one line."""

    name: str
    type: str
    default: str
    description: str


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """One place in the file where the field has a value. `layer` says which layer of the merge that is; a secret is masked."""

    layer: str
    value: str
    span: SourceSpan


@dataclass(frozen=True, slots=True)
class Explanation:
    """All there is to say of a field. `managed` is False for blocks of SBproxy's other planes."""

    field: str
    description: str
    type: str
    required: bool
    default: str
    bounds: tuple[str, ...]
    managed: bool
    fields: tuple[FieldLine, ...]
    written: tuple[WrittenValue, ...]

    def to_wire(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "field": self.field,
            "description": self.description,
            "type": self.type,
            "required": self.required,
            "default": self.default,
            "bounds": list(self.bounds),
            "managed": self.managed,
            "fields": [
                {"name": each.name, "type": each.type, "default": each.default, "description": each.description}
                for each in self.fields
            ],
            "written": [
                {
                    "layer": each.layer,
                    "value": each.value,
                    "filename": each.span.path,
                    "line": each.span.line,
                    "column": each.span.column,
                }
                for each in self.written
            ],
        }


@dataclass(frozen=True, slots=True)
class _Step:
    """A place in the models, and how the file may reach it: each part is a field, or None for a name that the user chose."""

    place: Place
    pattern: tuple[str | None, ...]
    chosen: tuple[str | int, ...]
    """Like `pattern`, with the names that the request gave."""


def explain_field(field: str, file: FilePath | None, environ: Mapping[str, str]) -> Explanation:
    """What `field` (dotted, with or without names of hosts and deployments; empty: the whole file) means.

    `file` is read for the places where the field has a value; None: none. Raises InputError `config.unknown_field`, ConfigError for a file
    that is not YAML.
    """
    document = _read(file)
    words = [word for word in field.strip().split(".") if word]
    try:
        step = _find(words, document)
    except _ForeignError as error:
        return _foreign(field, error.pattern, document)
    place = step.place
    info = place.field
    if words and step.pattern and step.pattern[-1] is None:
        info = None
    return Explanation(
        field=place.dotted or "sb.yml",
        description=_description(place, info),
        type=type_in_words(place.annotation),
        required=info is not None and info.is_required(),
        default=default_in_words(info),
        bounds=tuple(bounds_in_words(info)),
        managed=True,
        fields=_fields(place),
        written=tuple(_written(document, step, environ)) if document is not None and words else (),
    )


def _fields(place: Place) -> tuple[FieldLine, ...]:
    """The fields of a block; of a map or a list of blocks those that each of them has."""
    inner = children_of(place).named
    block = place.block or (inner.block if inner is not None else None)
    return tuple(field_lines(block)) if block is not None else ()


class _ForeignError(Exception):
    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self.pattern = pattern


def _read(file: FilePath | None) -> Document | None:
    if file is None:
        return None
    document = read_config(file)
    if not document.complete:
        raise ConfigError(document.findings)
    return document


def _find(words: list[str], document: Document | None) -> _Step:
    """Follow a dotted path. Names with dots in them (hostnames) are matched against the file, longest first."""
    step = _Step(Place(SbFile, None, SbFile, ""), (), ())
    rest = list(words)
    while rest:
        known = children_of(step.place)
        head = rest[0]
        if head in known.fields:
            step = _Step(known.fields[head], (*step.pattern, head), (*step.chosen, head))
            rest.pop(0)
        elif known.named is not None:
            if head in known.inner_fields:
                step = _Step(known.named, (*step.pattern, None), (*step.chosen, "*"))
                continue
            size = _name_size(rest, step.chosen, document)
            name: str | int = int(head) if known.is_list and head.isdigit() else ".".join(rest[:size])
            step = _Step(known.named, (*step.pattern, None), (*step.chosen, name))
            del rest[:size]
        else:
            _no_such_field(head, step, known.fields)
    return step


def _name_size(rest: list[str], chosen: tuple[str | int, ...], document: Document | None) -> int:
    value = document.value if document is not None else None
    for part in chosen:
        value = value.get(part) if isinstance(value, dict) else None
    for size in range(len(rest), 0, -1):
        if isinstance(value, dict) and ".".join(rest[:size]) in value:
            return size
    return 1


def _no_such_field(head: str, step: _Step, fields: Mapping[str, Place]) -> None:
    pattern = ".".join("*" if part is None else part for part in step.pattern)
    if head in foreign_names(pattern):
        raise _ForeignError(f"{pattern}.{head}".lstrip("."))
    names = sorted({*fields, *foreign_names(pattern)})
    close = did_you_mean(head, names)
    where = step.place.dotted or "sb.yml"
    below = _places_called(head, step.place)
    if below:
        next_step = (
            f"that name is at {', '.join(below[:_PLACES_MAX])}{' and elsewhere' if len(below) > _PLACES_MAX else ''}"
        )
    else:
        next_step = f'did you mean "{close}"?' if close else f"fields: {', '.join(names) or 'none'}"
    raise InputError(
        "config.unknown_field",
        f'"{display_safe(head, max_chars=64)}" is not a field of {where}',
        next_step=next_step,
    )


def _places_called(name: str, top: Place) -> list[str]:
    """Where a field of this name stands further in, the nearest first."""
    found: list[str] = []
    seen: set[object] = set()
    level = [top]
    while level:
        inner: list[Place] = []
        for place in level:
            known = children_of(place)
            inner += [known.named] if known.named is not None else []
            inner += [each for each in known.fields.values() if each.block is None or each.block not in seen]
            seen.update(each.block for each in known.fields.values() if each.block is not None)
            found += [each.dotted for field, each in known.fields.items() if field == name]
        level = inner
    return list(dict.fromkeys(found))


def _foreign(field: str, pattern: str, document: Document | None) -> Explanation:
    restricts = pattern in ACCESS
    about = (
        "A block of SBproxy that restricts access. sbctl does not enforce it, so it is an error until fleet.accept_unenforced lists it."
        if restricts
        else "A block of another plane of SBproxy: kept in the file, and not managed by sbctl."
    )
    parts = tuple(None if part == "*" else part for part in pattern.split("."))
    place = Place(Any, None, None, pattern)
    found = _written(document, _Step(place, parts, ("*",) * len(parts)), {}) if document is not None else ()
    return Explanation(field, about, "any value", False, "", (), False, (), tuple(found))


def _description(place: Place, info: FieldInfo | None) -> str:
    if info is not None and info.description:
        return info.description
    return (
        f"One of these is {place.block.noun}." if place.block is not None and place.dotted else "All that sbctl reads."
    )


def default_in_words(info: FieldInfo | None) -> str:
    """A field's default as one would write it; empty when there is none."""
    if info is None or info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, Block):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (tuple, dict)):
        return "" if value else ("{}" if isinstance(value, dict) else "[]")
    return str(value)


def bounds_in_words(info: FieldInfo | None) -> Iterator[str]:
    """`at least 1`, `at most 65535`."""
    if info is None:
        return
    seen = set()
    for metadata in (*info.metadata, *_inner_metadata(info.annotation)):
        for name, words in _BOUND_WORDS.items():
            bound = getattr(metadata, name, None)
            if isinstance(bound, (int, float)) and not isinstance(bound, bool) and (name, bound) not in seen:
                seen.add((name, bound))
                yield words.format(f"{bound:g}" if isinstance(bound, float) else bound)


def _inner_metadata(annotation: Any) -> Iterator[Any]:
    for part in getattr(annotation, "__args__", ()):
        for metadata in getattr(part, "__metadata__", ()):
            yield from getattr(metadata, "metadata", (metadata,))


def field_lines(block: type[Block]) -> Iterator[FieldLine]:
    """Every field of a block, in the order in which it is declared."""
    for name, info in block.model_fields.items():
        default = "required" if info.is_required() else default_in_words(info)
        yield FieldLine(name, type_in_words(info.annotation), default, info.description or "")


def _written(document: Document | None, step: _Step, environ: Mapping[str, str]) -> Iterator[WrittenValue]:
    if document is None or not isinstance(document.value, dict):
        return
    overlays = (
        (("fleet", "defaults"), ("fleet", "groups", None), ("fleet", "hosts", None))
        if step.pattern[:1] == ("proxy",)
        else ()
    )
    for path in document.nodes:
        for before in ((), *overlays):
            if _matches(path, before, step):
                span = document.value_span(path)
                if span is not None:
                    yield WrittenValue(".".join(map(str, path)), _shown(document, path, environ), span)


def _matches(path: Path, before: tuple[str | None, ...], step: _Step) -> bool:
    if len(path) != len(before) + len(step.pattern):
        return False
    head, tail = path[: len(before)], path[len(before) :]
    if any(want is not None and want != have for want, have in zip(before, head, strict=True)):
        return False
    wanted = zip(step.pattern, step.chosen, tail, strict=True)
    return all(
        (part if part is not None else name) in (have, "*") or (part is None and name == "*")
        for part, name, have in wanted
    )


def _shown(document: Document, path: Path, environ: Mapping[str, str]) -> str:
    if any(isinstance(part, str) and names_secret(part) for part in path) or path[0] == "secrets":
        return "(secret)"
    value: Any = document.value
    for part in path:
        value = value[part]
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    if isinstance(value, list):
        return (
            "["
            + ", ".join(display_safe(str(each), max_chars=40) for each in value[:8])
            + (", …]" if len(value) > 8 else "]")
        )
    text = document.written(path) or str(value)
    if "${" in text:
        expansion = expanded(text, Variables((environ,)))
        known = "not set here" if expansion.problems else "set by a variable"
        return f"{display_safe(text, max_chars=_VALUE_MAX_CHARS)} ({known})"
    return display_safe(text, max_chars=_VALUE_MAX_CHARS)
