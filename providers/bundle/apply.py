"""Perform: number, sign and send a revision; take note of the one that is there; act on one deployment; clear."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from providers.bundle.cluster import held_by, is_cluster
from providers.bundle.numbering import next_revision, refuse_too_large
from providers.bundle.publishing import publish
from providers.bundle.spec import content_of, digest_of
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json
from sbctl.base.errors import ArtifactError, EngineError, HostError, SbctlError, StalePlanError, error_from_wire
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import BundleApply, DeploymentAction, Method
from sbctl.node.snapshot import BundleState, NodeSnapshot
from sbctl.plan.model import Step
from sbctl.provider import PerformContext, Services
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, BundleContent, BundlePayload

__all__ = ["perform", "record"]


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.BUNDLE_APPLY | Method.CLUSTER_PUBLISH:
            return _apply(step, context)
        case Method.SNAPSHOT:
            desired = _desired(context)
            return _take_note(desired, held_by(_looked(context, expected=True), desired.spec))
        case Method.DEPLOYMENT_ACTION:
            action = DeploymentAction(deployment=step.params["deployment"], action=step.params["action"])
            _call(step, context, action.model_dump(mode="json"))
            recorded = context.change.recorded
            return {"bundle": recorded.record} if recorded is not None else {}
        case _:
            return _call(step, context, {})


def _desired(context: PerformContext) -> Desired:
    desired = context.change.desired
    assert desired is not None, "a bundle that is removed is cleared, not sent"
    return desired


def _looked(context: PerformContext, *, expected: bool) -> NodeSnapshot:
    """The host as it is now. Raises HostError `runtime.not_healthy` where a bundle is expected of a runtime that cannot tell."""
    snapshot = context.node.snapshot(SNAPSHOT_DEADLINE_S)
    spec = _desired(context).spec
    if expected and held_by(snapshot, spec) is None and not _tells(snapshot, spec):
        raise HostError(
            "runtime.not_healthy",
            "the runtime does not answer, so it cannot be said which bundle it holds",
            place=context.change.host,
            next_step="run the command again: it reads the host first and starts the runtime where it is down",
            retryable=True,
        )
    return snapshot


def _tells(snapshot: NodeSnapshot, spec: Mapping[str, Any]) -> bool:
    return snapshot.runtime.healthy and (not is_cluster(spec) or snapshot.cluster is not None)


def _apply(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """The host is read once more: a runtime that was down when the plan was made may have come back with its bundle.

    Raises HostError `runtime.not_healthy`, StalePlanError `bundle.changed_since_plan`, RefusedError `bundle.too_large`, `bundle.revision_far_ahead`, and what the node refuses.
    """
    desired, planned = _desired(context), step.params["expected_revision"]
    snapshot = _looked(context, expected=planned is not None)
    held = held_by(snapshot, desired.spec)
    held_revision = None if held is None else held.revision
    if held is not None and held_revision != planned:
        if held.content_digest == digest_of(desired.spec) and held.key_epoch == desired.spec["key_epoch"]:
            _start_what_failed(step, context, snapshot)
            return _noted(held)
        if not _is_recorded(held, context.change.recorded):
            raise _changed(desired, planned, held_revision)
    elif held is None and planned is not None:
        raise _changed(desired, planned, None)
    if is_cluster(desired.spec):
        return publish(step, context, desired, held_revision)
    revision = next_revision(context.services, step.params["scope"], held_revision or 0)
    payload = _payload(desired, revision, context.services)
    envelope = context.services.sign(BUNDLE_PAYLOAD_TYPE, canonical_json(payload.model_dump(mode="json")))
    refuse_too_large(envelope, f"the bundle of {desired.host}")
    request = BundleApply(envelope=envelope, expected_revision=held_revision)
    try:
        answer = _call(step, context, request.model_dump(mode="json"))
    except SbctlError as error:
        raise _with_what_stays(error, held_revision) from error
    return {
        "bundle": {
            "revision": answer.get("revision", payload.revision),
            "content_digest": payload.content_digest,
            "key_epoch": payload.key_epoch,
        },
        "report": answer.get("report"),
    }


def _with_what_stays(error: SbctlError, held_revision: int | None) -> SbctlError:
    """A deployment that failed at a stage of the change did so before the host took anything: say what it goes on with."""
    if held_revision is None or "stage" not in error.detail:
        return error
    step = error.next_step or "repair the cause, then run apply again"
    return error_from_wire(
        {**error.to_wire(), "next_step": f"{step}; meanwhile the host stays at revision {held_revision}"}
    )


def _start_what_failed(step: Step, context: PerformContext, snapshot: NodeSnapshot) -> None:
    """A runtime that came back before its weights or its engine did has failed by now, and would try again by itself some time later.

    What fails again is told by the look at the host that ends the apply.
    """
    spec = _desired(context).spec
    if is_cluster(spec):
        return
    for state in snapshot.deployments:
        if state.deployment in spec["deployments"] and any(one.state == "failed" for one in state.replicas):
            action = DeploymentAction(deployment=state.deployment, action="load").model_dump(mode="json")
            with contextlib.suppress(ArtifactError, EngineError):
                context.node.call(
                    Method.DEPLOYMENT_ACTION, action, secrets={}, deadline_s=step.deadline_s, progress=context.progress
                )


def _is_recorded(held: BundleState, recorded: Recorded | None) -> bool:
    """Whether the state knows what came back: by its number, or by its content where the answer that named the number was lost."""
    if recorded is None:
        return False
    record = recorded.record
    if record.get("revision") is not None:
        return bool(record["revision"] == held.revision)
    return (record.get("content_digest"), record.get("key_epoch", 0)) == (held.content_digest, held.key_epoch)


def _changed(desired: Desired, planned: int | None, found: int | None) -> StalePlanError:
    return StalePlanError(
        "bundle.changed_since_plan",
        f"the plan was made from revision {planned or 'none'}, and {desired.host} holds {found or 'none'} now",
        place=str(desired.address),
        next_step="plan again",
    )


def _payload(desired: Desired, revision: int, services: Services) -> BundlePayload:
    content = content_of(desired.spec)
    return BundlePayload(
        lineage=desired.spec["lineage"],
        scope=desired.address.scope,
        key_epoch=desired.spec["key_epoch"],
        revision=revision,
        issued_at=rfc3339(services.clock.now()),
        content=BundleContent.model_validate_json(json.dumps(content)),
        content_digest=digest_of(desired.spec),
    )


def _take_note(desired: Desired, held: BundleState | None) -> Mapping[str, Any]:
    if held is None or held.content_digest != digest_of(desired.spec):
        raise _changed(desired, None, None if held is None else held.revision)
    return _noted(held)


def _noted(held: BundleState) -> Mapping[str, Any]:
    return {
        "bundle": {
            "revision": held.revision,
            "content_digest": held.content_digest,
            "key_epoch": held.key_epoch,
        }
    }


def _call(step: Step, context: PerformContext, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return context.node.call(step.method, params, secrets={}, deadline_s=step.deadline_s, progress=context.progress)


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """A revision whose answer was lost is None, and None is not compared; the content is what was read back."""
    noted: Mapping[str, Any] = {}
    for answer in results.values():
        noted = answer.get("bundle") or noted
    return {
        "revision": noted.get("revision"),
        "content_digest": noted.get("content_digest") or digest_of(desired.spec),
        "key_epoch": desired.spec["key_epoch"],
    }
