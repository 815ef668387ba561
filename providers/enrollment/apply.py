"""Perform: the server's public keys from the host, the authority's word for them from the operator's machine, all of it to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from providers.comparison import result_of
from sbctl.base.clock import rfc3339
from sbctl.base.truths import Desired
from sbctl.node.identity_messages import EnrollmentInstall, EnrollmentRemove, EnrollmentRequest
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform", "record"]

_SENT: Final = (
    "lineage", "version", "cluster_id", "server_name", "node_id", "bind_address", "port", "validity_hours", "reserved"
)  # fmt: skip


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.ENROLLMENT_REQUEST:
            return _request(step, context)
        case Method.ENROLLMENT_INSTALL:
            return _install(step, context)
        case _:
            remove = EnrollmentRemove(lineage=step.params["lineage"])
            return _call(Method.ENROLLMENT_REMOVE, remove.model_dump(mode="json"), step, context)


def _request(step: Step, context: PerformContext) -> Mapping[str, Any]:
    asked = EnrollmentRequest(lineage=step.params["lineage"], rotation=step.params["rotation"])
    return _call(Method.ENROLLMENT_REQUEST, asked.model_dump(mode="json"), step, context)


def _install(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """The request is asked for again, so that this step can be repeated alone; the same keys get the same word while it is fresh."""
    params = step.params
    keys = _request(step, context)
    given = context.services.delegate_enrollment(
        str(keys["request"]),
        str(keys["verifying_key"]),
        node_id=params["node_id"],
        issuer=params["issuer"],
        validity_days=params["validity_days"],
    )
    trust = context.services.identity_trust(params["ca"])
    sent = {name: params[name] for name in _SENT}
    install = EnrollmentInstall(
        **{**sent, "reserved": tuple(sent["reserved"])},
        certificate=given["certificate"],
        delegation=given["delegation"],
        roots=trust["ca"],
        authority_keys=trust["authority_key"],
        revocations=trust["revocations"],
        operator_time=rfc3339(context.services.clock.now()),
    )
    return _call(Method.ENROLLMENT_INSTALL, install.model_dump(mode="json"), step, context)


def _call(method: Method, params: Mapping[str, Any], step: Step, context: PerformContext) -> Mapping[str, Any]:
    return context.node.call(method, params, secrets={}, deadline_s=step.deadline_s, progress=context.progress)


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the host must show from now on. What a lost answer leaves unknown is None and not compared."""
    answer = result_of(results, Method.ENROLLMENT_INSTALL) or {}
    found = {name: answer.get(name) for name in ("content_sha256", "unit_sha256", "fingerprint")}
    return {**found, "issuer": desired.spec["issuer"]}
