"""The generated pages of docs/reference/: commands from the command tree, errors from the source, capabilities from the list of tests that prove
them. And the description of the HTTP APIs.

    python docs/generate.py            says which pages differ, exit 1 when one does
    python docs/generate.py --write    writes them

The configuration reference is written by `python -m sbctl.config.schema`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT)]

from capabilities import capabilities_page  # noqa: E402
from error_codes import error_codes, http_codes  # noqa: E402
from typer.main import get_command  # noqa: E402

from sbctl.base.fs import write_atomic  # noqa: E402
from sbctl.cli.app import app  # noqa: E402
from sbctl.runtime.openapi import openapi_document  # noqa: E402
from sbctl.runtime.peer.codes import REFUSALS  # noqa: E402

__all__ = ["drifted", "pages"]

_CLI_HEAD: Final = """\
# Commands

Generated from the command tree by `make docs`. `sbctl COMMAND --help` says the same.

`-f/--file` defaults to `./sb.yml`, or to the environment variable `SB_CONFIG_FILE`. Results go to stdout, progress and
messages to stderr. Exit codes: [exit-codes.md](exit-codes.md).
"""
_ERRORS_HEAD: Final = """\
# Errors

Generated from the source by `make docs`. An error has a stable code, one sentence, a place, and mostly a next step:

    error[state.locked]: ops@ci holds the state since 2026-11-29T20:01:30Z (process 4711: sbctl apply)
       = wait for it, or stop process 4711 on that machine: the kernel then frees the lock by itself

