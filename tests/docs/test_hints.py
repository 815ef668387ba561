"""What the product tells people to type exists: commands and flags in its messages, its starter file and its help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command

from sbctl.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(r"`?\bsbctl ([a-z]+(?: (?:list|show|history|pull|push|rm|import|unlock|add|verify|export))?)\b")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
_PROSE = {"serves", "is", "was", "reads", "knows", "installs", "fetches", "removes", "sends", "may", "can", "cannot", "does", "has", "that", "and", "of", "with",
          "runs", "runtime", "itself", "writes", "or", "on", "over", "needs", "for", "enforces", "manages", "keeps",
          "by", "where", "could", "forget", "again", "neither", "delivers",
          "issues", "aside", "never", "speaks", "no"}  # fmt: skip
_FOREIGN_FLAGS = {
    "--user",
    "--no-index",
    "--version",
    "--model",
    "--host",
    "--port",
    "--stdio",
    "--config",
    "--force",
    "--upgrade",
    "--offline",
}
"""Flags of other programs that messages name, and of sbctl-runtime."""


def _texts() -> Iterator[tuple[str, str]]:
    """Every text that may reach a reader: string constants of the control side that are no docstrings."""
    for folder in ("sbctl/base", "sbctl/cli", "sbctl/config", "sbctl/plan", "sbctl/apply", "sbctl/state", "sbctl/trust", "sbctl/remote", "sbctl/artifacts",
                   "sbctl/catalog", "sbctl/views", "providers"):  # fmt: skip
        for path in sorted(set((ROOT / folder).rglob("*.py")) - {ROOT / "sbctl" / "config" / "schema.py"}):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            docstrings = {
                id(node.value)
                for node in ast.walk(tree)
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _known() -> tuple[set[str], set[str]]:
    commands, flags = set(), {"--help"}
    pending = [("", get_command(app))]
    while pending:
        name, command = pending.pop()
        commands.add(name)
        flags.update(flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts))
        pending += [(f"{name} {inner}".strip(), one) for inner, one in getattr(command, "commands", {}).items()]
    return commands, flags


def test_commands_in_messages_exist() -> None:
    commands, _flags = _known()
    wrong = [
        f"{place}: sbctl {named}"
        for place, text in _texts()
        for named in _COMMAND.findall(text)
        if named not in commands and named.split()[0] not in commands | _PROSE
    ]
    assert wrong == []


def test_flags_in_messages_exist() -> None:
    _commands, flags = _known()
    wrong = [
        f"{place}: {flag} in {text!r}"
        for place, text in _texts()
        if " " in text and not place.startswith("sbctl/remote/")
        for flag in _FLAG.findall(text)
        if flag not in flags | _FOREIGN_FLAGS
    ]
    assert wrong == []
