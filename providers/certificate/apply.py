"""Perform: a request from the host, a signature from the authority on the operator's machine, the identity to the host."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from providers.comparison import result_of
from providers.runtime_wheels import install_runtime
from sbctl.base.clock import rfc3339
from sbctl.base.secret import Secret
from sbctl.base.truths import Desired
from sbctl.node.identity_messages import CertificateInstall, CertificateRemove, CertificateRequest
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform", "record"]

_NODE_KEY: Final = "node_key"
_REMEMBERED: Final = ("fingerprint", "identity_epoch", "issuer")


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.RUNTIME_INSTALL:
            return install_runtime(step.params, context, deadline_s=step.deadline_s)
        case Method.CERTIFICATE_REQUEST:
            return _request(step, context, step.params["node_id"])
        case Method.CERTIFICATE_INSTALL:
            return _install(step, context)
        case _:
            remove = CertificateRemove(lineage=step.params["lineage"])
            return _call(Method.CERTIFICATE_REMOVE, remove.model_dump(mode="json"), step, context)


def _request(step: Step, context: PerformContext, node_id: str) -> Mapping[str, Any]:
    asked = CertificateRequest(lineage=step.params["lineage"], node_id=node_id)
    return _call(Method.CERTIFICATE_REQUEST, asked.model_dump(mode="json"), step, context)


def _install(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """The request that waits is asked for again, so that this step can be repeated alone."""
    params = step.params
    if params["own"]:
        return _install_own(step, context)
    certificate = identity = None
    if params["issue"]:
        request = _request(step, context, params["grant"]["node_id"])["request"]
        issued = context.services.issue_identity(
            str(request),
            params["grant"],
            issuer=params["issuer"],
            validity_days=params["validity_days"],
            least_epoch=params["least_epoch"],
        )
        certificate, identity = issued["certificate"], issued["identity"]
    trust = context.services.identity_trust(params["ca"])
    install = CertificateInstall(
        lineage=params["lineage"],
        certificate=certificate,
        identity=identity,
        ca=trust["ca"],
        authority_key=trust["authority_key"],
        revocations=trust["revocations"],
        operator_time=rfc3339(context.services.clock.now()),
    )
    return _call(Method.CERTIFICATE_INSTALL, install.model_dump(mode="json"), step, context)


def _install_own(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """What the user's own PKI issued. A key that is on the host already is read there; another one is sent beside the call."""
    params, on_node = step.params, "node-file:"
    files = context.services.own_identity(params["node_id"], params)
    reference = str(params["key"])
    is_there = reference.startswith(on_node)
    install = CertificateInstall(
        lineage=params["lineage"],
        certificate=files["certificate"],
        ca=files["ca"],
        key_file=reference.removeprefix(on_node) if is_there else None,
        operator_time=rfc3339(context.services.clock.now()),
    )
    secrets = {} if is_there else {_NODE_KEY: context.services.secret(reference)}
    return _call(Method.CERTIFICATE_INSTALL, install.model_dump(mode="json"), step, context, secrets)


def _call(
    method: Method,
    params: Mapping[str, Any],
    step: Step,
    context: PerformContext,
    secrets: Mapping[str, Secret] = MappingProxyType({}),
) -> Mapping[str, Any]:
    return context.node.call(method, params, secrets=secrets, deadline_s=step.deadline_s, progress=context.progress)


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the host must show from now on, never a key. What a lost answer leaves unknown is None and not compared."""
    answer = result_of(results, Method.CERTIFICATE_INSTALL) or {}
    return {
        **{name: answer.get(name) for name in _REMEMBERED},
        "issuer": answer.get("issuer") or desired.spec["issuer"],
        "ca": list(desired.spec["ca"]),
        "revocations": answer.get("revocations", desired.spec["revocations"]),
    }
