"""`sbproxy-models.lock`: exactly which files each deployment's model is, beside sb.yml and committed with it (SBproxy, "Lockfile").

Two artifacts are the same when their files are: path, size, SHA-256. Where they come from and which state of a catalog named them is told
and never compared, so a new catalog revision with the same files is no drift. Neither is a model that nothing is configured with any more,
nor anything else in a cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, Digest
from sbctl.base import fs, strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import JSON_INT_MAX, MIB

__all__ = [
    "LOCK_NAME",
    "LockRow",
    "LockedModel",
    "ModelsLock",
    "WantedModel",
    "compared",
    "drifted",
    "lock_of",
    "read_lock",
    "refuse_drift",
    "write_lock",
]

LOCK_NAME: Final = "sbproxy-models.lock"
_MAX_BYTES: Final = 16 * MIB
_MAX_MODELS: Final = 4096

_Text = Annotated[str, Field(max_length=4096)]
Status = Literal["ok", "missing", "digest_mismatch", "unlocked", "engine_changed", "unused"]


class LockedEngine(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    kind: Annotated[str, Field(min_length=1, max_length=64)]
    version: _Text | None = None
    image: _Text | None = None


class LockedModel(BaseModel):
    """`artifact_digest` is SBproxy's, which contains the revision of the catalog: provenance."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    name: Annotated[str, Field(min_length=1, max_length=128)]
    variant_id: Annotated[str, Field(min_length=1, max_length=128)]
    artifact_digest: Digest
    source: _Text
    revision: _Text = ""
    files: tuple[ArtifactFile, ...] = Field(max_length=4096)
    engine: LockedEngine


