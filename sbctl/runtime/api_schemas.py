"""The bodies of both HTTP APIs as JSON Schema. A body of ours has no field that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbctl.node.records import EVENTS_MAX

__all__ = ["QUERY", "SCHEMAS"]

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
    kind={"enum": ["load", "stop", "drain", "evict", "pull", "reset", "rollout", "delete"]},
    subject=_TEXT,
    state={"enum": ["queued", "downloading", "verifying", "ready", "deleting", "deleted", "failed"]},
    progress=_object(completed_bytes=_COUNT, total_bytes=_or_null(_COUNT), current_file=_or_null(_TEXT)),
    created_at_ms=_COUNT,
    updated_at_ms=_COUNT,
    terminal_at_ms=_or_null(_COUNT),
    error=_or_null(_TEXT),
)
_EVENT: Final = _object(
    seq=_COUNT,
    at=_TEXT,
    kind=_TEXT,
    message=_TEXT,
    deployment=_or_null(_TEXT),
    replica=_or_null(_COUNT),
    generation=_or_null(_COUNT),
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
    memory=_or_null(
        _object(
            device_indexes=_list(_COUNT),
            weight_bytes=_or_null(_COUNT),
            kv_bytes=_or_null(_COUNT),
            runtime_overhead_bytes=_or_null(_COUNT),
            safety_margin_bytes=_COUNT,
            total_bytes=_COUNT,
            host_bytes=_COUNT,
            device_bytes=_COUNT,
            basis={"enum": ["declared", "observed", "estimate", "catalog", None]},
            certainty={"enum": ["exact", "upper_bound", "unknown", None]},
            observed_bytes=_or_null(_COUNT),
            observed_peak_bytes=_or_null(_COUNT),
        )
    ),
    port=_or_null(_COUNT),
    restarts=_COUNT,
    stopped_by={"enum": ["operator", "idle", None]},
    reason_code=_or_null(_TEXT),
    job_id=_or_null(_TEXT),
    last_error=_or_null(_TEXT),
    next_step=_or_null(_TEXT),
)
_VARIANT: Final = _object(
    id=_TEXT,
    format={"enum": ["safetensors", "gguf", "pickle"]},
    quant=_TEXT,
    engines=_list(_TEXT),
    accelerators=_list({"enum": ["cpu", "metal", "cuda"]}),
    min_memory_bytes=_COUNT,
    download_size_bytes=_COUNT,
    certification=_TEXT,
    stability={"enum": ["stable", "preview", "config_only", "unsupported"]},
)
_CATALOG_MODEL: Final = _object(
    params=_TEXT,
    license=_TEXT,
    family=_TEXT,
    modality=_TEXT,
    context_length=_or_null(_COUNT),
    allow_pickle=_FLAG,
    builtin=_FLAG,
    catalog_revision=_TEXT,
    variants=_list(_VARIANT),
)
_CACHED: Final = _object(
    logical_model=_TEXT,
    variant_id=_TEXT,
    artifact_digest=_TEXT,
    total_size_bytes=_COUNT,
    last_accessed_ms=_COUNT,
    state={"enum": ["ready", "partial", "corrupt"]},
    resident=_FLAG,
    configured=_FLAG,
    pinned=_FLAG,
)
_WORTH: Final = _object(
    model=_TEXT,
    local_completions=_COUNT,
    local_prompt_tokens=_COUNT,
    local_completion_tokens=_COUNT,
    cloud_completions=_COUNT,
    cloud_prompt_tokens=_COUNT,
    cloud_completion_tokens=_COUNT,
    saved_micros={"type": "null"},
    cloud_spent_micros={"type": "null"},
)
_PLAN: Final = _object(added=_list(_TEXT), changed=_list(_TEXT), removed=_list(_TEXT), preserved=_list(_TEXT))
_VERSION: Final = {"const": 1}
_PLACED: Final = {"type": "object", "required": ["slot", "node_id", "generation"]}
_CLUSTER_DEPLOYMENT: Final = _object(
    deployment_id=_TEXT,
    model=_TEXT,
    generation=_COUNT,
    desired_replicas=_COUNT,
    placed_replicas=_COUNT,
    ready_replicas=_COUNT,
    unplaced_replicas=_COUNT,
    phase=_TEXT,
    target_ready=_FLAG,
    timed_out=_FLAG,
    handoff_deadline_unix_ms=_or_null(_COUNT),
    assignments=_list(_PLACED),
    retained=_list(_PLACED),
    draining=_list(_PLACED),
    rejections={"type": "object", "additionalProperties": {"type": "object", "required": ["reason"]}},
    rejections_left_out=_COUNT,
)
_ALERT: Final = _object(
    node_id=_TEXT,
    health={"enum": ["healthy", "degraded", "unhealthy"]},
    reasons=_list(_TEXT),
    membership_state=_TEXT,
    last_ack_age_ms=_or_null(_COUNT),
    snapshot_age_ms=_or_null(_COUNT),
    model_endpoint=_or_null(_TEXT),
)
_SIZES: Final[dict[str, Any]] = {"total_bytes": _COUNT, "used_bytes": _COUNT, "free_bytes": _COUNT}
_DEVICE: Final = _object(index=_COUNT, name=_TEXT, accelerator=_TEXT, **_SIZES)
_HOLDING: Final = _object(model=_TEXT, variant=_TEXT, artifact_digest=_TEXT, ready_on=_list(_TEXT))

_ACTION_NAME: Final = {"enum": ["confirm_lost", "retry", "evacuate", "restore"]}
_CLUSTER_ACTION: Final = _object(
    action=_ACTION_NAME,
    subject=_TEXT,
    number=_COUNT,
    by=_TEXT,
    reason=_TEXT,
    authority=_TEXT,
    at_unix_ms=_COUNT,
)

QUERY: Final[Mapping[str, Mapping[str, Any]]] = {
    "after": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1},
    "limit": {"type": "integer", "minimum": 1, "maximum": EVENTS_MAX},
    "deployment": {"type": "string", "minLength": 1, "maxLength": 128},
}
"""What may stand behind paths."""

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
        ("warning",),
        schema_version=_VERSION,
        deployment=_TEXT,
        state={"const": "queued"},
        job_id=_TEXT,
        poll_url=_TEXT,
        warning=_TEXT,
    ),
    "QueuedChange": _object(schema_version=_VERSION, state={"const": "queued"}, job_id=_TEXT, poll_url=_TEXT),
    "Catalog": _object(
        schema_version=_VERSION,
        catalog_revision=_TEXT,
        models={"type": "object", "additionalProperties": _CATALOG_MODEL},
    ),
    "Value": _object(
        schema_version=_VERSION,
        priced={"const": False},
        models=_list(_WORTH),
        total_local_completions=_COUNT,
        total_cloud_completions=_COUNT,
        total_saved_micros={"type": "null"},
        total_cloud_spent_micros={"type": "null"},
        local_fraction=_or_null({"type": "number", "minimum": 0, "maximum": 1}),
    ),
    "Files": _object(
        schema_version=_VERSION,
        cache_root=_TEXT,
        total_bytes=_COUNT,
        budget_bytes=_or_null(_COUNT),
        free_bytes=_or_null(_COUNT),
        artifacts=_list(_CACHED),
    ),
    "RemovedArtifact": _object(
        ("warning",), artifact_digest=_TEXT, removed=_FLAG, reclaimed_bytes=_COUNT, job_id=_TEXT, warning=_TEXT
    ),
    "Collected": _object(
        ("warning",),
        before_bytes=_COUNT,
        after_bytes=_COUNT,
        reclaimed_bytes=_COUNT,
        deleted_artifacts=_list(_TEXT),
        skipped_artifacts={"type": "object", "additionalProperties": _TEXT},
        budget_unsatisfied_bytes=_COUNT,
        job_id=_TEXT,
        warning=_TEXT,
    ),
    "InUse": {
        "type": "object",
        "required": ["error", "code"],
        "properties": {"error": _TEXT, "code": _TEXT, "reason": _TEXT, "next_step": _TEXT, "job_id": _TEXT},
    },
    "Events": _object(schema_version=_VERSION, events=_list(_EVENT), cursor=_COUNT, more=_FLAG),
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
    "ClusterStatus": _object(
        schema_version=_VERSION,
        configured=_FLAG,
        mode={"enum": ["local", "distributed"]},
        cluster_id=_TEXT,
        local_node_id=_TEXT,
        generated_at_unix_ms=_COUNT,
        directory_collected_at_unix_ms=_COUNT,
        directory_age_ms=_or_null(_COUNT),
        directory_stale_since_unix_ms=_or_null(_COUNT),
        summary={"type": "object", "additionalProperties": _COUNT},
        deployment_authority=_object(
            configured=_FLAG,
            read_only=_FLAG,
            verifying_key_id=_or_null(_TEXT),
            active_revision=_or_null(_COUNT),
            active_content_digest=_or_null(_TEXT),
            signer_node_id=_or_null(_TEXT),
        ),
        deployments=_list(_CLUSTER_DEPLOYMENT),
        nodes=_list({"type": "object", "required": ["node_id", "health", "unhealthy", "unhealthy_reasons"]}),
        unhealthy_nodes=_list(_ALERT),
        store=_object(
            state={"enum": ["connected", "no_quorum", "no_writes", "lost"]},
            since=_TEXT,
            server=_or_null(_TEXT),
            problem=_or_null(_TEXT),
        ),
        actions=_list(_CLUSTER_ACTION),
        local_problems={"type": "object", "additionalProperties": _TEXT},
        is_authority=_FLAG,
        is_lease_holder=_FLAG,
        lease_epoch=_or_null(_COUNT),
        placed_at_unix_ms=_or_null(_COUNT),
        brake=_or_null(_TEXT),
        problem=_or_null(_TEXT),
    ),
    "ClusterBundle": _object(
        schema_version=_VERSION,
        bundle=_FREE,
        signer_node_id=_TEXT,
        signer_key_id=_or_null(_TEXT),
        signer=_TEXT,
        read_only=_FLAG,
    ),
    "ClusterPublished": _object(
        schema_version=_VERSION,
        revision=_COUNT,
        content_digest=_TEXT,
        signer_node_id=_TEXT,
        signer_key_id=_TEXT,
        signer=_TEXT,
        status={"const": "published"},
        in_store=_FLAG,
    ),
    "SignedEnvelope": _object(payloadType=_TEXT, payload=_TEXT, signatures=_list(_object(keyid=_TEXT, sig=_TEXT))),
    "ClusterPlacement": _object(
        schema_version=_VERSION,
        deployment_id=_TEXT,
        lease_holder=_TEXT,
        lease_epoch=_COUNT,
        placed_at_unix_ms=_COUNT,
        bundle=_object(key_epoch=_COUNT, revision=_COUNT, content_digest=_TEXT),
        placement=_FREE,
    ),
    "ClusterVram": _object(
        schema_version=_VERSION,
        generated_at_unix_ms=_COUNT,
        directory_collected_at_unix_ms=_COUNT,
        cluster=_object(**_SIZES, device_count=_COUNT, node_count=_COUNT),
        nodes=_list(_object(node_id=_TEXT, vram=_object(**_SIZES, devices=_list(_DEVICE)))),
    ),
    "ClusterArtifacts": _object(
        schema_version=_VERSION,
        nodes=_list(_object(node_id=_TEXT, artifacts=_list(_FREE))),
        models=_list(_HOLDING),
        partial=_FLAG,
    ),
    "ClusterMetrics": _object(
        schema_version=_VERSION, nodes=_COUNT, metrics={"type": "object", "additionalProperties": _COUNT}
    ),
    "ClusterActions": _object(schema_version=_VERSION, actions=_list(_CLUSTER_ACTION)),
    "ClusterActed": _object(
        schema_version=_VERSION,
        action=_ACTION_NAME,
        subject=_TEXT,
        changed=_FLAG,
        number=_COUNT,
        by=_TEXT,
        reason=_TEXT,
        authority=_TEXT,
        at_unix_ms=_COUNT,
    ),
    "ClusterReason": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"reason": {"type": "string", "maxLength": 256}},
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
