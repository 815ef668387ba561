"""Changing a catalog file as its owner wrote it: comments, order and style stay, and what comes out is read again before it is kept.

The guarded reader has accepted the text before ruamel's round-trip loader sees it, so no anchor, tag or merge key is in it. A result that the
guarded reader does not read as exactly the intended data is a fault of ours and is never written.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from sbctl.base.errors import InputError
from sbctl.base.limits import CATALOG_MAX_BYTES
from sbctl.config.reader import parse_yaml

__all__ = ["EMPTY_CATALOG", "with_model", "with_variant", "with_variant_replaced"]

EMPTY_CATALOG: Final = (
    "# Models of this fleet, beside those that come with sbctl. Written by `sbctl catalog add`; edit it as you like.\n"
    "schema_version: 2\n"
    "catalog_revision: operator\n"
    "models: {}\n"
)
_FLUSH_LIST_RE: Final = re.compile(r"(?m)^( *)[A-Za-z_][^\n#]*:[ ]*\n\1- ")
_WIDTH: Final = 4096


def with_model(text: str, model_id: str, model: Mapping[str, Any], variant: Mapping[str, Any]) -> str:
    """The catalog with a new model of one variant at its end."""

    def change(catalog: Any) -> None:
        if not catalog["models"] and hasattr(catalog["models"], "fa"):
            catalog["models"].fa.set_block_style()
        catalog["models"][model_id] = _styled({**model, "variants": [variant]})

    return _changed(text, change)


def with_variant(text: str, model_id: str, variant: Mapping[str, Any]) -> str:
    """The catalog with one more variant of a model that it has."""

    def change(catalog: Any) -> None:
        model = catalog["models"][model_id]
        if "variants" in model:
            model["variants"].append(_styled(variant))
        else:
            model["variants"] = [_styled(variant)]

    return _changed(text, change)


def with_variant_replaced(text: str, model_id: str, variant_id: str, fields: Mapping[str, Any]) -> str:
    """The catalog with some fields of one variant replaced; fields and comments that are not named stay."""

    def change(catalog: Any) -> None:
        for variant in catalog["models"][model_id]["variants"]:
            if variant["id"] == variant_id:
                for name, value in fields.items():
                    _put(variant, name, value)

    return _changed(text, change)


def _put(variant: Any, name: str, value: Any) -> None:
    """A list of files of the same paths keeps its lines, and so what is noted beside them."""
    old = variant.get(name)
    if name == "files" and [one["path"] for one in old] == [one["path"] for one in value]:
        for file, new in zip(old, value, strict=True):
            file.update(_styled(new))
    else:
        variant[name] = _styled(value)


def _styled(value: Any) -> Any:
    """A copy in which text that would be read as something else stands in quotes."""
    if isinstance(value, Mapping):
        return {key: _styled(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_styled(one) for one in value]
    if isinstance(value, str):
        read = parse_yaml(f"k: {value}\n".encode(), "a value")
        plain = not read.findings and read.value == {"k": value}
        return value if plain else DoubleQuotedScalarString(value)
    return value


def _changed(text: str, change: Callable[[Any], None]) -> str:
    intended = _read(text, "the catalog").value
    change(intended)
    yaml = _round_trip(text)
    catalog = yaml.load(text)
    change(catalog)
    out = io.StringIO()
    yaml.dump(catalog, out)
    written = out.getvalue()
    if _read(written, "the changed catalog").value != intended:
        raise InputError(
            "catalog.edit_refused",
            "the catalog cannot be changed in place without changing something else in it",
            next_step="write the entry by hand; `sbctl catalog add --print` shows it",
        )
    return written


def _read(text: str, name: str) -> Any:
    document = parse_yaml(text.encode(), name, max_bytes=CATALOG_MAX_BYTES)
    if document.findings or not isinstance(document.value, dict):
        first = document.findings[0].message if document.findings else "it is not a map"
        raise InputError("catalog.not_a_catalog", f"{name} cannot be read: {first}")
    return document


def _round_trip(text: str) -> YAML:
    """A loader and writer that keeps the file's own style, as far as it can be told."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = _WIDTH
    flush = _FLUSH_LIST_RE.search(text) is not None
    yaml.indent(mapping=2, sequence=2 if flush else 4, offset=0 if flush else 2)
    return yaml
