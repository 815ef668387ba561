"""A pack for the reader."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from sbctl.base.display import format_bytes, plural
from sbctl.pack.reader import Pack
from sbctl.views.tables import render_fields, render_rows

__all__ = ["pack_body", "pack_text"]


def pack_text(pack: Pack, *, signer: str | None) -> RenderableType:
    """Head, kinds of hosts, files. `signer` is None when no accepted key was asked for or none signed; then what it claims is said."""
    manifest = pack.manifest
    claimed = f"claims {', '.join(pack.claimed) or 'no name'} (not checked)" if pack.envelope else "nobody"
    fields = (
        ("fleet", manifest.fleet),
        ("made with", f"sbctl {manifest.sbctl_version}"),
        ("sb.yml", manifest.config_digest[:12]),
        ("signed by", signer or claimed),
        ("left out", ", ".join(manifest.left_out) or "nothing"),
        ("holds", f"{plural(len(manifest.entries), 'file')}, {format_bytes(manifest.total_bytes)}"),
    )
    targets = [
        (target.arch, f"{target.libc} or newer", target.python, len(target.wheels)) for target in manifest.targets
    ]
    files = [
        (entry.role, entry.name, format_bytes(entry.size_bytes), entry.sha256[:12])
        for entry in manifest.entries
        if entry.role != "runtime"
    ]
    return Group(
        render_fields(fields, title="pack"),
        render_rows(("machine", "C library", "python", "wheels"), targets, empty="no kind of host"),
        render_rows(("for", "file", "bytes", "sha256"), files, empty="no engine and no weights"),
    )


def pack_body(pack: Pack, *, signer: str | None, verified: bool) -> dict[str, Any]:
    """The same as JSON. `verified`: every byte was compared."""
    return {
        "path": str(pack.path),
        "manifest": pack.manifest.model_dump(mode="json"),
        "signer": signer,
        "claimed_key_ids": list(pack.claimed),
        "verified": verified,
    }
