"""`catalog_file`: an operator's catalog, read by the guarded reader and laid over the built-in one.

The path may lead anywhere the user can read, so nothing of a file is shown until it is known to be a catalog: a mistyped path to a file of
passwords gives one sentence and no line of it.
"""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import Any, Final

from sbctl.base.errors import InputError, SourceSpan
from sbctl.base.limits import CATALOG_MAX_BYTES
from sbctl.catalog.loader import Catalog, builtin_catalog, rule_problems
from sbctl.catalog.models import CatalogDocument
from sbctl.config.diagnose import Report, validated
from sbctl.config.document import Document
from sbctl.config.layers import Layer, View
from sbctl.config.reader import read_yaml

__all__ = ["catalog_with_file", "read_catalog_file"]

_LOOKS_LIKE_RE: Final = re.compile(r'^[ \t]*\{?[ \t]*"?(?:schema_version|models)"?[ \t]*:', re.MULTILINE)
_NEWEST_VERSION: Final = 2


def catalog_with_file(report: Report, written: str, directory: FilePath, span: SourceSpan | None) -> Catalog:
    """The built-in catalog with the file over it; the built-in one alone when the file has errors, which are in `report`.

    `written` is the text of `catalog_file`, relative to `directory`; `span` is where it stands.
    """
    document = read_catalog_file(report, directory / FilePath(written).expanduser(), span)
    if document is None:
        return builtin_catalog()
    catalog, replaced = builtin_catalog().overlaid(document)
    for model in replaced:
        report.note("catalog.replaced", f'"{model}" of {written} replaces the entry that comes with sbctl', span)
    return catalog


def read_catalog_file(report: Report, path: FilePath, span: SourceSpan | None) -> CatalogDocument | None:
    """A catalog file, or None with the findings in `report`. `span` is where the file is named, if in a file."""
    try:
        document = read_yaml(path, max_bytes=CATALOG_MAX_BYTES)
    except InputError as error:
        report.add(f"catalog.{error.code}", f"the catalog cannot be read: {error.message}", span, notes=(str(path),))
        return None
    if not _LOOKS_LIKE_RE.search(document.text) or (document.complete and not isinstance(document.value, dict)):
        notes = (f"{path} should be a map with schema_version: 2, catalog_revision and models",)
        report.add("catalog.not_a_catalog", "the file is not a catalog", span, notes=notes)
        return None
    report.diagnostics.extend(document.findings)
    if not document.complete:
        return None
    return _checked(report, document)


def _checked(report: Report, document: Document) -> CatalogDocument | None:
    value: Any = document.value
    version = value.get("schema_version", 1)
    if isinstance(version, int) and version > _NEWEST_VERSION:
        message = f"the catalog is of version {version}, and this sbctl reads versions up to {_NEWEST_VERSION}"
        report.add("catalog.unsupported_version", message, document.value_span(("schema_version",)))
        return None
    view = View(document, (Layer((), value),))
    checked = validated(report, CatalogDocument, value, view, texts={})
    catalog = checked.model
    if catalog is None or not checked.whole or document.findings:
        return None
    problems = list(rule_problems(catalog))
    for problem in problems:
        report.add("catalog.rule", problem.message, document.value_span(problem.path))
    for model_id, model in catalog.models.items():
        if model.hf_token is not None:
            message = f'hf_token of "{model_id}" is not used: a token is for a host, not for a model'
            notes = ("egress: {hf_token: secret:NAME} gives it to hosts; on this machine HF_TOKEN counts",)
            report.note(
                "catalog.hf_token_unused", message, document.key_span(("models", model_id, "hf_token")), notes=notes
            )
    return None if problems else catalog
