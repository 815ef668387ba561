"""Perform: install another version, activate with signed trust and the secrets beside it, remove. Record what activation answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.comparison import result_of
from providers.runtime.certificate import send_certificate
from providers.runtime.provider_keys import send_keys
from providers.runtime_wheels import install_runtime
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.secret import Secret
from sbctl.base.truths import Desired
from sbctl.node.messages import Method, RuntimeActivate, RuntimeConfig, RuntimeRemove
from sbctl.plan.model import Step
from sbctl.provider import PerformContext
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet

__all__ = ["ADMIN_PASSWORD", "perform", "record"]

ADMIN_PASSWORD = "admin_password"  # noqa: S105 - the name under which the secret travels


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.RUNTIME_INSTALL:
            return install_runtime(step.params, context, deadline_s=step.deadline_s)
        case Method.RUNTIME_ACTIVATE:
            return _activate(step, context)
        case Method.RUNTIME_CERTIFICATE:
            return send_certificate(step, context)
        case Method.RUNTIME_KEYS:
            return send_keys(step, context)
        case _:
            remove = RuntimeRemove(lineage=step.params["lineage"])
            return _call(step, context, remove.model_dump(mode="json"), {})


def _activate(step: Step, context: PerformContext) -> Mapping[str, Any]:
    params = step.params
    config = RuntimeConfig.model_validate_json(canonical_json(params["config"]))
    trust = TrustSet(
        lineage=config.lineage,
        key_epoch=params["trust"]["key_epoch"],
        signers=dict(params["trust"]["signers"]),
    )
    envelope = context.services.sign(TRUST_PAYLOAD_TYPE, canonical_json(trust.model_dump(mode="json")))
    password = params["admin_password"]
    secrets = {} if password is None else {ADMIN_PASSWORD: context.services.secret(password["reference"])}
    for name, held in params.get("sent_secrets", {}).items():
        secrets[name] = context.services.secret(held["reference"])
    request = RuntimeActivate(version=params["version"], config=config, trust_envelope=envelope)
    return _call(step, context, request.model_dump(mode="json"), secrets)


def _call(
    step: Step, context: PerformContext, params: Mapping[str, Any], secrets: Mapping[str, Secret]
) -> Mapping[str, Any]:
    return context.node.call(
        step.method, params, secrets=secrets, deadline_s=step.deadline_s, progress=context.progress
    )


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the host must show from now on. The unit is rendered there, so its digest is None when the answer was lost, and None is not
    compared; configuration and trust are known here."""
    methods = (Method.RUNTIME_ACTIVATE, Method.RUNTIME_CERTIFICATE, Method.RUNTIME_KEYS)
    answer = next((told for method in methods if (told := result_of(results, method)) is not None), {})
    config, trust = desired.spec["config"], desired.spec["trust"]
    return {
        "version": desired.spec["version"],
        "unit_sha256": answer.get("unit_sha256"),
        "config_sha256": fingerprint(config),
        "trust_digest": fingerprint({"schema_version": 1, "lineage": config["lineage"], **trust}),
        "supervision": answer.get("supervision"),
        "certificate": None if desired.spec["tls"] is None else desired.spec["tls"]["certificate"]["fingerprint"],
    }
