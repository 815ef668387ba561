"""The catalog that commands use: the built-in one, and an operator's catalog laid over it.

SBproxy's entries keep SBproxy's revision; entries of this project stand beside them under a revision of their own. An operator's entry of
the same id replaces the built-in one whole. Reading files is not done here: `parse_document` takes plain data from a guarded reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from sbctl.artifacts.split_sets import split_problem
from sbctl.base import strict_json
from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError
from sbctl.base.limits import CATALOG_MAX_BYTES
from sbctl.catalog.models import (
    FORMAT_EXTENSIONS,
    CatalogDocument,
    CatalogModel,
    CatalogVariant,
    is_commit,
    source_kind,
)

__all__ = ["Catalog", "CatalogEntry", "RuleProblem", "builtin_catalog", "parse_document", "rule_problems"]

_BUILTIN: Final = "builtin.json"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model with the revision of the catalog that has it. `builtin` is False for an operator's entry."""

    id: str
    revision: str
    model: CatalogModel
    builtin: bool


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A rule between fields that does not hold. `path` leads to the value inside the document; `message` is one sentence."""

    path: tuple[str | int, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """All models by id."""

    entries: Mapping[str, CatalogEntry]

    @property
    def digest(self) -> str:
        """64 hex characters over everything in it: provenance, and part of what seals a saved plan."""
        return fingerprint(
            {
                entry.id: {"revision": entry.revision, "model": entry.model.model_dump(mode="json")}
                for entry in self.entries.values()
            }
        )

    def operators_document(self) -> CatalogDocument | None:
        """The operator's entries alone, as a document again; None where there are none."""
        own = [entry for entry in self.entries.values() if not entry.builtin]
        if not own:
            return None
        models = {entry.id: entry.model for entry in own}
        return CatalogDocument(schema_version=2, catalog_revision=own[0].revision, models=models)

    def overlaid(self, document: CatalogDocument) -> tuple[Catalog, tuple[str, ...]]:
        """This catalog with an operator's document over it, and the ids that it replaced, sorted."""
        added = {
            model_id: CatalogEntry(model_id, document.catalog_revision, model, builtin=False)
            for model_id, model in document.models.items()
        }
        replaced = tuple(sorted(set(added) & set(self.entries)))
        return Catalog({**self.entries, **added}), replaced


def parse_document(data: Any) -> CatalogDocument:
    """Plain data as a catalog. Raises pydantic's ValidationError; `rule_problems` has the rules between fields."""
    return CatalogDocument.model_validate(data)


def rule_problems(document: CatalogDocument) -> Iterator[RuleProblem]:
    """Every rule between fields that the document breaks, in document order."""
    for model_id, model in document.models.items():
        where: tuple[str | int, ...] = ("models", model_id)
        if model.variants and model.context_length is None:
            yield RuleProblem(where, "a model with variants needs context_length, in tokens")
        seen: set[str] = set()
        for index, variant in enumerate(model.variants):
            here = (*where, "variants", index)
            if variant.id in seen:
                yield RuleProblem((*here, "id"), f'the model has two variants "{variant.id}"')
            seen.add(variant.id)
            yield from _variant_problems(here, variant)


def _variant_problems(here: tuple[str | int, ...], variant: CatalogVariant) -> Iterator[RuleProblem]:
    paths: set[str] = set()
    for index, file in enumerate(variant.files):
        folded = file.path.casefold()
        if folded in paths:
            yield RuleProblem((*here, "files", index, "path"), "two files of the variant have the same path")
        paths.add(folded)
    extensions = FORMAT_EXTENSIONS[variant.format]
    if not any(file.path.lower().endswith(extensions) for file in variant.files):
        names = " or ".join(extensions)
        yield RuleProblem((*here, "files"), f"a {variant.format} variant needs at least one {names} file")
    if problem := split_problem(file.path for file in variant.files):
        yield RuleProblem((*here, "files"), f"the weights are split and the set is not whole: {problem}")
    kind = source_kind(variant.source)
    if variant.stability == "stable" and kind == "hf" and not is_commit(variant.revision):
        yield RuleProblem(
            (*here, "revision"), "a stable variant from hf: needs a commit of 40 hex characters as revision"
        )
    if kind == "pypi" and len(variant.files) != 1:
        yield RuleProblem((*here, "source"), "a pypi: source names one member, so the variant has exactly one file")
    if len(set(variant.requirements.accelerators)) != len(variant.requirements.accelerators):
        yield RuleProblem((*here, "requirements", "accelerators"), "an accelerator is listed twice")


@cache
def builtin_catalog() -> Catalog:
    """The catalog that comes with sbctl. Raises InputError `catalog.damaged` when the installation is."""
    data = files("sbctl.catalog").joinpath(_BUILTIN).read_bytes()
    entries: dict[str, CatalogEntry] = {}
    try:
        for raw in strict_json.loads(data, max_bytes=CATALOG_MAX_BYTES)["catalogs"]:
            document = parse_document(raw)
            for model_id, model in document.models.items():
                entries[model_id] = CatalogEntry(model_id, document.catalog_revision, model, builtin=True)
    except (ValueError, KeyError, TypeError, InputError) as error:
        raise InputError(
            "catalog.damaged",
            "the catalog that comes with sbctl cannot be read",
            place=_BUILTIN,
            next_step="install sbctl again",
        ) from error
    return Catalog(entries)