class ModelsLock(BaseModel):
    """The whole document; `models` by name and variant, once for each engine build."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    schema_version: Literal[1] = 1
    generated_at_ms: int = Field(ge=0, le=JSON_INT_MAX)
    catalog_revision: _Text = ""
    models: tuple[LockedModel, ...] = Field(max_length=_MAX_MODELS)


@dataclass(frozen=True, slots=True)
class WantedModel:
    """What a deployment is configured with. `engine_version` and `engine_image` None: whatever the host has."""

    facts: ArtifactFacts
    engine: str
    engine_version: str | None = None
    engine_image: str | None = None
    catalog_revision: str = ""


@dataclass(frozen=True, slots=True)
class LockRow:
    """One model of the lock or of the configuration. `detail` is a sentence where something is to be said."""

    name: str
    variant: str
    status: Status
    detail: str = ""


def lock_of(wanted: Iterable[WantedModel], *, now_ms: int) -> ModelsLock:
    """One entry for each model, variant and engine build, however many deployments want it."""
    models: dict[str, LockedModel] = {}
    revisions: set[str] = set()
    for each in wanted:
        facts = each.facts
        locked = LockedModel(
            name=facts.model,
            variant_id=facts.variant,
            artifact_digest=facts.catalog_digest or facts.artifact,
            source=facts.source,
            revision=facts.revision,
            files=tuple(sorted(facts.files, key=lambda file: file.path)),
            engine=_engine_of(each),
        )
        models[locked.model_dump_json()] = locked
        if each.catalog_revision:
            revisions.add(each.catalog_revision)
    ordered = sorted(
        models.values(), key=lambda one: (one.name, one.variant_id, one.engine.kind, one.model_dump_json())
    )
    return ModelsLock(
        generated_at_ms=now_ms, catalog_revision=", ".join(sorted(revisions))[:4096], models=tuple(ordered)
    )


def _engine_of(each: WantedModel) -> LockedEngine:
    return LockedEngine(kind=each.engine, version=each.engine_version, image=each.engine_image)


def write_lock(path: Path, lock: ModelsLock) -> None:
    """Durably, as a whole. Raises SbctlError `disk.*`."""
    document = lock.model_dump(mode="json")
    for model in document["models"]:
        model["engine"] = {name: value for name, value in model["engine"].items() if value is not None}
    fs.write_atomic(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode(), mode=0o644)


def read_lock(path: Path) -> ModelsLock:
    """Raises InputError `models_lock.missing`, `models_lock.invalid`, `file.*`."""
    try:
        data = fs.read_bounded(path, max_bytes=_MAX_BYTES)
    except InputError as error:
        if error.code != "file.missing":
            raise
        raise InputError(
            "models_lock.missing", "there is no lockfile of the models", place=str(path), next_step="sbctl models lock"
        ) from error
    try:
        document = strict_json.loads(data, max_bytes=_MAX_BYTES)
        lock = ModelsLock.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise _invalid(path, f"{where}: {first['msg']}") from None
    except InputError as error:
        raise _invalid(path, error.message) from error
    return lock


def _invalid(path: Path, why: str) -> InputError:
    return InputError(
        "models_lock.invalid",
        f"the lockfile of the models cannot be read: {why}",
        place=str(path),
        next_step="take it back from version control, or write it anew: sbctl models lock",
    )


def compared(
    lock: ModelsLock, wanted: Iterable[WantedModel], *, cached: Callable[[ArtifactFacts], str | None] | None = None
) -> tuple[LockRow, ...]:
    """Each model of the configuration and of the lock, by name and variant.

    `cached` says how an artifact stands in a cache: `ready`, `partial`, `corrupt`, or None where nothing of it is; without it no cache is
    looked at, and nothing is `missing`.
    """
    locked: dict[tuple[str, str], list[LockedModel]] = {}
    for model in lock.models:
        locked.setdefault((model.name, model.variant_id), []).append(model)
    rows: dict[tuple[str, str], LockRow] = {}
    for each in wanted:
        key = (each.facts.model, each.facts.variant)
        row = _judged(each, locked.get(key, []), cached)
        if key not in rows or rows[key].status == "ok":
            rows[key] = row
    for key in locked:
        rows.setdefault(key, LockRow(*key, "unused", "nothing is configured with it any more"))
    return tuple(rows[key] for key in sorted(rows))


def _judged(
    each: WantedModel, locked: Sequence[LockedModel], cached: Callable[[ArtifactFacts], str | None] | None
) -> LockRow:
    name, variant = each.facts.model, each.facts.variant
    if not locked:
        return LockRow(name, variant, "unlocked", "it is configured and not in the lock")
    same = [one for one in locked if not _different_file(each.facts.files, one.files)]
    if not same:
        return LockRow(name, variant, "digest_mismatch", _different_file(each.facts.files, locked[0].files))
    wanted = _engine_of(each)
    if all(one.engine != wanted for one in same):
        shown = f"{_shown(same[0].engine)} is locked, {_shown(wanted)} configured"
        return LockRow(name, variant, "engine_changed", shown)
    state = "ready" if cached is None else cached(each.facts)
    if state == "corrupt":
        return LockRow(name, variant, "digest_mismatch", "its files in the cache changed after they were published")
    if state != "ready":
        how = "it is not in the cache" if state is None else "only part of it is in the cache"
        return LockRow(name, variant, "missing", how)
    return LockRow(name, variant, "ok")


def _different_file(files: Sequence[ArtifactFile], locked: Sequence[ArtifactFile]) -> str:
    ours, theirs = ({file.path: file for file in each} for each in (files, locked))
    for path in sorted(set(ours) | set(theirs)):
        if path not in theirs:
            return f"{path} is not among the locked files"
        if path not in ours:
            return f"{path} is locked and not configured any more"
        if ours[path] != theirs[path]:
            return f"{path} is locked as {theirs[path].sha256[:12]} and configured as {ours[path].sha256[:12]}"
    return ""


def _shown(engine: LockedEngine) -> str:
    return " ".join(part for part in (engine.kind, engine.version, engine.image) if part)


def drifted(rows: Iterable[LockRow]) -> bool:
    """Whether something is not as it was locked."""
    return any(row.status not in ("ok", "unused") for row in rows)


def refuse_drift(path: Path, rows: Sequence[LockRow]) -> None:
    """For `--locked`. Raises RefusedError `models_lock.drift` that names every model that drifted."""
    bad = [row for row in rows if row.status not in ("ok", "unused")]
    if bad:
        listed = "; ".join(f"{row.name}:{row.variant} {row.status}: {row.detail}" for row in bad)
        raise RefusedError(
            "models_lock.drift",
            f"the models are not as they were locked: {listed}",
            place=str(path),
            next_step="sbctl models verify-lock shows it; take the change back, or lock it: sbctl models lock",
            detail={"models": [{"name": row.name, "variant": row.variant, "status": row.status} for row in bad]},
        )
