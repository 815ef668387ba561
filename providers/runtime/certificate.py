"""The API's public certificate: what its change costs, and sending it with its private key.

The files are read when they are sent, and must be those that the plan showed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.comparison import Call, Comparison
from sbctl.base.errors import StalePlanError
from sbctl.base.truths import Desired, Recorded
from sbctl.node.identity_messages import RuntimeCertificate
from sbctl.node.messages import Method
from sbctl.plan.model import Leaf, Step
from sbctl.provider import PerformContext
from sbctl.trust.public_certificate import check_pair

__all__ = [
    "certificate_call",
    "certificate_drift",
    "certificate_note",
    "send_certificate",
    "used_drift",
]

TLS_KEY: Final = "tls_key"
"""The name under which the private key travels."""
_DEADLINE_S: Final = 60.0
_NAMES_SHOWN: Final = 5


def certificate_call(desired: Desired) -> Call | None:
    """None where no certificate is sent."""
    tls = desired.spec["tls"]
    if tls is None:
        return None
    params = {"lineage": desired.spec["config"]["lineage"], **tls}
    return Call(Method.RUNTIME_CERTIFICATE, params, "install the public certificate", deadline_s=_DEADLINE_S)


def certificate_note(desired: Desired) -> tuple[str, ...]:
    """What clients will see, where a plan shows no single values."""
    tls = desired.spec["tls"]
    if tls is None:
        return ()
    certificate = tls["certificate"]
    names = ", ".join(certificate["names"][:_NAMES_SHOWN]) + (" …" if len(certificate["names"]) > _NAMES_SHOWN else "")
    until, fingerprint = certificate["not_after"][:10], certificate["fingerprint"][:32]
    return (f"certificate: for {names}, by {certificate['issuer']}, until {until}, SHA-256 {fingerprint}",)


def certificate_drift(decisive: Mapping[str, Any], recorded: Recorded) -> Iterator[Leaf]:
    """The file on the host is another than the one that was sent."""
    wanted, found = recorded.record.get("certificate"), decisive["certificate"]
    if wanted is not None and found != wanted:
        shown = "missing" if found is None else found[:16]
        reason = "the public certificate on the host is not the one that was sent"
        yield Leaf("certificate.installed", shown, wanted[:16], reason)


def used_drift(comparison: Comparison, recorded: Recorded) -> Iterator[Leaf]:
    """A runtime that is well and shows another certificate than the file has."""
    wanted = recorded.record.get("certificate")
    used, decisive = comparison.observed.informative["certificate_used"], comparison.observed.decisive
    if wanted is not None and decisive["certificate"] == wanted and decisive["healthy"] and used != wanted:
        shown = "none" if used is None else used[:16]
        yield Leaf("certificate.used", shown, wanted[:16], "the runtime shows another certificate than it was sent")


def send_certificate(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Raises InputError `secret.*`, `tls.*`; StalePlanError `tls.changed`; what the host says."""
    params = step.params
    chain = context.services.secret(params["certificate_reference"]).reveal()
    key = context.services.secret(params["key_reference"])
    planned = params["certificate"]["fingerprint"]
    found = check_pair(chain, key)
    if found.fingerprint != planned:
        raise StalePlanError(
            "tls.changed",
            f"the certificate file now holds another certificate ({found.fingerprint[:16]}) than the plan showed ({planned[:16]})",
            place=params["certificate_reference"],
            next_step="plan again",
        )
    request = RuntimeCertificate(lineage=params["lineage"], chain=chain.decode("ascii", "replace"))
    return context.node.call(
        step.method,
        request.model_dump(mode="json"),
        secrets={TLS_KEY: key},
        deadline_s=step.deadline_s,
        progress=context.progress,
    )
