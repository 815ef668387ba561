"""The control side of the bootstrap: modules of ours as one Python text for the standard input of a host's own interpreter.

The text carries the sources of standard-library-only modules, loads them under their own names and calls one entry with a JSON document.
The answer is one JSON line behind a random marker, so a banner, a message of the day or a chatty shell profile cannot be mistaken for it.
Facts need Python 3.8; every other command runs on the interpreter (3.11 or newer) that the facts named.
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from sbctl.base import strict_json
from sbctl.base.errors import HostError, InputError
from sbctl.base.limits import REMOTE_OUTPUT_MAX_BYTES
from sbctl.remote.transport import Completed, foreign_error, foreign_text, lost

__all__ = ["FACTS", "compose", "new_marker", "read_answer"]

FACTS: Final = "facts"

_FACTS_MODULES: Final = ("sbctl.node.paths", "sbctl.node.facts")
_COMMAND_MODULES: Final = (
    "sbctl.base.errors",
    "sbctl.base.fs",
    "sbctl.base.flock",
    *_FACTS_MODULES,
    "sbctl.remote.bootstrap_script",
)

_LOADER: Final = """\
import json, sys, types
def load(name, source):
    module = types.ModuleType(name)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            load(parent, "")
        setattr(sys.modules[parent], leaf, module)
    exec(compile(source, name, "exec"), module.__dict__)
    return module
for name, source in json.loads({sources}):
    last = load(name, source)
last.answer(json.loads({document}))
"""


@cache
def _source(name: str) -> str:
    return Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8")


def new_marker() -> str:
    """What no host can know before it is asked."""
    return f"sbctl-{secrets.token_hex(16)}:"


def compose(command: str, params: Mapping[str, Any], marker: str) -> bytes:
    """The program text for `python3 -I -`; ASCII, so no locale of the host matters."""
    modules = _FACTS_MODULES if command == FACTS else _COMMAND_MODULES
    sources = json.dumps([(name, _source(name)) for name in modules])
    document = json.dumps({**params, "command": command, "marker": marker})
    return _LOADER.format(sources=ascii(sources), document=ascii(document)).encode("ascii")


def read_answer(done: Completed, marker: str, *, place: str) -> Mapping[str, Any]:
    """The result in what the command printed. Raises the error it answers, HostError when it answers nothing that makes sense."""
    line = next((part for part in done.stdout.split(b"\n") if part.startswith(marker.encode("ascii"))), None)
    if line is None:
        raise _no_answer(done, place)
    try:
        message = strict_json.loads(line[len(marker) :], max_bytes=REMOTE_OUTPUT_MAX_BYTES)
    except InputError as error:
        raise HostError(
            "host.answer_invalid", f"the host's answer is not JSON: {error.message}", place=place
        ) from error
    if isinstance(message, dict) and isinstance(message.get("error"), dict):
        raise foreign_error(message["error"], place)
    if not isinstance(message, dict) or not isinstance(message.get("result"), dict):
        raise HostError("host.answer_invalid", "the host's answer has neither result nor error", place=place)
    result: Mapping[str, Any] = message["result"]
    return result


def _no_answer(done: Completed, place: str) -> Exception:
    said = foreign_text(done.stderr or done.stdout)
    if done.status == 127:
        return HostError(
            "host.no_python",
            "the host has no python3 on its PATH",
            place=place,
            next_step="install Python 3.11 or newer on the host (Debian, Ubuntu: apt-get install python3)",
        )
    if done.status == 0:
        return lost(place)
    return HostError(
        "host.bootstrap_failed",
        f"the bootstrap ended with status {done.status}" + (f": {said}" if said else ""),
        place=place,
    )
