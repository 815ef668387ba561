"""Walks the models: which field stands at a path of sb.yml, and how it is called in `sbctl explain`."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from sbctl.base.field_types import Block
from sbctl.config.document import Path

__all__ = ["Children", "Place", "blocks_of", "children_of", "locate", "type_in_words"]


@dataclass(frozen=True, slots=True)
class Place:
    """What the models know of a path. `block` is the model whose fields may stand there, when it is one."""

    annotation: Any
    field: FieldInfo | None
    block: type[Block] | None
    dotted: str
    """The path without names of hosts, deployments and the like."""


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    elif annotation is not type(None):
        yield annotation


def blocks_of(annotation: Any) -> tuple[type[Block], ...]:
    """The block models that an annotation allows directly."""
    return tuple(part for part in _alternatives(annotation) if isinstance(part, type) and issubclass(part, Block))


def locate(root: type[Block], path: Path) -> Place | None:
    """The place of `path` under `root`; None when the models have no such field."""
    return _locate(root, None, path, ())


def _locate(annotation: Any, field: FieldInfo | None, path: Path, dotted: tuple[str, ...]) -> Place | None:
    if not path:
        return _place(annotation, field, ".".join(dotted))
    head, rest = path[0], path[1:]
    for part in _alternatives(annotation):
        origin, arguments = get_origin(part), get_args(part)
        found = None
        if isinstance(part, type) and issubclass(part, Block):
            inner = part.model_fields.get(str(head))
            if inner is not None:
                found = _locate(inner.annotation, inner, rest, (*dotted, str(head)))
        elif origin is dict:
            found = _locate(arguments[1], field, rest, dotted)
        elif origin is tuple and isinstance(head, int):
            found = _locate(arguments[0], field, rest, dotted)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class Children:
    """What may stand inside a place: fields by name, and `named` where the user chooses the names (or numbers, in a list)."""

    fields: Mapping[str, Place]
    named: Place | None
    inner_fields: frozenset[str]
    is_list: bool


def children_of(place: Place) -> Children:
    """Everything that may follow a place in a dotted path."""
    fields: dict[str, Place] = {}
    named: Place | None = None
    is_list = False
    for part in _alternatives(place.annotation):
        origin, arguments = get_origin(part), get_args(part)
        if isinstance(part, type) and issubclass(part, Block):
            for name, info in part.model_fields.items():
                dotted = f"{place.dotted}.{name}".lstrip(".")
                fields.setdefault(name, _place(info.annotation, info, dotted))
        elif origin in (dict, tuple):
            is_list = origin is tuple
            named = _place(arguments[0 if is_list else 1], place.field, place.dotted)
    inner = children_of(named).fields if named is not None else {}
    return Children(fields, named, frozenset(inner), is_list)


def _place(annotation: Any, field: FieldInfo | None, dotted: str) -> Place:
    blocks = blocks_of(annotation)
    return Place(annotation, field, blocks[0] if blocks else None, dotted)


_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def type_in_words(annotation: Any) -> str:
    """`text`, `whole number`, `one of a, b`, `list of text`, `map of name to a deployment`."""
    words: list[str] = []
    for part in _alternatives(annotation):
        origin, arguments = get_origin(part), get_args(part)
        if origin is Literal:
            word = arguments[0] if len(arguments) == 1 else "one of " + ", ".join(map(str, arguments))
        elif origin is dict:
            word = f"map of name to {type_in_words(arguments[1])}"
        elif origin is tuple:
            word = f"list of {type_in_words(arguments[0])}"
        elif isinstance(part, type) and issubclass(part, Block):
            word = part.noun
        else:
            word = _WORDS.get(part, "any value" if part is Any else "text")
        if word not in words:
            words.append(word)
    return " or ".join(words)
