"""Data files of the project: schemas, templates, requirement locks; found in the installed package or in a checkout."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

__all__ = ["data_path"]


@cache
def _root(kind: str) -> Path:
    package = Path(str(files("sbctl")))
    installed = package / "_data" / kind
    return installed if installed.is_dir() else package.parent / kind


def data_path(kind: Literal["schemas", "templates", "requirements"], name: str) -> Path:
    """Where the data file `name` of `kind` is; it exists in every correct installation."""
    return _root(kind) / name
