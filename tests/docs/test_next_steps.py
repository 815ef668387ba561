"""Whoever meets an error about weights, catalogs or engines is told what to do next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sbctl.base import errors

ROOT: Final = Path(__file__).resolve().parents[2]
_PLACES: Final = (
    "sbctl/artifacts",
    "sbctl/catalog",
    "sbctl/engines",
    "sbctl/cli/cataloging.py",
    "sbctl/cli/models_lock.py",
    "sbctl/cli/models_places.py",
    "sbctl/cli/models_work.py",
    "sbctl/cli/node_calls.py",
    "sbctl/cli/replicas.py",
    "sbctl/runtime/engine_client.py",
    "sbctl/runtime/engine_host.py",
    "sbctl/runtime/listener_proof.py",
    "sbctl/runtime/nodeops/blob_listener.py",
    "sbctl/runtime/nodeops/engine_archive.py",
    "sbctl/runtime/nodeops/engine_build.py",
    "sbctl/runtime/nodeops/engine_ops.py",
    "sbctl/runtime/nodeops/programs.py",
    "sbctl/runtime/nodeops/wheel_files.py",
    "sbctl/runtime/readiness.py",
)
_SAY_IT_THEMSELVES: Final = {"UsageError", "ConfigError", "AdmissionError"}
"""The sentence of wrong usage is what to write instead; findings have notes; a refused request is to come back."""
_ERRORS: Final = {
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.SbctlError)
} - _SAY_IT_THEMSELVES


def _silent() -> Iterator[str]:
    for place in _PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ERRORS:
                    given = {keyword.arg for keyword in node.keywords}
                    if "next_step" not in given:
                        yield f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)[:120]}"


def test_errors_of_weights_and_engines_say_what_to_do_next() -> None:
    assert list(_silent()) == []
