"""Models and how they stand in caches: `sbctl models list|show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.artifacts.answers import CacheListing, Verified
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.display import format_bytes, plural
from sbctl.catalog.loader import CatalogEntry
from sbctl.views.layout import safe
from sbctl.views.models_views import PlaceError, errors_body
from sbctl.views.tables import Cell, Column, render_fields, render_rows

__all__ = ["Listed", "ModelFit", "ModelRow", "ShownRow", "list_body", "list_text", "show_body", "show_text"]

_STATUS_STYLES: Final = {"cached": "green", "damaged": "bold red"}


@dataclass(frozen=True, slots=True)
class ModelFit:
    """Whether one machine could serve a model. `smaller`: what of a deployment would have to be set. `source` as `engines.memory.Figure` has it."""

    verdict: Literal["fits", "fits-smaller", "too-large", "unknown"]
    needs_bytes: int | None = None
    source: str | None = None
    smaller: str = ""


_UNKNOWN_FIT: Final = ModelFit("unknown")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model on one machine. `status`: cached, partial, damaged, not-pulled, `not-pulled, importable from <source>`, preview-incomplete.

    `facts` are those of the variant that would serve; None where the catalog has none, or the row is an artifact that no catalog names.
    """

    host: str
    id: str
    status: str
    entry: CatalogEntry | None = None
    facts: ArtifactFacts | None = None
    engine: str | None = None
    fit: ModelFit = _UNKNOWN_FIT
    artifact: str | None = None
    size_bytes: int | None = None
    pinned: bool = False
    in_use: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """The rows of one machine, and its cache."""

    host: str
    rows: tuple[ModelRow, ...]
    cache: CacheListing


def list_body(listed: Sequence[Listed], errors: Sequence[PlaceError]) -> dict[str, Any]:
    return {
        "models": [_model_body(row) for one in listed for row in one.rows],
        "caches": [{"host": one.host, **_cache_body(one.cache)} for one in listed],
        "errors": errors_body(errors),
    }


def _model_body(row: ModelRow) -> dict[str, Any]:
    model = None if row.entry is None else row.entry.model
    return {
        "host": row.host,
        "id": row.id,
        "params": None if model is None else model.params,
        "license": model.license if model is not None else (row.facts.license if row.facts else None),
        "family": None if model is None else model.family,
        "modality": None if model is None else model.modality,
        "quants": [] if model is None else list(model.quants),
        "selected_variant": None if row.facts is None else row.facts.variant,
        "format": None if row.facts is None else row.facts.format,
        "stability": _stability(row),
        "exact_size_bytes": row.size_bytes,
        "engine": row.engine,
        "fit": row.fit.verdict,
        "fit_source": row.fit.source,
        "fit_smaller": row.fit.smaller or None,
        "needs_bytes": row.fit.needs_bytes,
        "estimated_vram_gib": _gib(row.fit.needs_bytes or (row.facts.min_memory_bytes if row.facts is not None else 0)),
        "status": row.status,
        "artifact": row.artifact,
        "pinned": row.pinned,
        "in_use": row.in_use,
        "reason": row.reason,
    }


def _stability(row: ModelRow) -> str | None:
    if row.entry is None or row.facts is None:
        return None
    return next((one.stability for one in row.entry.model.variants if one.id == row.facts.variant), None)


def _gib(count: int) -> float | None:
    return round(count / 1024**3, 2) if count else None


def _cache_body(cache: CacheListing) -> dict[str, Any]:
    body: dict[str, Any] = cache.model_dump(mode="json", exclude={"artifacts", "importable"})
    return body


def list_text(listed: Sequence[Listed], errors: Sequence[PlaceError]) -> RenderableType:
    several = len(listed) + len(errors) > 1
    engines = {row.engine for one in listed for row in one.rows if row.engine}
    columns: list[Column | str] = [
        "model",
        "variant",
        Column("size", "right"),
        *(["engine"] if len(engines) > 1 else []),
        "fit",
        Column("status", style_by=_STATUS_STYLES),
        "licence",
    ]
    rows: list[Sequence[Cell]] = []
    for one in listed:
        for row in one.rows:
            cells: tuple[Cell, ...] = (
                row.id,
                row.facts.variant if row.facts is not None else None,
                format_bytes(row.size_bytes) if row.size_bytes else None,
                *([row.engine] if len(engines) > 1 else []),
                _shown_fit(row.fit),
                _shown_status(row) + (", pinned" if row.pinned else "") + (", in use" if row.in_use else ""),
                row.entry.model.license if row.entry is not None else None,
            )
            rows.append((one.host, *cells) if several else cells)
    table = render_rows(["host", *columns] if several else columns, rows, empty="no models")
    lines = [Text(f"\n{safe(_cache_line(one, several=several))}") for one in listed]
    return Group(table, *lines)


