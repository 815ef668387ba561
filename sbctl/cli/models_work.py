"""`models list|show|pull|remove|prune`: the same work on each place, places at the same time, what fails on one told beside the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sbctl.artifacts.answers import CachedArtifact, CacheListing, Verified
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import ArtifactError, ExitCode, InputError, RefusedError, SbctlError, UsageError, worst_exit
from sbctl.base.ids import is_digest
from sbctl.catalog.loader import CatalogEntry
from sbctl.catalog.resolve import DeviceProfile, Resolution, resolve
from sbctl.cli.memory_needs import model_fit
from sbctl.cli.models_places import Place
from sbctl.node.snapshot import NodeSnapshot
from sbctl.views.models_list_views import Listed, ModelRow, ShownRow
from sbctl.views.models_views import PlaceError, PruneRow, PullRow, RemoveRow
from sbctl.views.transfers import Report

__all__ = [
    "PullRequest",
    "Worked",
    "exit_code",
    "listed",
    "named",
    "pruned",
    "pulled",
    "removed",
    "shown",
]

_PLACES_AT_ONCE: Final = 16

_Row = TypeVar("_Row")
Worked = tuple[list[_Row], list[PlaceError]]


@dataclass(frozen=True, slots=True)
class PullRequest:
    """`models` as `ID` or `ID:VARIANT`; none: what the host's deployments need, and what the catalog marks on_boot."""

    models: tuple[str, ...] = ()
    everything: bool = False
    variant: str | None = None
    engine: str = "auto"
    offline: bool = False
    verify: bool = False
    pinned: bool | None = None


def exit_code(errors: Sequence[PlaceError]) -> ExitCode:
    """Of a command whose rows and errors these are."""
    return worst_exit([one.error.exit_code for one in errors])


def _each(places: Sequence[Place], work: Callable[[Place], list[_Row | PlaceError]]) -> Worked[_Row]:
    """In the order of the places, whoever was done first."""

    def guarded(place: Place) -> list[_Row | PlaceError]:
        try:
            return work(place)
        except SbctlError as error:
            return [PlaceError(place.name, error)]

    rows: list[_Row] = []
    errors: list[PlaceError] = []
    if len(places) == 1:
        found = [guarded(places[0])]
    else:
        pool = ThreadPoolExecutor(_PLACES_AT_ONCE, thread_name_prefix="models")
        try:
            found = list(pool.map(guarded, places))
        finally:
            # An interrupt is not kept waiting: the lines are closed next, which ends what the threads wait for.
            pool.shutdown(wait=False, cancel_futures=True)
    for one in (each for results in found for each in results):
        if isinstance(one, PlaceError):
            errors.append(one)
        else:
            rows.append(one)
    return rows, errors


def named(text: str, variant: str | None) -> tuple[str, str | None]:
    """`ID:VARIANT` taken apart. Raises UsageError where --variant says another one."""
    model, _, written = text.partition(":")
    if written and variant and written != variant:
        raise UsageError("usage", f"{text} names one variant and --variant {variant} another")
    return model, written or variant


# list, show


def listed(places: Sequence[Place]) -> Worked[Listed]:
    """Every model of the catalog, and what else is in the cache."""

    def work(place: Place) -> list[Listed | PlaceError]:
        found = {name: _resolved(place, name) for name in sorted(place.catalog.entries)}
        wanted = [one.facts for one in found.values() if one is not None]
        cache = place.door.listing(wanted)
        snapshot = place.door.snapshot()
        rows = [_row(place, name, one, cache, snapshot) for name, one in found.items()]
        return [Listed(place.name, (*rows, *_others(place, rows, cache)), cache)]

    return _each(places, work)


def _resolved(place: Place, model: str) -> Resolution | None:
    """The variant that a deployment of the host names, else the one that serves by itself."""
    deployments = place.host.deployments.values() if place.host is not None else ()
    variant = next((one.artifact.variant for one in deployments if one.artifact.model == model), None)
    try:
        return resolve(place.catalog, model, variant)
    except InputError:
        return None


def _row(
    place: Place, name: str, found: Resolution | None, cache: CacheListing, snapshot: NodeSnapshot | None
) -> ModelRow:
    entry = place.catalog.entries[name]
    if found is None:
        return ModelRow(place.name, name, "preview-incomplete", entry)
    artifact = found.facts.artifact
    there = next((one for one in cache.artifacts if one.artifact == artifact), None)
    return ModelRow(
        place.name,
        name,
        _status(there, cache.importable.get(artifact)),
        entry,
        found.facts,
        found.engine,
        model_fit(found, place.host, snapshot),
        artifact,
        found.facts.total_bytes,
        pinned=there is not None and there.pinned,
        in_use=there is not None and (there.leased or there.configured),
        reason=None if there is None else there.reason,
    )


