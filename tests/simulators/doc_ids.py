"""Ids of abuse cases and faults in the names of tests, read from the sources."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

__all__ = ["ids_in_tests", "names_by_file"]

TESTS = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"test((?:_[A-HX]\d{1,2})+)_")
_PARAMETER = re.compile(r"([A-H]\d{1,2}) ")


@cache
def _read() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """File (below tests/, without suffix) → the names of its test functions, and the ids of cases in its parameters. Takes seconds."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        names, ids = set(), set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
            named = node.value if isinstance(node, ast.keyword) and node.arg == "id" else None
            if isinstance(named, ast.Constant) and (match := _PARAMETER.match(str(named.value))):
                ids.add(match[1])
        found[path.relative_to(TESTS).with_suffix("").as_posix()] = frozenset(names), frozenset(ids)
    return found


@cache
def names_by_file() -> dict[str, frozenset[str]]:
    """File (below tests/, without suffix) → the names of its test functions."""
    return {file: names for file, (names, _ids) in _read().items()}


@cache
def ids_in_tests() -> dict[str, frozenset[str]]:
    """Id → files with a test, or a parameter of one, that carries it (`test_B6_…`, `id="C6 lower revision"`)."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, (names, ids) in _read().items():
        for identifier in ids:
            found[identifier].add(file)
        for name in names:
            if match := _NAME.match(name):
                for identifier in match[1].strip("_").split("_"):
                    found[identifier].add(file)
    return {identifier: frozenset(files) for identifier, files in found.items()}
