"""Which models of a catalog one machine could serve, and why not the others. Pure; nothing is started or fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from sbctl.base.display import format_bytes, plural
from sbctl.base.errors import InputError
from sbctl.catalog.loader import Catalog
from sbctl.catalog.resolve import DeviceProfile, resolve
from sbctl.views.host_views import Check

__all__ = ["Servable", "catalog_check", "local_serving", "servable_models"]

_RUNS_ON: Final = frozenset({"cpu"})
"""What the engines of this version compute on."""


@dataclass(frozen=True, slots=True)
class Servable:
    """One model. `variant` is the one that a deployment without a variant would get; None with the reason why there is none."""

    model: str
    variant: str | None
    license: str
    download_bytes: int | None
    needs_bytes: int | None
    reason: str | None

    def body(self) -> dict[str, Any]:
        return asdict(self)


def servable_models(catalog: Catalog, usable_bytes: int) -> Iterator[Servable]:
    """By id. `usable_bytes` is the memory that models may take."""
    device = DeviceProfile(accelerators=_RUNS_ON, free_memory_bytes=usable_bytes)
    for name, entry in sorted(catalog.entries.items()):
        try:
            found = resolve(catalog, name, device=device)
        except InputError as error:
            reasons = "; ".join(error.detail.get("reasons") or ()) or error.message
            yield Servable(name, None, entry.model.license, None, None, reasons)
        else:
            facts = found.facts
            yield Servable(name, facts.variant, facts.license, facts.total_bytes, facts.min_memory_bytes, None)


def catalog_check(host: str, models: Iterable[Servable]) -> Check:
    """One line: how many fit, and the largest of them."""
    listed = list(models)
    fit = sorted((one for one in listed if one.variant), key=lambda one: (one.needs_bytes or 0, one.model))
    if not fit:
        return Check(
            "models",
            "fail",
            f"none of {plural(len(listed), 'model')} of the catalog fits",
            "use a machine with more memory",
            host,
        )
    largest = fit[-1]
    words = f"{len(fit)} of {plural(len(listed), 'model')} of the catalog fit; the largest is {largest.model}:{largest.variant}"
    least = f"{format_bytes(largest.needs_bytes or 0)} at least; sbctl models list: with the whole context"
    return Check("models", "pass", f"{words} ({least})", host=host)


def local_serving(checks: Iterable[Check], models: Iterable[Servable]) -> Mapping[str, Any]:
    """Whether this machine can serve, what is in the way, and what to do next."""
    blockers = [check for check in checks if check.verdict == "fail"]
    fit = [one for one in models if one.variant]
    if blockers:
        recommendation = blockers[0].next_step
    elif fit:
        smallest = min(fit, key=lambda one: (one.needs_bytes or 0, one.model))
        recommendation = f"sbctl run {smallest.model}"
    else:
        recommendation = "use a machine with more memory"
    return {
        "ready": not blockers,
        "blockers": [f"{check.name}: {check.detail}" for check in blockers],
        "recommendation": recommendation,
    }
