"""The bodies of both HTTP APIs as JSON Schema. A body of ours has no field that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["SCHEMAS"]

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_FREE: Final = {"type": "object"}
_STATES: Final = ("configured", "assigned", "cached", "preparing", "ready", "draining", "stopped", "failed")


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [dict(schema), {"type": "null"}]}


def _list(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items)}


_JOB: Final = _object(
    id={"type": "string", "pattern": "^[0-9A-HJKMNP-TV-Z]{26}$"},
    kind={"enum": ["load", "stop", "drain", "evict", "pull", "reset"]},
    subject=_TEXT,
    state={"enum": ["queued", "downloading", "verifying", "ready", "failed"]},
    progress=_object(completed_bytes=_COUNT, total_bytes=_or_null(_COUNT), current_file=_or_null(_TEXT)),
    created_at_ms=_COUNT,
    updated_at_ms=_COUNT,
    terminal_at_ms=_or_null(_COUNT),
    error=_or_null(_TEXT),
)
_REPLICA: Final = _object(
    deployment=_TEXT,
    replica=_COUNT,
    generation=_COUNT,
    state={"enum": list(_STATES)},
    active_requests=_COUNT,
    queued_requests=_COUNT,
    engine=_TEXT,
    engine_version=_or_null(_TEXT),
    driver_availability={"enum": ["available", "incompatible"]},
    artifact_digest=_TEXT,
    selected_devices=_list(_COUNT),
    memory=_or_null(_object(total_bytes=_COUNT)),
    port=_or_null(_COUNT),
    restarts=_COUNT,
    stopped_by={"enum": ["operator", "idle", None]},
    reason_code=_or_null(_TEXT),
    job_id=_or_null(_TEXT),
    last_error=_or_null(_TEXT),
)
_PLAN: Final = _object(added=_list(_TEXT), changed=_list(_TEXT), removed=_list(_TEXT), preserved=_list(_TEXT))
_VERSION: Final = {"const": 1}

SCHEMAS: Final[dict[str, Any]] = {
    "Health": _object(status={"enum": ["ok", "unavailable"]}),
    "Status": _object(
        serving=_FLAG,
        runtime_revision=_COUNT,
        deployments=_list(_REPLICA),
        models=_list(_REPLICA),
        local_serving=_object(ready=_FLAG, blockers=_list(_TEXT), recommendation=_or_null(_TEXT)),
    ),
    "Deployments": _object(
        schema_version=_VERSION,
        authority={"enum": ["file_managed", "admin_managed", "cluster_authority"]},
        read_only=_FLAG,
        revision=_or_null(_COUNT),
        content_digest=_or_null(_TEXT),
        deployments={"type": "object", "additionalProperties": _FREE},
    ),
    "Replacement": _object(
        expected_revision=_or_null(_COUNT), deployments={"type": "object", "additionalProperties": _FREE}
    ),
    "Replaced": _object(schema_version=_VERSION, revision=_COUNT, content_digest=_TEXT, plan=_PLAN),
    "Reloaded": _object(
        schema_version=_VERSION, plan=_PLAN, degraded={"type": "object", "additionalProperties": _TEXT}
    ),
    "Asked": {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {"deployment": _TEXT, "model": _TEXT},
    },
    "Queued": _object(
        schema_version=_VERSION, deployment=_TEXT, state={"const": "queued"}, job_id=_TEXT, poll_url=_TEXT
    ),
    "Job": _object(schema_version=_VERSION, job=_JOB),
    "Jobs": _object(schema_version=_VERSION, jobs=_list(_JOB)),
    "Login": _object(username=_TEXT, password=_TEXT),
    "Session": _object(
        ("username", "role", "via_session", "csrf_token"),
        authenticated=_FLAG,
        username=_TEXT,
        role={"enum": ["read_only", "admin"]},
        via_session=_FLAG,
        csrf_token=_or_null(_TEXT),
    ),
    "SessionOver": _object(authenticated={"const": False}),
    "AdminError": {
        "type": "object",
        "required": ["error", "code"],
        "properties": {"error": _TEXT, "code": _TEXT, "reason_code": _TEXT, "next_step": _TEXT},
    },
    "Model": {
        "type": "object",
        "required": ["id", "object"],
        "properties": {"id": _TEXT, "object": {"const": "model"}},
    },
    "Models": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"const": "list"}, "data": _list({"$ref": "#/components/schemas/Model"})},
    },
    "Error": _object(
        error={
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "code": _TEXT},
        }
    ),
}
