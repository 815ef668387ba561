"""The one rule for relative paths that documents name: in catalogs, archives and manifests."""

from __future__ import annotations

__all__ = ["is_safe_member"]


def is_safe_member(path: str) -> bool:
    """A relative path without `.`, `..`, empty parts, backslash or control characters, of at most 512 characters."""
    return (
        0 < len(path) <= 512
        and path.isprintable()
        and "\\" not in path
        and all(part not in ("", ".", "..") for part in path.split("/"))
    )