def _status(there: CachedArtifact | None, importable: str | None) -> str:
    if there is not None:
        return {"ready": "cached", "partial": "partial", "corrupt": "damaged"}[there.state]
    return f"not-pulled, importable from {importable}" if importable else "not-pulled"


def _others(place: Place, rows: Sequence[ModelRow], cache: CacheListing) -> list[ModelRow]:
    """Artifacts in the cache that are none of the rows': other variants, other catalogs, damaged ones."""
    known = {row.artifact for row in rows}
    return [
        ModelRow(
            place.name,
            f"{one.model}:{one.variant}" if one.model else one.artifact[:12],
            _status(one, None),
            artifact=one.artifact,
            size_bytes=one.size_bytes,
            pinned=one.pinned,
            in_use=one.leased or one.configured,
            reason=one.reason,
        )
        for one in cache.artifacts
        if one.artifact not in known
    ]


def shown(places: Sequence[Place], text: str, *, verify: bool) -> tuple[CatalogEntry, Worked[ShownRow]]:
    """One model on each place; with `verify` every byte of what is cached there is read. Raises InputError `catalog.unknown_model` where no
    place has it."""
    model, variant = named(text, None)
    entry = next((place.catalog.entries[model] for place in places if model in place.catalog.entries), None)
    if entry is None:
        resolve(places[0].catalog, model)
    assert entry is not None

    def work(place: Place) -> list[ShownRow | PlaceError]:
        if model not in place.catalog.entries:
            resolve(place.catalog, model)
        facts = [one.facts for one in _variants(place, model, variant)]
        cache = place.door.listing(facts)
        snapshot = place.door.snapshot()
        rows: list[ShownRow | PlaceError] = []
        for found in _variants(place, model, variant):
            row = _row(place, model, found, cache, snapshot)
            checked = None
            if verify and row.status in ("cached", "damaged") and row.artifact is not None:
                checked = place.door.verify(row.artifact, row.size_bytes or 0)
                if not checked.is_good:
                    rows.append(PlaceError(place.name, _damaged(found.facts, checked), model))
            rows.append((row, checked))
        return rows or [(_row(place, model, None, cache, snapshot), None)]

    return entry, _each(places, work)


def _variants(place: Place, model: str, variant: str | None) -> list[Resolution]:
    """Each variant that could be had, or the one that is named."""
    if variant is not None:
        return [resolve(place.catalog, model, variant, engine=_any_engine(place, model, variant))]
    found = []
    for one in place.catalog.entries[model].model.variants:
        try:
            found.append(resolve(place.catalog, model, one.id, engine=one.engines[0]))
        except InputError:
            continue
    return found


def _any_engine(place: Place, model: str, variant: str) -> str:
    entry = place.catalog.entries.get(model)
    variants = entry.model.variants if entry is not None else ()
    return next((one.engines[0] for one in variants if one.id == variant), "auto")


def _damaged(facts: ArtifactFacts, verified: Verified) -> ArtifactError:
    used = f"; {', '.join(verified.deployments)} served from it" if verified.deployments else ""
    return ArtifactError(
        "artifact.digest_mismatch",
        f"the artifact was changed after it was published: {'; '.join(verified.reasons)}{used}",
        place=f"{facts.model}:{facts.variant}",
        next_step="sbctl models pull fetches it again; then reload what served from it. The bad bytes were set aside",
        detail={"quarantined": list(verified.quarantined), "deployments": list(verified.deployments)},
    )


# pull


def pulled(places: Sequence[Place], request: PullRequest, begin: Callable[[str], Report]) -> Worked[PullRow]:
    """Each model on each place, one after another on a place. Raises UsageError where nothing is asked for."""
    if request.variant is not None and len(request.models) != 1:
        raise UsageError("usage", "--variant is of one model: name one, or write MODEL:VARIANT")

    def work(place: Place) -> list[PullRow | PlaceError]:
        rows: list[PullRow | PlaceError] = []
        for facts, engine in _wanted(place, request):
            name = f"{facts.model}:{facts.variant}"
            title = name if len(places) == 1 else f"{place.name} {name}"
            try:
                rows.append(_pulled(place, facts, engine, request, begin(title)))
            except SbctlError as error:
                rows.append(PlaceError(place.name, error, name))
        return rows

    return _each(places, work)