def _shown_fit(fit: ModelFit) -> str:
    needs = f" ({format_bytes(fit.needs_bytes)})" if fit.needs_bytes and fit.source != "catalog" else ""
    return f"with {fit.smaller}" if fit.smaller else fit.verdict + needs


def _shown_status(row: ModelRow) -> str:
    return "listed only" if row.status == "preview-incomplete" else row.status


def _cache_line(one: Listed, *, several: bool) -> str:
    cache = one.cache
    parts = [f"{format_bytes(cache.disk_bytes)} in {cache.root}"]
    if cache.budget_bytes is not None:
        parts.append(f"budget {format_bytes(cache.budget_bytes)}")
    if cache.free_bytes is not None:
        parts.append(f"{format_bytes(cache.free_bytes)} free")
    if cache.orphan_bytes:
        parts.append(f"{format_bytes(cache.orphan_bytes)} that nothing names (sbctl models prune)")
    if cache.quarantined:
        parts.append(f"{plural(len(cache.quarantined), 'damaged file')} set aside")
    if cache.offline:
        parts.append("offline: it fetches nothing")
    return (f"{one.host}: " if several else "") + ", ".join(parts)


ShownRow = tuple[ModelRow, Verified | None]
"""A variant on a machine, and what reading it found; None when it was not read."""


def show_body(entry: CatalogEntry, rows: Sequence[ShownRow]) -> dict[str, Any]:
    model = entry.model
    return {
        "id": entry.id,
        "catalog_revision": entry.revision,
        "hf_repo": model.hf_repo,
        "quants": list(model.quants),
        "params": model.params,
        "license": model.license,
        "family": model.family,
        "modality": model.modality,
        "context_length": model.context_length,
        "allow_pickle": model.allow_pickle,
        "engine": model.engine,
        "pull": model.pull,
        "min_vram_hint_gib": model.min_vram_hint_gib,
        "variants": [variant.model_dump(mode="json") for variant in model.variants],
        "cached": any(row.status == "cached" for row, _ in rows),
        "hosts": [
            {**_model_body(row), "verified": None if verified is None else verified.model_dump(mode="json")}
            for row, verified in rows
        ],
    }


def show_text(entry: CatalogEntry, rows: Sequence[ShownRow], *, width: int) -> RenderableType:
    model = entry.model
    fields: list[tuple[str, Cell]] = [
        ("parameters", model.params),
        ("family", model.family),
        ("licence", model.license),
        ("modality", model.modality),
        ("context", None if model.context_length is None else f"{model.context_length} tokens"),
        ("catalog", entry.revision + ("" if entry.builtin else ", your own")),
    ]
    variants = render_rows(
        ("variant", "format", Column("size", "right"), "engines", Column("memory", "right"), "source", "stability"),
        [
            (
                one.id,
                one.format,
                format_bytes(sum(file.size_bytes for file in one.files)),
                ", ".join(one.engines),
                format_bytes(one.requirements.min_memory_bytes),
                f"{one.source}@{one.revision[:12]}" if one.source.startswith("hf:") else one.source,
                one.stability,
            )
            for one in model.variants
        ],
        empty="no variant has pinned files, so it can be listed and not served",
    )
    state = render_rows(
        ("host", "variant", Column("status", style_by=_STATUS_STYLES), "artifact", "bytes"),
        [
            (
                row.host,
                row.facts.variant if row.facts is not None else None,
                row.status,
                row.artifact[:12] if row.artifact else None,
                _verdict(row, verified),
            )
            for row, verified in rows
        ],
        empty="",
    )
    return Group(render_fields(fields, width=width, title=entry.id), Text(""), variants, Text(""), state)


def _verdict(row: ModelRow, verified: Verified | None) -> str | None:
    if verified is None:
        return "as sealed" if row.status == "cached" else row.reason
    return "all read, good" if verified.is_good else f"damaged: {'; '.join(verified.reasons)}"
