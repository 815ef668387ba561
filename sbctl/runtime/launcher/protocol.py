"""One request, one answer, each a JSON line; both sides of the launcher's socket.

    {"op": "start", "spec": {…}}                    → {"unit", "pid", "invocation"}
    {"op": "stop", "unit", "grace_s"}               → {}                              when nothing of it is left
    {"op": "stop_all"}                              → {"stopped": number}
    {"op": "list"}                                  → {"engines": [{"unit", "pid", "invocation", "running"}]}
    {"op": "prove", "unit", "port"}                 → {}                              its own process listens at its address
    {"op": "lines", "invocation", "count"}          → {"lines": [text]}
    {"op": "wait", "unit", "invocation"}            → {"returncode": number|null, "result"}     when it has ended
    {"op": "attend"}                                → {}                              and counts as present until the connection closes

An answer is {"ok": …} or {"error": the error's wire form}. A connection may carry several requests, one after another.
"""

from __future__ import annotations

import json
from typing import Any, Final

from sbctl.base import strict_json

__all__ = ["LINE_MAX_BYTES", "MAX_LINES", "pack", "unpack"]

LINE_MAX_BYTES: Final = 256 * 1024
MAX_LINES: Final = 100
"""Of an engine's output, at once."""


def pack(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes) -> dict[str, Any]:
    """Raises InputError `json.*` for anything but one JSON object; an empty one has no fields."""
    document = strict_json.loads(line, max_bytes=LINE_MAX_BYTES, max_depth=8)
    return document if isinstance(document, dict) else {}
