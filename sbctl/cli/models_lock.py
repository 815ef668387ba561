"""`models lock|verify-lock`, and `--locked`: what sb.yml means by its models, written down and held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from providers.engine_policy import engine_policy
from sbctl.artifacts.lockfile import (
    LOCK_NAME,
    LockRow,
    ModelsLock,
    WantedModel,
    compared,
    lock_of,
    read_lock,
    refuse_drift,
    write_lock,
)
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.clock import Clock
from sbctl.base.errors import ConfigError, SbctlError
from sbctl.cli.models_places import Place
from sbctl.config.compiled import CompiledConfig, CompiledDeployment, CompiledHost
from sbctl.views.models_views import PlaceError

__all__ = ["lock_path", "locked_models", "refuse_unlocked", "verified", "wanted_models", "write_models_lock"]


def lock_path(config_file: Path) -> Path:
    """Beside sb.yml, to be committed with it."""
    return config_file.resolve().parent / LOCK_NAME


def wanted_models(config: CompiledConfig) -> Iterator[WantedModel]:
    """What each deployment of each host is."""
    for host in config.hosts.values():
        yield from _of_host(host)


def _of_host(host: CompiledHost) -> Iterator[WantedModel]:
    for deployment in host.deployments.values():
        for facts in deployment.artifacts:
            entry = host.catalog.entries.get(facts.model)
            yield WantedModel(
                facts=facts,
                engine=deployment.engine,
                engine_version=_version(deployment),
                engine_image=deployment.engine_policy.image,
                catalog_revision=entry.revision if entry is not None else "",
            )


def _version(deployment: CompiledDeployment) -> str | None:
    """Of the build that a host would get; of an engine that no host gets yet, what sb.yml says."""
    try:
        return engine_policy(deployment).version
    except ConfigError:
        return deployment.model.engine_version or deployment.engine_policy.version


def write_models_lock(config: CompiledConfig, path: Path, clock: Clock) -> ModelsLock:
    """Raises SbctlError `disk.*`."""
    lock = lock_of(wanted_models(config), now_ms=int(clock.now().timestamp() * 1000))
    write_lock(path, lock)
    return lock


def locked_models(lock: ModelsLock) -> list[Mapping[str, Any]]:
    """For a JSON result."""
    return [
        {
            "name": one.name,
            "variant": one.variant_id,
            "engine": one.engine.kind,
            "engine_version": one.engine.version,
            "artifact_digest": one.artifact_digest,
        }
        for one in lock.models
    ]


def verified(
    config: CompiledConfig | None, lock: ModelsLock, places: Sequence[Place]
) -> tuple[list[tuple[str | None, LockRow]], list[PlaceError]]:
    """sb.yml against the lock, and the caches of `places` against both; the host's name beside each row where there are several. A place that
    gives no answer is told beside the others.

    Where sb.yml does not name the machine, the lock alone says what its cache must have.
    """
    wanted = [] if config is None else list(wanted_models(config))
    if not places:
        return [(None, row) for row in compared(lock, wanted)], []
    configured = {(one.facts.model, one.facts.variant) for one in wanted}
    rows: list[tuple[str | None, LockRow]] = []
    errors: list[PlaceError] = []
    for place in places:
        try:
            states: dict[str, str] = {one.artifact: one.state for one in place.door.listing(()).artifacts}
        except SbctlError as error:
            errors.append(PlaceError(place.name, error))
            continue

        def state_of(facts: ArtifactFacts, states: Mapping[str, str] = states) -> str | None:
            return states.get(facts.artifact)

        own = list(_of_host(place.host)) if place.host is not None else list(_of_lock(lock))
        rows += [
            (place.name if len(places) > 1 else None, row)
            for row in compared(lock, own, cached=state_of)
            if row.status != "unused" or (row.name, row.variant) not in configured
        ]
    return rows, errors


def _of_lock(lock: ModelsLock) -> Iterator[WantedModel]:
    for one in lock.models:
        format_name = _format_of(one.files)
        facts = ArtifactFacts(
            artifact=artifact_id(format_name, one.files),
            format=format_name,
            files=one.files,
            source=one.source,
            model=one.name,
            variant=one.variant_id,
            context_length=1,
        )
        yield WantedModel(facts, one.engine.kind, one.engine.version, one.engine.image)


def _format_of(files: Sequence[ArtifactFile]) -> Literal["gguf", "safetensors", "pickle"]:
    """A variant has at least one file with the ending of its format."""
    endings = {file.path.rpartition(".")[2].lower() for file in files}
    return "gguf" if "gguf" in endings else "safetensors" if "safetensors" in endings else "pickle"


def refuse_unlocked(config: CompiledConfig, path: Path) -> None:
    """For `apply --locked`: sb.yml means exactly the locked files. Raises InputError `models_lock.*`, RefusedError `models_lock.drift`."""
    refuse_drift(path, compared(read_lock(path), wanted_models(config)))
