"""SBproxy's artifact digest: provenance that is shown, never compared; sbctl's own identity of an artifact is `artifacts.model.artifact_id`."""

from __future__ import annotations

from sbctl.base.digests import fingerprint
from sbctl.catalog.models import CatalogVariant

__all__ = ["artifact_digest"]


def artifact_digest(catalog_revision: str, model: str, variant: CatalogVariant) -> str:
    """SHA-256 over RFC 8785 JSON of the fields that SBproxy's model host names, the catalog's revision among them (catalog, "Identity").

    Engines, context, licence, modality, requirements, stability and mirrors are not part of it.
    """
    return fingerprint(
        {
            "catalog_revision": catalog_revision,
            "logical_model": model,
            "variant_id": variant.id,
            "format": variant.format,
            "quant": variant.quant,
            "source": variant.source,
            "revision": variant.revision,
            "files": [
                {"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes} for file in variant.files
            ],
        }
    )
