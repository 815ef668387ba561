"""A read file with `serve:` blocks as one without: the same places for the same words, so that findings point to what somebody wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

from sbctl.config.catalog_file import catalog_with_file
from sbctl.config.diagnose import Report
from sbctl.config.document import Document, Path
from sbctl.config.legacy_serve import lowered, serve_blocks

__all__ = ["catalog_pull", "without_serve"]

T = TypeVar("T")


def without_serve(report: Report, document: Document) -> Document:
    """`document` itself where nothing is to be lowered. Findings go to `report`."""
    blocks = serve_blocks(document.value)
    if not blocks:
        return document
    result = lowered(document.value, catalog_pull(document))
    for problem in result.problems:
        span = document.key_span(problem.path)
        if problem.is_note:
            report.note(problem.code, problem.message, span)
        else:
            report.add(problem.code, problem.message, span, notes=(problem.remedy,) if problem.remedy else ())
    report.note(
        "config.legacy_serve",
        "serve: on a provider is SBproxy's older way to host a model; sbctl migrate rewrites it, comments stay",
        document.key_span((*blocks[0], "serve")),
    )
    lists = {path[:-1] for path in blocks}
    return replace(
        document,
        value=result.value,
        nodes=_placed(document.nodes, result.places, lists),
        parts=_placed(document.parts, result.places, lists),
        plain=set(_placed(dict.fromkeys(document.plain), result.places, lists)),
        poisoned=set(_placed(dict.fromkeys(document.poisoned), result.places, lists)),
        findings=document.findings,
    )


def catalog_pull(document: Document) -> Callable[[str], str | None]:
    """When the catalog that the file names fetches a model's weights; its errors are found where it is read for good."""
    catalogs: dict[str, Any] = {}

    def pull(model: str) -> str | None:
        if "it" not in catalogs:
            written = _catalog_file(document.value)
            if written is None:
                from sbctl.catalog.loader import builtin_catalog

                catalogs["it"] = builtin_catalog()
            else:
                directory = FilePath(document.path).absolute().parent
                catalogs["it"] = catalog_with_file(Report(), written, directory, None)
        entry = catalogs["it"].entries.get(model)
        return None if entry is None else entry.model.pull

    return pull


def _catalog_file(value: Any) -> str | None:
    """The first one that is named: two that differ are refused anyway."""
    proxy = value.get("proxy")
    model_host = proxy.get("model_host") if isinstance(proxy, dict) else None
    named = [model_host.get("catalog_file")] if isinstance(model_host, dict) else []
    for path in serve_blocks(value):
        provider = value
        for part in path:
            provider = provider[part]
        named.append(provider["serve"].get("catalog_file"))
    return next((each for each in named if isinstance(each, str) and "${" not in each), None)


def _placed(held: Mapping[Path, T], places: Mapping[Path, Path], lists: set[Path]) -> dict[Path, T]:
    """What is held by path, at the new paths; entries of the lists that changed stand where `places` says."""
    found = {path: each for path, each in held.items() if not any(path[: len(one)] == one for one in lists)}
    for one in lists:
        if one in held:
            found[one] = held[one]
    by_old: dict[Path, list[Path]] = {}
    for new, old in places.items():
        by_old.setdefault(old, []).append(new)
    for path, each in held.items():
        for size in range(1, len(path) + 1):
            for new in by_old.get(path[:size], ()):
                found.setdefault(new + path[size:], each)
    return found
