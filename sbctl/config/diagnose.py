"""From pydantic's errors to findings a reader can act on: a sentence, the place, what was expected, the name that was probably meant.

pydantic's own text and its copy of the input are never shown. A value is repeated only where it is a name (a field, an enum word).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from sbctl.base.display import display_safe
from sbctl.base.errors import ConfigError, Diagnostic, SourceSpan
from sbctl.base.field_types import EXPECTATION, Block
from sbctl.base.suggest import did_you_mean
from sbctl.config.document import ABSENT, Path, child, names_secret
from sbctl.config.fields import Place, locate
from sbctl.config.layers import View
from sbctl.config.planes import foreign_names

__all__ = ["Checked", "Report", "report_expansion", "validated"]

M = TypeVar("M", bound=Block)

_PRUNING_ROUNDS: Final = 4

_TYPES: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map",
    "tuple_type": "a list",
    "model_type": "a map of fields",
    "model_attributes_type": "a map of fields",
    "mapping_type": "a map",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_SIZES: Final[Mapping[str, tuple[str, str, str]]] = {
    "too_short": ("at least", "min_length", "entries"),
    "too_long": ("at most", "max_length", "entries"),
    "string_too_short": ("at least", "min_length", "characters"),
    "string_too_long": ("at most", "max_length", "characters"),
}


@dataclass
class Report:
    """Findings of one run. The same finding from several hosts is one."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def add(
        self,
        code: str,
        message: str,
        span: SourceSpan | None,
        *,
        label: str = "",
        notes: Iterable[str] = (),
        severity: str = "error",
    ) -> None:
        key = (code, message, str(span))
        if key not in self._seen:
            self._seen.add(key)
            self.diagnostics.append(Diagnostic(code, message, span, label, tuple(notes), severity))

    def note(self, code: str, message: str, span: SourceSpan | None, *, notes: Iterable[str] = ()) -> None:
        """A finding that does not stop a plan."""
        self.add(code, message, span, notes=notes, severity="note")

    def in_order(self, severity: str) -> tuple[Diagnostic, ...]:
        def place(finding: Diagnostic) -> tuple[str, int, int]:
            span = finding.span
            return (span.path, span.line, span.column) if span is not None else ("", 0, 0)

        return tuple(sorted((each for each in self.diagnostics if each.severity == severity), key=place))

    def raise_errors(self) -> None:
        """Raises ConfigError with every error, in file order, when there is one."""
        errors = self.in_order("error")
        if errors:
            raise ConfigError(errors)


def report_expansion(report: Report, view: View, problems: Iterable[tuple[Path, str, str]]) -> None:
    """Findings of `interpolate.expanded` over the value of a view."""
    for path, code, sentence in problems:
        notes = ("set it in the environment or under vars, or write a default: ${NAME:-default}",)
        report.add(code, sentence, view.value_span(path), notes=notes if code == "config.unset_variable" else ())


@dataclass(frozen=True, slots=True)
class Checked(Generic[M]):
    """A checked block. `whole` is False when there are findings: then `model` holds only what could be kept, for further checks, or nothing."""

    model: M | None
    whole: bool


def validated(
    report: Report,
    model: type[M],
    value: Any,
    view: View,
    *,
    texts: Mapping[Path, str],
    broken: Iterable[Path] = (),
    prefix: Path = (),
) -> Checked[M]:
    """`value` as `model`; findings go to `report`.

    `value` is what the view shows, with variables put in; `prefix` leads from the file's form to the view's root. `texts` are scalars that got
    their type from a variable: where the field wants text, they are text. Nothing is said about `broken` paths, which are reported already.
    """
    good, problems = _attempt(model, value)
    wanted = {
        path
        for each in problems
        if each["type"] == "string_type" and (path := _data_path(each["loc"], value)[0]) in texts
    }
    if wanted:
        value = _with_texts(value, (), {path: texts[path] for path in wanted})
        good, problems = _attempt(model, value)
    if good is not None:
        return Checked(good, whole=True)
    _Teller(report, model, value, view=view, broken=set(broken), prefix=prefix).tell(problems)
    for _ in range(_PRUNING_ROUNDS):
        doomed = {_droppable(_data_path(each["loc"], value)[0]) for each in problems}
        if () in doomed:
            break
        value = _without(value, (), doomed)
        good, problems = _attempt(model, value)
        if good is not None:
            return Checked(good, whole=False)
    return Checked(None, whole=False)


