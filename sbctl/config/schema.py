"""The published JSON Schemas, generated from the models. pydantic is the gate; a schema is the contract for editors and other tools.

    python -m sbctl.config.schema            says which files differ, exit 1 when one does
    python -m sbctl.config.schema --write    writes them

What the models cannot say is added: blocks of SBproxy's other planes, overlays (where nothing is required), `${…}` wherever a scalar may
stand. Every pattern that ends in `$` is paired with a refusal of line breaks, since `$` lets a final one pass in some dialects.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from sbctl.base.fs import write_atomic
from sbctl.base.resources import data_path
from sbctl.catalog.models import CatalogDocument
from sbctl.config.file_model import SbFile
from sbctl.config.planes import ACCESS, FOREIGN

__all__ = ["SCHEMA_FILES", "drifted", "main", "schema_for"]

Schema = dict[str, Any]

SCHEMA_FILES: Final[Mapping[str, str]] = {
    "sb": "sb.v1.schema.json",
    "catalog": "catalog.v2.schema.json",
    "bundle": "bundle.v1.schema.json",
    "plan": "plan.v1.schema.json",
    "state": "state.v1.schema.json",
}
"""Name → file under schemas/."""

_TITLES: Final = {
    "sb": "sb.yml of sbctl",
    "catalog": "Model catalog, version 2",
    "bundle": "Payload of a signed bundle",
    "plan": "A plan as JSON",
    "state": "The recorded truth of one fleet",
}
_ELSEWHERE: Final = {
    "bundle": ("sbctl.trust.bundle", "BundlePayload"),
    "plan": ("sbctl.plan.document", "PlanDocument"),
    "state": ("sbctl.state.document", "StateDocument"),
}
"""Models of packages beside this one are found by name: configuration itself depends on none of them."""

_PLANES: Final = {
    "": "SbFile",
    "proxy": "ProxyModel",
    "origins.*": "OriginModel",
    "origins.*.action": "AiActionModel",
    "origins.*.action.providers.*": "ProviderModel",
}
_OVERLAY_OWNERS: Final = ("OverlayModel", "GroupModel", "HostModel")
_OVERLAY_SUFFIX: Final = "Overlay"
_VARIABLE: Final[Schema] = {
    "type": "string",
    "pattern": r"\$\{[A-Za-z_]",
    "description": "A value with ${VARIABLE} or ${VARIABLE:-default} in it.",
}
_STRUCTURE: Final = frozenset({"properties", "additionalProperties", "items", "$ref", "anyOf", "oneOf", "allOf"})


def schema_for(name: str) -> Schema:
    """The JSON Schema (draft 2020-12) of one kind of document; `name` is a key of SCHEMA_FILES."""
    if name == "sb":
        schema = _sb_schema()
    else:
        module, model_name = _ELSEWHERE.get(name, ("", ""))
        model: type[BaseModel] = getattr(importlib.import_module(module), model_name) if module else CatalogDocument
        schema = model.model_json_schema(mode="validation")
    schema = _walk(schema, _strict_pattern)
    schema.pop("title", None)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_FILES[name],
        "title": _TITLES[name],
    }
    return {**head, **schema}


def _sb_schema() -> Schema:
    schema: Schema = SbFile.model_json_schema(mode="validation")
    definitions: Schema = schema["$defs"]
    for where, names in FOREIGN.items():
        model = _PLANES[where]
        target = schema if model == "SbFile" else definitions[model]
        for name in sorted(names):
            pattern = f"{where}.{name}".lstrip(".")
            note = (
                "restricts access: an error until fleet.accept_unenforced lists it"
                if pattern in ACCESS
                else "kept, not managed by sbctl"
            )
            target["properties"].setdefault(name, {"description": f"SBproxy; {note}."})
    _add_overlays(definitions)
    for definition in definitions.values():
        definition.pop("title", None)
    schema = _walk(_walk(schema, _without_block_default), _or_variable)
    schema["$defs"]["Variable"] = _VARIABLE
    return schema


def _add_overlays(definitions: Schema) -> None:
    """Overlays have the fields of `proxy` and require none: what is missing is in the layer below."""
    pending, copied = ["ProxyModel"], set()
    while pending:
        name = pending.pop()
        if name in copied:
            continue
        copied.add(name)
        overlay = copy.deepcopy(definitions[name])
        overlay.pop("required", None)
        definitions[name + _OVERLAY_SUFFIX] = _walk(overlay, lambda part: _point_to_overlay(part, pending))
    for owner in _OVERLAY_OWNERS:
        written = definitions[owner]["properties"]["proxy"]
        definitions[owner]["properties"]["proxy"] = {
            "$ref": f"#/$defs/ProxyModel{_OVERLAY_SUFFIX}",
            "description": written["description"],
        }


def _point_to_overlay(part: Schema, pending: list[str]) -> Schema:
    reference = part.get("$ref")
    if isinstance(reference, str) and not reference.endswith(_OVERLAY_SUFFIX):
        pending.append(reference.rpartition("/")[2])
        return {**part, "$ref": reference + _OVERLAY_SUFFIX}
    return part


def _walk(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Apply `change` to every schema inside, from the leaves up. Names of properties are not schemas."""
    result: Schema = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _walk(inner, change) for name, inner in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            result[key] = [_walk(inner, change) for inner in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            result[key] = _walk(value, change)
        else:
            result[key] = value
    return change(result)


def _strict_pattern(part: Schema) -> Schema:
    pattern = part.get("pattern")
    if not isinstance(pattern, str) or not pattern.endswith("$"):
        return part
    refused = {"pattern": "[\\r\\n]"}
    known = part.get("not")
    return {**part, "not": refused if known is None else {"anyOf": [known, refused]}}


def _without_block_default(part: Schema) -> Schema:
    """The default of a block is the defaults of its fields; to repeat them all at its owner helps nobody."""
    return {key: value for key, value in part.items() if key != "default" or not isinstance(value, dict)}


def _or_variable(part: Schema) -> Schema:
    scalar = part.get("type") in ("string", "integer", "number", "boolean") or "enum" in part or "const" in part
    if not scalar or _STRUCTURE & part.keys():
        return part
    about: Schema = {key: part[key] for key in ("description", "default") if key in part}
    rule = {key: value for key, value in part.items() if key not in ("description", "default", "title")}
    return {"anyOf": [rule, {"$ref": "#/$defs/Variable"}], **about}


def _rendered(name: str) -> str:
    return json.dumps(schema_for(name), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def generated_files() -> dict[Path, str]:
    """Every generated file and what must stand in it."""
    from sbctl.config.reference import reference_markdown

    files = {data_path("schemas", file): _rendered(name) for name, file in SCHEMA_FILES.items()}
    files[data_path("schemas", "").parent / "docs" / "reference" / "configuration.md"] = reference_markdown()
    return files


def drifted() -> list[Path]:
    """Generated files that do not say what the models say."""
    return [
        path
        for path, text in generated_files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    """`--write` writes the files; without it, exit 1 names those that differ."""
    if arguments == ["--write"]:
        for path, text in generated_files().items():
            write_atomic(path, text.encode(), mode=0o644)
        return 0
    stale = drifted()
    for path in stale:
        sys.stdout.write(f"{path} differs from the models; write it with --write\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
