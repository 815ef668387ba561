"""`serve --locked`: a runtime that was started by hand serves exactly the models that were locked, or does not begin to listen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.lockfile import LOCK_NAME, WantedModel, compared, read_lock, refuse_drift
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import UsageError
from sbctl.runtime.settings import Settings

__all__ = ["refuse_drifted_models"]


def refuse_drifted_models(settings: Settings, config_file: Path | None) -> None:
    """The lockfile lies beside the configuration; what it names must be in the cache, sealed.

    Raises UsageError without a configuration file; InputError `models_lock.*`; RefusedError `models_lock.drift`.
    """
    if config_file is None:
        raise UsageError(
            "usage",
            "--locked compares the file of --config with the lockfile beside it, and there is no such file",
            next_step="what a signed bundle names is fixed by its signature; sbctl apply --locked checks it before it is made",
        )
    path = config_file.resolve().parent / LOCK_NAME
    cache = ArtifactCache(settings.cache_directory)

    def state_of(facts: ArtifactFacts) -> str | None:
        entry = cache.entry(facts.artifact)
        return None if entry is None else entry.state

    refuse_drift(path, compared(read_lock(path), _wanted(settings), cached=state_of))


def _wanted(settings: Settings) -> Iterator[WantedModel]:
    members = settings.content.deployments.values() if settings.content is not None else ()
    for member in members:
        for facts in (member.artifact, *(adapter.artifact for adapter in member.adapters)):
            yield WantedModel(facts, member.engine.engine, member.engine.version)