def _attempt(model: type[M], value: Any) -> tuple[M | None, list[Any]]:
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        return None, list(error.errors(include_input=False, include_url=False))


def _droppable(path: Path) -> Path:
    """A list is dropped whole, so that the numbers of its entries stay true."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def _without(value: Any, path: Path, doomed: Container[Path]) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(child, (*path, key), doomed) for key, child in value.items() if (*path, key) not in doomed
        }
    if isinstance(value, list):
        return [_without(child, (*path, index), doomed) for index, child in enumerate(value)]
    return value


def _with_texts(value: Any, path: Path, texts: Mapping[Path, str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(child, (*path, key), texts) for key, child in value.items()}
    if isinstance(value, list):
        return [_with_texts(child, (*path, index), texts) for index, child in enumerate(value)]
    return texts.get(path, value)


def _data_path(loc: tuple[int | str, ...], root: Any) -> tuple[Path, str | None]:
    """Where in the data an error is, and the name of the field that is missing there, if one is."""
    value = root
    path: Path = ()
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        inner = child(value, part)
        if inner is not ABSENT:
            value, path = inner, (*path, part)
        elif last and isinstance(value, dict) and isinstance(part, str):
            return path, part
    return path, None


class _Teller:
    """Words for the errors of one value."""

    def __init__(
        self, report: Report, model: type[Block], value: Any, *, view: View, broken: set[Path], prefix: Path
    ) -> None:
        self.report = report
        self.model = model
        self.value = value
        self.view = view
        self.broken = broken
        self.prefix = prefix

    def tell(self, problems: Iterable[Mapping[str, Any]]) -> None:
        placed = [(*_data_path(each["loc"], self.value), each) for each in problems]
        deepest = {path[:size] for path, _, _ in placed for size in range(len(path))}
        told: set[tuple[Path, str | None]] = set()
        for path, missing, problem in placed:
            # A branch of a union that another branch got further with; a list whose entries failed and so do not count.
            follows = problem["type"] in (*_TYPES, "too_short") and path in deepest
            if follows or (path, missing) in told or self._is_broken(path):
                continue
            told.add((path, missing))
            self._tell_one(path, missing, problem)

    def _is_broken(self, path: Path) -> bool:
        known = any(path[:size] in self.broken for size in range(len(path) + 1))
        return known or self.view.document.is_poisoned(self.view.source(path))

    def _tell_one(self, path: Path, missing: str | None, problem: Mapping[str, Any]) -> None:
        kind, context = problem["type"], problem.get("ctx") or {}
        if problem["loc"] and problem["loc"][-1] == "[key]":
            self._bad_key(path, context)
        elif kind == "missing":
            self._missing(path, str(missing))
        elif kind == "extra_forbidden":
            self._unknown(path)
        elif kind == "literal_error":
            self._word(path, re.findall(r"'([^']*)'", str(context.get("expected", ""))))
        elif kind in _TYPES:
            given = self._given(path)
            hint = "; write {} for none" if given == "nothing" and kind in ("dict_type", "model_type") else ""
            quoted = (
                ": put it in quotes"
                if kind == "string_type" and given in ("a number", "a whole number", "true or false")
                else hint
            )
            self._add("wrong_type", path, f"{_named(path)} must be {_TYPES[kind]}, not {given}{quoted}")
        elif kind in _BOUNDS:
            words, key = _BOUNDS[kind]
            self._add("out_of_range", path, f"{_named(path)} must be {words} {context[key]:.15g}")
        elif kind in _SIZES:
            words, key, unit = _SIZES[kind]
            self._add("out_of_range", path, f"{_named(path)} must have {words} {context[key]} {unit}")
        elif kind == EXPECTATION:
            self._add("bad_value", path, f"{_named(path)} must be {context['phrase']}")
        else:
            self._add("bad_value", path, f"{_named(path)} has a value that is not allowed here")

    def _add(
        self, code: str, path: Path, message: str, *, on_key: bool = False, label: str = "", notes: Iterable[str] = ()
    ) -> None:
        span = self.view.key_span(path) if on_key else self.view.value_span(path)
        self.report.add(f"config.{code}", message, span, label=label, notes=notes)

    def _bad_key(self, path: Path, context: Mapping[str, Any]) -> None:
        words = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        phrase = context.get("phrase") or "one of " + ", ".join(words)
        close = did_you_mean(str(path[-1]), words)
        label = f'did you mean "{close}"?' if close else ""
        self._add("bad_key", path, f"the name {_named(path)} must be {phrase}", on_key=True, label=label)

    def _place(self, path: Path) -> Place | None:
        return locate(self.model, path)

    def _missing(self, path: Path, name: str) -> None:
        place = self._place(path)
        owner = place.block.noun if place is not None and place.block is not None else "this block"
        inner = self._place((*path, name))
        about = inner.field.description if inner is not None and inner.field is not None else None
        notes = [f"{name}: {about}"] if about else []
        if not path:
            self.report.add("config.missing_field", f'{owner} needs "{name}"', self.view.key_span(()), notes=notes)
            return
        self._add("missing_field", path, f'{owner} needs "{name}"', on_key=True, notes=notes)

    def _unknown(self, path: Path) -> None:
        name, parent = str(path[-1]), path[:-1]
        place = self._place(parent)
        block = place.block if place is not None else None
        noun = block.noun if block is not None else "this block"
        full = (*self.prefix, *parent)
        pattern = ".".join(
            "*" if isinstance(part, int) or (index == 1 and full[0] == "origins") else part
            for index, part in enumerate(full)
        )
        names = sorted({*(block.model_fields if block is not None else ()), *foreign_names(pattern)})
        close = did_you_mean(name, names)
        dotted = ".".join(part for part in (*map(str, self.prefix), place.dotted if place is not None else "") if part)
        self._add(
            "unknown_field",
            path,
            f"{_named(path)} is not a field of {noun}",
            on_key=True,
            label=f'did you mean "{close}"?' if close else "",
            notes=[f"fields of {noun}: sbctl explain {dotted}".rstrip()],
        )

    def _word(self, path: Path, words: list[str]) -> None:
        listed = words[0] if len(words) == 1 else "one of " + ", ".join(words)
        given = self._value_at(path)
        shown = isinstance(given, str) and not any(names_secret(str(part)) for part in path)
        close = did_you_mean(given, words) if shown and isinstance(given, str) else None
        self._add(
            "bad_value", path, f"{_named(path)} must be {listed}", label=f'did you mean "{close}"?' if close else ""
        )

    def _value_at(self, path: Path) -> Any:
        value: Any = self.value
        for part in path:
            value = value[part]
        return value

    def _given(self, path: Path) -> str:
        value = self._value_at(path)
        if value is None:
            return "nothing"
        if isinstance(value, bool):
            return "true or false"
        words = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a map"}
        return words.get(type(value), "this")


def _named(path: Path) -> str:
    """The last name of a path in quotes; an entry of a list by its number."""
    if not path:
        return "the file"
    last = path[-1]
    if isinstance(last, int):
        return f"entry {last + 1} of {_named(path[:-1])}"
    return f'"{display_safe(last, max_chars=64)}"'
