"""The description of both HTTP APIs, made from the tables that route them (OpenAPI 3.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sbctl import __version__
from sbctl.runtime.admin_access import COOKIE
from sbctl.runtime.admin_routes import ROUTES, Route
from sbctl.runtime.api_schemas import QUERY, SCHEMAS
from sbctl.runtime.gateway.surface import MODELS_PATHS, PROBE_PATHS, SURFACE, Operation

__all__ = ["openapi_document"]

_ERRORS: Final[Mapping[str, tuple[int, ...]]] = {
    "anyone": (400, 401, 403, 404, 405, 413, 415, 429, 503),
    "read_only": (400, 401, 403, 404, 405, 429, 503),
    "admin": (400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 500, 502, 503),
}
_DATA_ERRORS: Final = (400, 401, 403, 404, 405, 413, 415, 429, 502, 503)
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


def openapi_document() -> dict[str, Any]:
    """Whole. The data API's paths are below the tag `data`, the admin API's below `admin`; they are two listeners."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _admin(route)
    for path in MODELS_PATHS:
        paths[path] = {"get": _data("models that the origin serves", {"200": _content("Models")})}
        one = {**_data("one of them", {"200": _content("Model")}), "parameters": [_parameter("id")]}
        paths[f"{path}/{{id}}"] = {"get": one}
    for operation in SURFACE.values():
        paths[operation.path] = {"post": _asked(operation)}
    for path in PROBE_PATHS:
        paths[path]["get"]["tags"] = ["admin", "data"]
    return {
        "openapi": "3.1.0",
        "info": {"title": "sbctl runtime", "version": __version__, "license": {"name": "Apache-2.0"}},
        "servers": [
            {"url": "http://127.0.0.1:8080", "description": "the API: paths with the tag data"},
            {"url": "http://127.0.0.1:9090", "description": "the admin API: paths with the tag admin"},
        ],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
                "key": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _admin(route: Route) -> dict[str, Any]:
    answers = {str(status): _content(schema) for status, schema in route.answers}
    probe = route.handler == "probe"
    errors = {} if probe else {str(status): _content("AdminError") for status in _ERRORS[route.role]}
    found: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{re.sub('[^a-z]+', '_', route.path)}",
        "summary": route.summary,
        "tags": ["admin"],
        "security": [] if route.role == "anyone" else [{"basic": []}, {"session": []}],
        "responses": {**errors, **answers},
    }
    if route.asks is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.asks)}}}
    named = [_parameter(name) for name in _PARAMETER.findall(route.path)]
    named += [{"name": name, "in": "query", "schema": QUERY[name]} for name in route.query]
    if any(schema == "QueuedChange" for _status, schema in route.answers):
        named.append({"name": "Prefer", "in": "header", "schema": {"type": "string"}, "example": "respond-async"})
    if named:
        found["parameters"] = named
    return found


def _data(summary: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    errors = {str(status): _content("Error") for status in _DATA_ERRORS}
    return {"summary": summary, "tags": ["data"], "security": [{"key": []}, {}], "responses": {**errors, **answers}}


def _asked(operation: Operation) -> dict[str, Any]:
    answers = {
        "events": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
        "json": {"application/json": {"schema": {"type": "object"}}},
        "bytes": {"application/octet-stream": {}, "application/json": {}, "text/plain": {}},
    }[operation.answers]
    kind = "multipart/form-data" if operation.is_form else "application/json"
    asks = {"type": "object", "required": ["model"], "properties": {"model": {"type": "string"}}}
    found = _data(f"{operation.kind}, as OpenAI has it", {"200": {"description": "the answer", "content": answers}})
    return {**found, "requestBody": {"required": True, "content": {kind: {"schema": asks}}}}


def _content(schema: str) -> dict[str, Any]:
    if "/" in schema:
        return {"description": schema, "content": {schema: {"schema": {"type": "string"}}}}
    return {"description": schema, "content": {"application/json": {"schema": _ref(schema)}}}


def _ref(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
