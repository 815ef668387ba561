"""Overlays: a later layer wins, maps merge key by key, everything else is replaced whole, and the place of each value is not lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sbctl.base.errors import SourceSpan
from sbctl.config.document import ABSENT, Document, Path, child

__all__ = ["Layer", "View", "merged"]


def merged(low: Any, high: Any) -> Any:
    """`high` over `low`. Neither is changed; parts may be shared."""
    if not isinstance(low, dict) or not isinstance(high, dict):
        return high
    result = dict(low)
    for key, value in high.items():
        result[key] = merged(result[key], value) if key in result else value
    return result


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of the file: its path and its plain value."""

    path: Path
    value: Any


@dataclass(frozen=True)
class View:
    """One block as a host sees it: layers from the weakest to the strongest."""

    document: Document
    layers: Sequence[Layer]

    @cached_property
    def value(self) -> Any:
        """The merged value; an empty map without layers."""
        result: Any = {}
        for index, layer in enumerate(self.layers):
            result = layer.value if index == 0 else merged(result, layer.value)
        return result

    def source(self, path: Path) -> Path:
        """Where in the file the value at `path` of the merged view was written; its nearest parent when it was not."""
        for size in range(len(path), -1, -1):
            for layer in reversed(self.layers):
                if _has(layer.value, path[:size]):
                    return layer.path + path[:size]
        return self.layers[-1].path if self.layers else ()

    def key_span(self, path: Path) -> SourceSpan | None:
        return self.document.key_span(self.source(path))

    def value_span(self, path: Path) -> SourceSpan | None:
        return self.document.value_span(self.source(path))


def _has(value: Any, path: Path) -> bool:
    for part in path:
        value = child(value, part)
        if value is ABSENT:
            return False
    return True
