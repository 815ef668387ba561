"""What was done to caches of models, and how they compare with a lock: `sbctl models pull|remove|prune|lock|verify-lock`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.artifacts.answers import Collected, Pruned, Pulled, Removed, Verified
from sbctl.artifacts.lockfile import LockRow
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.display import format_bytes, plural
from sbctl.base.errors import SbctlError
from sbctl.views.layout import safe
from sbctl.views.tables import Cell, Column, render_rows

__all__ = [
    "PlaceError",
    "PruneRow",
    "PullRow",
    "RemoveRow",
    "errors_body",
    "lock_body",
    "lock_rows_body",
    "lock_rows_text",
    "prune_body",
    "prune_text",
    "pull_body",
    "pull_text",
    "remove_body",
]

_STATUS_STYLES: Final = {
    "ok": "green",
    "missing": "red",
    "digest_mismatch": "red",
    "unlocked": "red",
    "engine_changed": "red",
}


@dataclass(frozen=True, slots=True)
class PlaceError:
    """What failed on one machine, for one model or for all."""

    host: str
    error: SbctlError
    model: str = ""


@dataclass(frozen=True, slots=True)
class PullRow:
    """Weights that are in the cache of a host now. `verified`: what reading them again said, where that was asked for."""

    host: str
    facts: ArtifactFacts
    engine: str
    pulled: Pulled
    verified: Verified | None = None


@dataclass(frozen=True, slots=True)
class RemoveRow:
    """Weights that were taken out of the cache of a host."""

    host: str
    model: str
    variant: str
    artifact: str
    removed: Removed


@dataclass(frozen=True, slots=True)
class PruneRow:
    """What a host's cache was rid of."""

    host: str
    pruned: Pruned


# pull


def pull_body(rows: Sequence[PullRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    return {
        "artifacts": [
            {
                "host": row.host,
                "model": row.facts.model,
                "variant": row.facts.variant,
                "engine": row.engine,
                "artifact": row.facts.artifact,
                "artifact_digest": row.facts.catalog_digest,
                "snapshot_path": row.pulled.snapshot_path,
                "verified_bytes": row.facts.total_bytes,
                "was_present": row.pulled.was_present,
                "downloaded_bytes": row.pulled.downloaded_bytes,
                "imported_bytes": row.pulled.imported_bytes,
                "imported_from": list(row.pulled.imported_from),
                "quarantined": list(row.pulled.quarantined),
                "verified": None if row.verified is None else row.verified.model_dump(mode="json"),
            }
            for row in rows
        ],
        "gc": [
            {"host": row.host, "after": row.facts.artifact, **row.pulled.collected.model_dump(mode="json")}
            for row in rows
            if row.pulled.collected is not None
        ],
        "errors": errors_body(errors),
    }


def pull_text(rows: Sequence[PullRow], *, several: bool) -> Text:
    """One line a model, to be copied from; then what the budget took."""
    lines = [(f"{row.host}: " if several else "") + _pulled_line(row) for row in rows]
    freed = {row.host: row.pulled.collected for row in rows if row.pulled.collected is not None}
    lines += [(f"{host}: " if several else "") + line for host, one in freed.items() for line in collected_lines(one)]
    return Text("\n".join(map(safe, lines)))


def _pulled_line(row: PullRow) -> str:
    name, pulled = f"{row.facts.model}:{row.facts.variant}", row.pulled
    if pulled.was_present:
        how = "was there" + (", every byte read again" if row.verified is not None else "")
    elif pulled.imported_bytes:
        source = " and ".join(pulled.imported_from) or "this machine"
        how = f"{format_bytes(pulled.imported_bytes)} from {source}"
        how += f", {format_bytes(pulled.downloaded_bytes)} fetched" if pulled.downloaded_bytes else ", nothing fetched"
    else:
        how = f"{format_bytes(row.facts.total_bytes)}, verified"
    damaged = f"; damaged bytes set aside: {', '.join(pulled.quarantined)}" if pulled.quarantined else ""
    return f"{name}  {how}  {pulled.snapshot_path}{damaged}"


def collected_lines(collected: Collected) -> list[str]:
    """What a budget did, if anything."""
    if collected.problem is not None:
        return [f"no room could be made: {collected.problem}"]
    lines = []
    if collected.deleted:
        lines.append(
            f"{plural(len(collected.deleted), 'artifact')} unused the longest made room: {format_bytes(collected.reclaimed_bytes)}"
        )
    if collected.unsatisfied_bytes:
        reasons = ", ".join(f"{artifact[:12]} {reason}" for artifact, reason in collected.skipped.items())
        why = f" ({reasons})" if reasons else ""
        lines.append(f"the cache stays {format_bytes(collected.unsatisfied_bytes)} above its budget{why}")
    return lines


# remove, prune


def remove_body(rows: Sequence[RemoveRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    return {
        "artifacts": [
            {
                "host": row.host,
                "model": row.model,
                "variant": row.variant,
                "artifact": row.artifact,
                "removed": row.removed.removed,
                "reclaimed_bytes": row.removed.reclaimed_bytes,
            }
            for row in rows
        ],
        "errors": errors_body(errors),
    }


def prune_body(rows: Sequence[PruneRow], errors: Sequence[PlaceError]) -> dict[str, Any]:
    return {
        "caches": [{"host": row.host, **row.pruned.model_dump(mode="json")} for row in rows],
        "errors": errors_body(errors),
    }


def prune_text(rows: Sequence[PruneRow], *, several: bool) -> RenderableType:
    lines: list[str] = []
    for row in rows:
        pruned, place = row.pruned, f"{row.host}: " if several else ""
        found = [
            plural(len(names), noun)
            for names, noun in (
                (pruned.orphan_blobs, "blob that nothing names"),
                (pruned.unfinished, "unfinished download"),
                (pruned.quarantined, "damaged file"),
            )
            if names
        ]
        verb = "would be freed" if pruned.dry_run else "freed"
        said = f"{format_bytes(pruned.reclaimed_bytes)} {verb}" + (f": {', '.join(found)}" if found else "")
        lines.append(place + said)
        lines += [place + line for line in (collected_lines(pruned.collected) if pruned.collected else [])]
    return Group(*(Text(safe(line)) for line in lines)) if lines else Text("no cache")


# lock


def lock_body(path: str, revision: str, models: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"path": path, "catalog_revision": revision, "models": list(models)}


def lock_rows_body(
    lockfile: str, rows: Sequence[tuple[str | None, LockRow]], errors: Sequence[PlaceError], *, drift: bool
) -> dict[str, Any]:
    return {
        "lockfile": lockfile,
        "drift": drift,
        "models": [
            {
                "host": host,
                "name": row.name,
                "variant": row.variant,
                "status": row.status,
                "detail": row.detail or None,
            }
            for host, row in rows
        ],
        "errors": errors_body(errors),
    }


def lock_rows_text(rows: Sequence[tuple[str | None, LockRow]]) -> RenderableType:
    several = any(host is not None for host, _ in rows)
    columns: list[Column | str] = ["model", "variant", Column("status", style_by=_STATUS_STYLES), "detail"]
    listed: list[Sequence[Cell]] = [
        (host, row.name, row.variant, row.status, row.detail)
        if several
        else (row.name, row.variant, row.status, row.detail)
        for host, row in rows
    ]
    return render_rows(["host", *columns] if several else columns, listed, empty="no models are configured or locked")


def errors_body(errors: Sequence[PlaceError]) -> list[dict[str, Any]]:
    return [{"host": one.host, "model": one.model or None, **one.error.to_wire()} for one in errors]
