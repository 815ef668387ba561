"""The manifest of a published artifact, `snapshots/<artifact>/artifact.json`: its facts, and a seal of every file.

A seal is what the system says about a file at the moment its digest was checked: size, modification time, inode. While it holds, the bytes
need no second reading; once it does not, they are hashed before anybody uses them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.member_path import is_safe_member
from sbctl.artifacts.model import ArtifactFacts, artifact_id
from sbctl.base import fs, strict_json
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.ids import is_digest
from sbctl.base.limits import MIB

__all__ = ["MANIFEST", "Manifest", "broken_seal", "check_facts", "read_manifest", "seal_files"]

MANIFEST: Final = "artifact.json"
_MANIFEST_MAX_BYTES: Final = 4 * MIB
_FETCH_AGAIN: Final = "sbctl apply, or sbctl models pull of this model, gets it again"


class Manifest(BaseModel):
    """The whole document; `seals` by file path, one for each file of `facts`: `size:mtime in ns:inode`, beyond what JSON numbers hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    schema_version: Literal[1] = 1
    facts: ArtifactFacts
    seals: Mapping[str, Annotated[str, Field(pattern="^[0-9]{1,20}:-?[0-9]{1,20}:[0-9]{1,20}$")]]
    shape: ModelShape | None = None
    """What the headers of the weights said when the files were verified; None also where an older version published them."""


def check_facts(facts: ArtifactFacts) -> None:
    """An artifact that may be stored: its name fits its files, its paths are safe and distinct. Raises InputError `artifact.invalid`."""
    problem = None
    paths = [file.path for file in facts.files]
    if not all(is_safe_member(path) and path != MANIFEST for path in paths):
        problem = "a file path is not a plain relative path"
    elif len({path.casefold() for path in paths}) != len(paths):
        problem = "two files have the same name"
    elif artifact_id(facts.format, facts.files) != facts.artifact:
        problem = "its name does not belong to its files"
    if problem is not None:
        raise InputError(
            "artifact.invalid",
            f"the artifact cannot be stored: {problem}",
            place=f"{facts.model}:{facts.variant}",
            next_step="correct the files of this variant in the catalog",
        )


def read_manifest(snapshot: Path) -> Manifest:
    """Raises ArtifactError `artifact.manifest_damaged` for anything but a manifest of this very snapshot."""
    try:
        path = snapshot / MANIFEST
        if path.is_symlink():
            raise InputError("file.not_regular", "it is a symbolic link", place=str(path), next_step=_FETCH_AGAIN)
        raw = strict_json.loads(fs.read_bounded(path, max_bytes=_MANIFEST_MAX_BYTES), max_bytes=_MANIFEST_MAX_BYTES)
        manifest = Manifest.model_validate_json(json.dumps(raw))
        check_facts(manifest.facts)
    except (InputError, ValidationError) as error:
        why = error.message if isinstance(error, InputError) else "it does not have its form"
        raise ArtifactError(
            "artifact.manifest_damaged",
            f"the manifest of an artifact is unusable: {why}",
            place=str(snapshot),
            next_step=_FETCH_AGAIN,
        ) from error
    if manifest.facts.artifact != snapshot.name or set(manifest.seals) != {file.path for file in manifest.facts.files}:
        raise ArtifactError(
            "artifact.manifest_damaged",
            "the manifest belongs to another artifact",
            place=str(snapshot),
            next_step=_FETCH_AGAIN,
        )
    return manifest


def seal_files(snapshot: Path, facts: ArtifactFacts) -> dict[str, str]:
    """Seals of files that were verified this moment. Raises SbctlError."""
    return {file.path: _seal(snapshot / file.path) for file in facts.files}


def _seal(path: Path) -> str:
    try:
        return _stamp(os.lstat(path))
    except OSError as error:
        raise fs.disk_error(error, path) from error


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"


def broken_seal(snapshot: Path, manifest: Manifest) -> str | None:
    """Which file is not as it was verified, in one sentence; None when all are."""
    for file in manifest.facts.files:
        try:
            status = os.lstat(snapshot / file.path)
        except OSError:
            return f"{file.path} is missing"
        if not stat.S_ISREG(status.st_mode):
            return f"{file.path} is not a regular file"
        if status.st_size != file.size_bytes:
            return f"{file.path} has {status.st_size} bytes where {file.size_bytes} are expected"
        if _stamp(status) != manifest.seals[file.path]:
            return f"{file.path} was changed or replaced since it was verified"
    return None


def digest_of_name(text: str) -> str:
    """`text` when it is a digest, since it becomes a path part. Raises InputError `artifact.name_invalid`."""
    if not is_digest(text):
        raise InputError(
            "artifact.name_invalid",
            "an artifact is named by 64 lowercase hexadecimal characters",
            place=display_safe(text, max_chars=80),
            next_step="sbctl models list --format json has the names",
        )
    return text
