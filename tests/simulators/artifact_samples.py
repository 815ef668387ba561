"""Small artifacts for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id

__all__ = ["artifact_of", "write_sources"]


def artifact_of(files: Mapping[str, bytes], source: str) -> ArtifactFacts:
    """Facts of an artifact with these contents."""
    listed = tuple(
        ArtifactFile(path=path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        for path, data in files.items()
    )
    return ArtifactFacts(
        artifact=artifact_id("gguf", listed),
        format="gguf",
        files=listed,
        source=source,
        model="tiny",
        variant="q",
        context_length=512,
    )


def write_sources(directory: Path, files: Mapping[str, bytes]) -> ArtifactFacts:
    """The same, with the files in a directory that is the source."""
    for path, data in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    return artifact_of(files, f"file:{directory}")
