"""A catalog's entries for the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType

from sbctl.base.display import format_bytes
from sbctl.catalog.licenses import license_of
from sbctl.views.tables import render_fields, render_rows

__all__ = ["entry_body", "entry_text", "findings_text", "updates_text"]


def entry_text(model_id: str, model: Mapping[str, Any], variant: Mapping[str, Any]) -> RenderableType:
    """What a new entry says, for a person who is about to rely on it."""
    total = sum(file["size_bytes"] for file in variant["files"])
    fields = (
        ("source", f"{variant['source']}@{variant['revision']}"),
        ("licence", license_of(model["license"]).phrase),
        ("parameters", model["params"]),
        ("context", f"{model['context_length']} tokens"),
        ("download", f"{format_bytes(total)} in {len(variant['files'])} files"),
        ("least memory", format_bytes(variant["requirements"]["min_memory_bytes"])),
        ("engines", ", ".join(variant["engines"])),
    )
    return render_fields(fields, title=f"{model_id}:{variant['id']}")


def entry_body(model_id: str, model: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON."""
    told = license_of(model["license"])
    return {
        "model": model_id,
        "variant": variant["id"],
        "entry": {**model, "variants": [variant]},
        "license": {"id": told.id, "name": told.name, "spdx": told.spdx, "commercial_use": told.commercial},
    }


def findings_text(findings: Iterable[tuple[str, str, str]]) -> RenderableType:
    """(entry, verdict, detail) as a table."""
    return render_rows(("entry", "is", "because"), findings, empty="the catalog has no entry with files")


def updates_text(updates: Iterable[tuple[str, str, str, str]]) -> RenderableType:
    """(entry, old revision, new revision, what changed) as a table."""
    return render_rows(("entry", "was", "is", "bytes"), updates, empty="nothing to update")
