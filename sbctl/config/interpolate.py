"""`${VAR}` and `${VAR:-default}` in scalars, after parsing.

One pass: what a variable holds is put in as it is and never read again, neither as YAML nor for further variables. A scalar that is nothing
but one variable takes the type its text would have in YAML; a field that wants text gets the text (`diagnose.validated`). `:-` also replaces
an empty value. `$${` writes a literal `${`. Keys do not expand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sbctl.config.document import Path
from sbctl.config.scalars import Scalar, ScalarRefusedError, typed_scalar

__all__ = ["Expansion", "Variables", "expanded", "variables_in"]

_TOKEN_RE: Final = re.compile(r"\$\$\{|\$\{([^{}]*)(\}?)")
_BODY_RE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_MAX_RESULT_CHARS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Variables:
    """Where values come from; the first layer that has a name wins. `vars` of a host come before the environment."""

    layers: Sequence[Mapping[str, Scalar]]

    def get(self, name: str) -> tuple[bool, Scalar]:
        """Whether `name` is set, and its value."""
        for layer in self.layers:
            if name in layer:
                return True, layer[name]
        return False, None


@dataclass
class Expansion:
    """A tree with its variables put in. `texts` has the text of each scalar that was one variable and got a type from it."""

    value: Any = None
    texts: dict[Path, str] = field(default_factory=dict)
    problems: list[tuple[Path, str, str]] = field(default_factory=list)
    """Path, code, sentence."""


def variables_in(value: Any) -> frozenset[str]:
    """Names that a tree refers to."""
    names: set[str] = set()

    def note(text: str) -> str:
        for match in _TOKEN_RE.finditer(text):
            body = _BODY_RE.fullmatch(match[1] or "")
            if body is not None:
                names.add(body[1])
        return text

    _walk(value, (), lambda _path, text: note(text))
    return frozenset(names)


def expanded(value: Any, variables: Variables) -> Expansion:
    """Never raises; what is wrong is in `problems`, and stands as None in the tree."""
    result = Expansion()
    result.value = _walk(value, (), lambda path, text: _expand(text, variables, path, result) if "${" in text else text)
    return result


def _walk(value: Any, path: Path, leaf: Callable[[Path, str], Scalar]) -> Any:
    if isinstance(value, dict):
        return {key: _walk(child, (*path, key), leaf) for key, child in value.items()}
    if isinstance(value, list):
        return [_walk(child, (*path, index), leaf) for index, child in enumerate(value)]
    return leaf(path, value) if isinstance(value, str) else value


def _expand(text: str, variables: Variables, path: Path, result: Expansion) -> Scalar:
    def problem(sentence: str, code: str = "config.bad_variable") -> Scalar:
        result.problems.append((path, code, sentence))
        return None

    parts: list[str] = []
    end = 0
    whole: Scalar = None
    for match in _TOKEN_RE.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        if match[0] == "$${":
            parts.append("${")
            continue
        body = _BODY_RE.fullmatch(match[1])
        if not match[2] or body is None:
            return problem("a variable is written ${NAME} or ${NAME:-default}, and a default holds no braces")
        is_set, found = variables.get(body[1])
        if (not is_set or found == "") and body[2] is not None:
            found = body[2]
        elif not is_set:
            return problem(f"the variable {body[1]} is not set", "config.unset_variable")
        whole = found
        parts.append(found if isinstance(found, str) else _as_text(found))
    parts.append(text[end:])
    joined = "".join(parts)
    if len(joined) > _MAX_RESULT_CHARS:
        return problem(f"the value is longer than {_MAX_RESULT_CHARS} characters once its variables are put in")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", joined) is not None:
        return problem("a variable puts a control character into the value")
    only = _TOKEN_RE.fullmatch(text)
    if only is None or only[0] == "$${":
        return joined
    result.texts[path] = joined
    if not isinstance(whole, str):
        return whole
    try:
        return typed_scalar(whole)
    except ScalarRefusedError:
        return joined


def _as_text(value: Scalar) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
