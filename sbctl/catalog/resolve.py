"""From a model's name to exact files: which variant a deployment gets, by which engine, and why not the others (SBproxy, "Resolution").

A named variant wins; else the declared order with pickle last. A variant passes: stability, pickle opt-in, accelerator, memory, compute
capability, engine. What is not known (`None`) filters nothing. `auto` is llama_cpp for gguf, vllm for all else, never another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.display import format_bytes
from sbctl.base.errors import InputError
from sbctl.base.suggest import did_you_mean
from sbctl.catalog.identity import artifact_digest
from sbctl.catalog.loader import Catalog, CatalogEntry
from sbctl.catalog.models import FORMAT_ENGINES, CatalogVariant

__all__ = ["DeviceProfile", "Resolution", "auto_engine", "facts_of", "resolve"]

_SELECTABLE: Final = frozenset({"stable", "preview"})


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What is known of the device that would run a variant; None is not known and filters nothing."""

    accelerators: frozenset[str] | None = None
    free_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The variant that serves, the engine that runs it, and all that a host needs to know of its files."""

    facts: ArtifactFacts
    engine: str
    entry: CatalogEntry
    variant: CatalogVariant


def auto_engine(format_name: str) -> str:
    """What `engine: auto` means for a format."""
    return "llama_cpp" if format_name == "gguf" else "vllm"


def facts_of(entry: CatalogEntry, variant: CatalogVariant) -> ArtifactFacts:
    """A variant as hosts know it. The digest that names it covers format and files only."""
    listed = tuple(
        ArtifactFile(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes) for file in variant.files
    )
    return ArtifactFacts(
        artifact=artifact_id(variant.format, listed),
        format=variant.format,
        files=listed,
        source=variant.source,
        revision=variant.revision,
        mirrors=variant.mirrors,
        model=entry.id,
        variant=variant.id,
        license=entry.model.license,
        context_length=entry.model.context_length or 1,
        min_memory_bytes=variant.requirements.min_memory_bytes,
        catalog_digest=artifact_digest(entry.revision, entry.id, variant),
    )


def resolve(
    catalog: Catalog,
    model: str,
    variant: str | None = None,
    *,
    engine: str = "auto",
    device: DeviceProfile | None = None,
) -> Resolution:
    """The first variant that passes.

    Raises InputError `catalog.unknown_model`, `catalog.unknown_variant`, `catalog.no_variant`; the last lists each variant with its
    reason in `detail["reasons"]`. `detail["did_you_mean"]` has the closest name, if one is close.
    """
    entry = catalog.entries.get(model)
    if entry is None:
        raise _unknown("catalog.unknown_model", f'the catalog has no model "{model}"', model, catalog.entries)
    if not entry.model.variants:
        raise InputError(
            "catalog.no_variant",
            f'"{model}" has no pinned files in the catalog, so it can be listed but not served',
            next_step="name another model, or add a variant with files and digests to a catalog_file",
            detail={"reasons": []},
        )
    candidates = sorted(entry.model.variants, key=lambda each: each.format == "pickle")
    if variant is not None:
        candidates = [each for each in candidates if each.id == variant]
        if not candidates:
            names = [each.id for each in entry.model.variants]
            raise _unknown("catalog.unknown_variant", f'"{model}" has no variant "{variant}"', variant, names)
    reasons = []
    for candidate in candidates:
        chosen = auto_engine(candidate.format) if engine == "auto" else engine
        reason = _reason_against(entry, candidate, engine, chosen, device or DeviceProfile())
        if reason is None:
            return Resolution(facts_of(entry, candidate), chosen, entry, candidate)
        reasons.append(f"{candidate.id}: {reason}")
    raise InputError(
        "catalog.no_variant",
        f'no variant of "{model}" can be used: {"; ".join(reasons)}',
        next_step="choose another model, variant or engine",
        detail={"reasons": reasons},
    )


def _unknown(code: str, message: str, word: str, names: Collection[str]) -> InputError:
    close = did_you_mean(word, names)
    listed = ", ".join(sorted(names)[:20])
    return InputError(
        code,
        message,
        next_step=f'did you mean "{close}"?' if close else f"known: {listed}",
        detail={"did_you_mean": close, "known": sorted(names)},
    )


def _reason_against(
    entry: CatalogEntry, variant: CatalogVariant, asked: str, engine: str, device: DeviceProfile
) -> str | None:
    needs = variant.requirements
    if variant.stability not in _SELECTABLE:
        return f"its stability is {variant.stability}"
    if variant.format == "pickle" and not entry.model.allow_pickle:
        return "it is pickle, which can run code, and the entry does not say allow_pickle: true"
    if device.accelerators is not None and not device.accelerators & set(needs.accelerators):
        return f"it needs {' or '.join(needs.accelerators)}, and there is {' and '.join(sorted(device.accelerators)) or 'nothing'}"
    if device.free_memory_bytes is not None and device.free_memory_bytes < needs.min_memory_bytes:
        return f"it needs {format_bytes(needs.min_memory_bytes)}, and {format_bytes(device.free_memory_bytes)} are free"
    capability = needs.min_compute_capability
    if capability is not None and device.compute_capability is not None:
        least = (capability.major, capability.minor)
        if device.compute_capability < least:
            have = ".".join(map(str, device.compute_capability))
            return f"it needs compute capability {least[0]}.{least[1]}, and the device has {have}"
    if engine not in FORMAT_ENGINES[variant.format]:
        return f"{engine} does not read {variant.format}"
    if engine not in variant.engines:
        how = f"auto means {engine} for {variant.format}" if asked == "auto" else f"{engine} is asked for"
        return f"{how}, and it was tried with {', '.join(variant.engines)} only"
    return None
