"""Ids of abuse cases and faults in the names of tests, read from the sources."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["ids_in_tests", "names_by_file"]

TESTS = Path(__file__).resolve().parents[1]
_NAME = re.compile(r"test((?:_[A-HX]\d{1,2})+)_")
_PARAMETER = re.compile(r"([A-H]\d{1,2}) ")


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        yield path.relative_to(TESTS).with_suffix("").as_posix(), ast.parse(path.read_text(encoding="utf-8"))


@cache
def names_by_file() -> dict[str, frozenset[str]]:
    """File (below tests/, without suffix) → the names of its test functions."""
    return {
        file: frozenset(
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        )
        for file, tree in _trees()
    }


@cache
def ids_in_tests() -> dict[str, frozenset[str]]:
    """Id → files with a test, or a parameter of one, that carries it (`test_B6_…`, `id="C6 lower revision"`)."""
    found: dict[str, set[str]] = defaultdict(set)
    for file, names in names_by_file().items():
        for name in names:
            if match := _NAME.match(name):
                for identifier in match[1].strip("_").split("_"):
                    found[identifier].add(file)
    for file, tree in _trees():
        for node in ast.walk(tree):
            named = node.value if isinstance(node, ast.keyword) and node.arg == "id" else None
            if isinstance(named, ast.Constant) and (match := _PARAMETER.match(str(named.value))):
                found[match[1]].add(file)
    return {identifier: frozenset(files) for identifier, files in found.items()}