def _wanted(place: Place, request: PullRequest) -> list[tuple[ArtifactFacts, str]]:
    found: dict[str, tuple[ArtifactFacts, str]] = {}
    if request.models:
        for text in request.models:
            model, variant = named(text, request.variant)
            one = resolve(place.catalog, model, variant, engine=request.engine, device=DeviceProfile())
            found[one.facts.artifact] = (one.facts, one.engine)
        return list(found.values())
    if place.host is not None:
        for deployment in place.host.deployments.values():
            found.update({facts.artifact: (facts, deployment.engine) for facts in deployment.artifacts})
    for name, entry in sorted(place.catalog.entries.items()):
        resolved = _resolved(place, name) if request.everything or entry.model.pull == "on_boot" else None
        if resolved is not None:
            found.setdefault(resolved.facts.artifact, (resolved.facts, resolved.engine))
    if not found:
        raise UsageError(
            "usage",
            f"nothing is configured on {place.name}, so there is nothing to pull by itself",
            next_step="name models, as sbctl models list shows them, or pass --all",
        )
    return list(found.values())


def _pulled(place: Place, facts: ArtifactFacts, engine: str, request: PullRequest, report: Report) -> PullRow:
    def get() -> PullRow:
        got = place.door.pull(facts, offline=request.offline, pinned=request.pinned, push=place.pushed, progress=report)
        report(facts.total_bytes, facts.total_bytes)
        return PullRow(place.name, facts, engine, got)

    row = get()
    if not request.verify or not row.pulled.was_present:
        return row
    verified = place.door.verify(facts.artifact, facts.total_bytes)
    if verified.is_good:
        return PullRow(place.name, facts, engine, row.pulled, verified)
    again = get().pulled
    quarantined = again.model_copy(update={"quarantined": (*verified.quarantined, *again.quarantined)})
    return PullRow(place.name, facts, engine, quarantined, verified)


# remove, prune


def removed(places: Sequence[Place], text: str, *, variant: str | None, force: bool) -> Worked[RemoveRow]:
    """Every cached variant of the model, or the named one; or an artifact by its digest. What is not there is a success without rows."""

    def work(place: Place) -> list[RemoveRow | PlaceError]:
        rows: list[RemoveRow | PlaceError] = []
        for one in _chosen(place, text, variant):
            name = f"{one.model}:{one.variant}"
            try:
                if one.configured and not force:
                    raise _configured(place, name)
                done = place.door.remove(one.artifact)
                rows.append(RemoveRow(place.name, one.model, one.variant, one.artifact, done))
            except SbctlError as error:
                rows.append(PlaceError(place.name, error, name))
        return rows

    return _each(places, work)


def _chosen(place: Place, text: str, variant: str | None) -> list[CachedArtifact]:
    """By what the cache itself says an artifact is, or by what the catalog says it would be (an unfinished download has no manifest)."""
    cached = place.door.listing(()).artifacts
    if is_digest(text):
        return [one for one in cached if one.artifact == text]
    model, wanted = named(text, variant)
    of_catalog: dict[str, str] = {}
    if model in place.catalog.entries:
        of_catalog = {one.facts.artifact: one.facts.variant for one in _variants(place, model, None)}
    known = [
        one if one.model else one.model_copy(update={"model": model, "variant": of_catalog[one.artifact]})
        for one in cached
        if one.model == model or one.artifact in of_catalog
    ]
    if not known and model not in place.catalog.entries:
        resolve(place.catalog, model)
    return [one for one in known if wanted is None or one.variant == wanted]


def _configured(place: Place, name: str) -> RefusedError:
    return RefusedError(
        "artifact.configured",
        f"a deployment of {place.name} is configured with {name}, and would fetch it again",
        place=name,
        next_step="take the deployment out of sb.yml and apply, or pass --force",
    )


def pruned(places: Sequence[Place], *, dry_run: bool, everything: bool) -> Worked[PruneRow]:
    """What nothing names, then what the budget of the host has no room for."""

    def work(place: Place) -> list[PruneRow | PlaceError]:
        return [PruneRow(place.name, place.door.prune(dry_run=dry_run, everything=everything))]

    return _each(places, work)
