"""Dotted paths of leaves, and the globs that match them.

A path is segments joined by dots: `deployments.chat.replicas`, a list position is its number. A segment that is not made of
`[A-Za-z0-9_-]` is written as a JSON string, so a hostname keeps its dots: `origins."ai.internal".models.chat`.
In a glob `*` is exactly one segment and a trailing `**` is the rest, which may be empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

__all__ = ["join_path", "path_matches", "split_path"]

_PLAIN_RE: Final = re.compile(r"[A-Za-z0-9_-]+")
_SEGMENT_RE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+')


def join_path(segments: Iterable[str | int]) -> str:
    """The path of these segments; `split_path` gives them back as text."""
    return ".".join(
        text if _PLAIN_RE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
        for text in (str(segment) for segment in segments)
    )


@lru_cache(maxsize=8192)
def split_path(path: str) -> tuple[str, ...]:
    """The segments of a path or of a glob; the empty path has none."""
    return tuple(
        json.loads(part) if part.startswith('"') else part
        for part in (match[0] for match in _SEGMENT_RE.finditer(path))
    )


@lru_cache(maxsize=65536)
def path_matches(glob: str, path: str) -> bool:
    """Whether a glob names this path."""
    wanted = split_path(glob)
    given = split_path(path)
    if wanted and wanted[-1] == "**":
        wanted = wanted[:-1]
        if len(given) < len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(want in ("*", have) for want, have in zip(wanted, given, strict=False))