With `--format json` the same is an object with `code`, `message`, `place`, `next_step`, `retryable` and `detail`.
`…` stands for a value. In the status of a cluster a code has `_` for its dot (`artifact_digest_mismatch`). The exit code is that of the error alone; [exit-codes.md](exit-codes.md) says which wins.
"""
_KINDS: Final = {Path: "FILE", int: "NUMBER", float: "NUMBER", str: "TEXT"}
_GROUPS: Final = {
    "address": "Addresses of resources",
    "admin": "Accounts of the admin API",
    "apply": "Carrying a plan out",
    "audit": "What was changed on a host, and by whom",
    "artifact": "Weights, wheels and other files that are fetched",
    "bundle": "Signed desired state",
    "cache": "The cache of weights on a host",
    "catalog": "Model catalogs",
    "config": "sb.yml",
    "disk": "Disks",
    "engine": "Engines",
    "envelope": "Signed envelopes (bundles, plans, signer sets)",
    "exec": "`host exec`",
    "file": "Input files",
    "frame": "Framing of the node interface",
    "host": "Hosts",
    "import": "`state import`",
    "init": "`init`",
    "installation": "The installation of sbctl itself",
    "internal": "Defects",
    "json": "JSON input",
    "key": "Signing keys",
    "lock": "Pinned host keys: sb.hosts.lock",
    "models_lock": "The lockfile of the models: sbproxy-models.lock",
    "node": "The node interface",
    "pack": "Packs",
    "pattern": "Patterns",
    "pin": "`host trust`",
    "plan": "Plans and saved plans",
    "put": "Files sent to a host",
    "relay": "Relays of a site",
    "remote": "Commands on a host",
    "rollback": "`rollback`",
    "run": "`run`",
    "runtime": "The runtime on a host",
    "secret": "Secrets",
    "shell": "Arguments on a host",
    "ssh": "SSH",
    "state": "The state",
    "trust": "Signer sets on a host",
    "yaml": "YAML input",
}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
        return
    if command.invoke_without_command:
        yield words, command
    for name, one in inner.items():
        yield from _commands(one, (*words, name))


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return f"`{shown}`"
    value = parameter.default
    if value is None or value is False or value in ((), []):
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return (
        f"`{getattr(value, 'value', value):g}`" if isinstance(value, float) else f"`{getattr(value, 'value', value)}`"
    )


def _usage(words: tuple[str, ...], command: Any) -> str:
    arguments = []
    for one in command.params:
        if one.param_type_name == "argument":
            name = one.metavar or one.name.upper()
            arguments.append(name if one.required or name.startswith("[") else f"[{name}]")
    return " ".join([*words, *arguments, "[OPTIONS]"])


def _takes(option: Any) -> str:
    """What stands behind an option."""
    kind = option.type_descriptor.annotation
    if option.is_flag:
        return ""
    if issubclass(kind, Enum):
        return "\\|".join(str(choice.value) for choice in kind)
    return str(option.metavar or _KINDS.get(kind, kind.__name__.upper()))


def _rows(command: Any) -> Iterator[str]:
    for one in command.params:
        if one.name == "help":
            continue
        if one.param_type_name == "argument":
            named = f"`{one.metavar or one.name.upper()}`"
        else:
            named = ", ".join(f"`{flag}`" for flag in (*one.opts, *one.secondary_opts))
            named = f"{named} {_takes(one)}".strip()
        yield f"| {named} | {_default(one)} | {_cell(one.help or '')} |"


def cli_page() -> str:
    parts = [_CLI_HEAD]
    for words, command in _commands(get_command(app), ("sbctl",)):
        rows = "\n".join(_rows(command))
        table = f"\n| | default | |\n|---|---|---|\n{rows}\n" if rows else ""
        parts.append(
            f"## `{' '.join(words)}`\n\n{' '.join((command.help or '').split())}\n\n    {_usage(words, command)}\n{table}"
        )
    return "\n".join(parts)


def errors_page() -> str:
    parts = [_ERRORS_HEAD]
    for prefix, codes in groupby(error_codes().values(), key=lambda one: one.code.partition(".")[0]):
        rows = "\n".join(
            f"| `{one.code}` | {int(one.exit_code)} | {_cell(one.sentence)} | {_cell(one.next_step)} |" for one in codes
        )
        parts.append(
            f"## {_GROUPS.get(prefix, prefix)}\n\n| code | exit | says | next step |\n|---|---|---|---|\n{rows}\n"
        )
    rows = "\n".join(
        f"| `{code}` | {status} | {_cell(sentence)} |" for code, (status, sentence) in http_codes().items()
    )
    parts.append(
        "## Answers of the runtime over HTTP\n\nThe `code` of an error body, and the reason that status and `drift` show.\n\n"
        f"| code | HTTP | says |\n|---|---|---|\n{rows}\n"
    )
    rows = "\n".join(
        f"| `{code}` | {refusal.status} | {refusal.kind} | {_cell(refusal.says)} |"
        for code, refusal in sorted(REFUSALS.items())
    )
    parts.append(
        "## Refusals between nodes\n\nA worker's answers to a gateway (`x-sbproxy-error-code`), and what a gateway makes of a way that failed. "
        "By the class a gateway asks another node (capacity, readiness, transport) or nobody (security, terminal). Callers never see them: "
        "to a caller the model is temporarily unavailable, and `sbproxy_reason` names the code.\n\n"
        f"| code | HTTP | class | says |\n|---|---|---|---|\n{rows}\n"
    )
    return "\n".join(parts)


def threats_page() -> str:
    """docs/threats.md with its last column filled in where tests carry the id; what a person wrote there stays otherwise."""
    from tests.simulators.doc_ids import ids_in_tests

    tested = ids_in_tests()

    def filled(match: re.Match[str]) -> str:
        files = ", ".join(f"`{file}`" for file in sorted(tested.get(match["id"], ())))
        return f"{match['head']} {files or match['tested']} |"

    text = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    return re.sub(r"^(?P<head>\| (?P<id>[A-H]\d+) \|.*\|) (?P<tested>[^|]*) \|$", filled, text, flags=re.MULTILINE)


def pages() -> dict[Path, str]:
    """Every generated page and what must stand in it."""
    reference = ROOT / "docs" / "reference"
    description = json.dumps(openapi_document(), indent=2, sort_keys=True) + "\n"
    return {
        reference / "cli.md": cli_page(),
        reference / "errors.md": errors_page(),
        reference / "capabilities.md": capabilities_page(),
        ROOT / "schemas" / "openapi.v1.json": description,
    }


def drifted() -> list[Path]:
    """Pages that do not say what the source says."""
    return [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(arguments: list[str]) -> int:
    """`--write` writes the pages; without it, exit 1 names those that differ."""
    if arguments == ["--write"]:
        for path, text in {**pages(), ROOT / "docs" / "threats.md": threats_page()}.items():
            write_atomic(path, text.encode(), mode=0o644)
        return 0
    stale = drifted()
    for path in stale:
        sys.stdout.write(f"{path} differs from the source; write it with make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
