"""What the admin API knows of models: the built-in catalog, with the operator's own over it where the accepted bundle brought that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from sbctl.base.display import display_safe
from sbctl.catalog.loader import Catalog, CatalogEntry, builtin_catalog, parse_document
from sbctl.catalog.models import CatalogVariant
from sbctl.runtime.log import get_log
from sbctl.trust.bundle import BundleContent

__all__ = ["KnownCatalog", "catalog_document"]

_TEXT_MAX_CHARS: Final = 224
"""What is cut says by how much, and stays within 256."""


class KnownCatalog:
    """One a daemon. Reads the catalog of a bundle once."""

    def __init__(self) -> None:
        self._read: tuple[Mapping[str, Any] | None, Catalog] | None = None

    def of(self, content: BundleContent | None) -> Catalog:
        """As an apply found the operator's catalog. One that a newer sbctl wrote and that cannot be read here is left out, and logged."""
        brought = None if content is None else content.catalog
        if self._read is None or self._read[0] is not brought:
            self._read = (brought, _overlaid(brought))
        return self._read[1]


def _overlaid(brought: Mapping[str, Any] | None) -> Catalog:
    if brought is None:
        return builtin_catalog()
    try:
        return builtin_catalog().overlaid(parse_document(brought))[0]
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        get_log("admin").error(
            "the operator's catalog in the bundle cannot be read: the built-in one alone is offered",
            reason=first["msg"],
        )
        return builtin_catalog()


def catalog_document(catalog: Catalog) -> dict[str, Any]:
    """The body of GET catalog. `catalog_revision` is the operator's where there is one; each model says of which catalog it is."""
    entries = sorted(catalog.entries.values(), key=lambda entry: entry.id)
    revision = next((entry.revision for entry in entries if not entry.builtin), entries[0].revision if entries else "")
    return {
        "schema_version": 1,
        "catalog_revision": _text(revision),
        "models": {entry.id: _model(entry) for entry in entries},
    }


def _model(entry: CatalogEntry) -> dict[str, Any]:
    model = entry.model
    return {
        "params": _text(model.params),
        "license": _text(model.license),
        "family": _text(model.family),
        "modality": model.modality,
        "context_length": model.context_length,
        "allow_pickle": model.allow_pickle,
        "builtin": entry.builtin,
        "catalog_revision": _text(entry.revision),
        "variants": [_variant(variant) for variant in model.variants],
    }


def _variant(variant: CatalogVariant) -> dict[str, Any]:
    return {
        "id": variant.id,
        "format": variant.format,
        "quant": _text(variant.quant),
        "engines": list(variant.engines),
        "accelerators": list(variant.requirements.accelerators),
        "min_memory_bytes": variant.requirements.min_memory_bytes,
        "download_size_bytes": variant.total_bytes,
        "certification": _text(variant.certification),
        "stability": variant.stability,
    }


def _text(text: str) -> str:
    return display_safe(text, max_chars=_TEXT_MAX_CHARS)
