"""What an artifact is: one exact set of weight files, named by a digest of its content."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.base.digests import fingerprint
from sbctl.base.ids import DIGEST_RE

__all__ = ["ArtifactFacts", "ArtifactFile", "Delivery", "Digest", "artifact_id"]

Delivery = Literal["pull", "push"]
"""pull: the host fetches; push: the operator's machine fetches and sends."""

Digest = Annotated[str, Field(pattern=f"^{DIGEST_RE.pattern}$", min_length=64, max_length=64)]


class ArtifactFile(BaseModel):
    """One file: a safe relative path, its length in bytes, its SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    path: str = Field(min_length=1, max_length=512)
    sha256: Digest
    size_bytes: int = Field(gt=0)


class ArtifactFacts(BaseModel):
    """All that a host needs to get, check and name an artifact; no catalog is needed beside it.

    `source` is where the identity was pinned, `mirrors` other ways to the same bytes, tried in order after it.
    `catalog_digest` is SBproxy's artifact digest (it contains the catalog revision): provenance, never compared.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    artifact: Digest
    format: Literal["gguf", "safetensors", "pickle"]
    files: tuple[ArtifactFile, ...] = Field(min_length=1)
    source: str
    revision: str = ""
    mirrors: tuple[str, ...] = ()
    model: str
    variant: str
    license: str = ""
    context_length: int = Field(gt=0)
    min_memory_bytes: int = Field(default=0, ge=0)
    catalog_digest: str | None = None

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def artifact_id(format_name: str, files: tuple[ArtifactFile, ...]) -> str:
    """The name of an artifact: SHA-256 over canonical JSON of its format and its files sorted by path.

    Neither source nor catalog is part of it: the same bytes from elsewhere are the same artifact.
    """
    listed = sorted((file.model_dump() for file in files), key=lambda entry: str(entry["path"]))
    return fingerprint({"format": format_name, "files": listed})
