"""Licences of weights: a deployment of a model with a restrictive one says that somebody has read it."""

from __future__ import annotations

from collections.abc import Mapping

from sbctl.base.errors import RefusedError
from sbctl.catalog.licenses import license_of
from sbctl.config.compiled import CompiledDeployment, CompiledHost

__all__ = ["refuse_unread_licenses"]


def refuse_unread_licenses(hosts: Mapping[str, CompiledHost]) -> None:
    """Raises RefusedError `config.license_not_accepted` for the first deployment in file order, naming how many more there are."""
    unread: dict[str, CompiledDeployment] = {}
    for host in hosts.values():
        for name, deployment in host.deployments.items():
            if not _accepted(deployment):
                unread.setdefault(name, deployment)
    if not unread:
        return
    name, deployment = next(iter(unread.items()))
    told = license_of(deployment.artifact.license)
    others = f"; so it is with {', '.join(list(unread)[1:6])}" if len(unread) > 1 else ""
    accepted = deployment.model.accept_license
    had = f", and accept_license says {accepted}" if accepted is not None else ""
    raise RefusedError(
        "config.license_not_accepted",
        f"deployment {name} serves {deployment.artifact.model} under {told.phrase}{had}{others}",
        place=str(deployment.span) if deployment.span is not None else None,
        next_step=f"read {told.name}, then write accept_license: {deployment.artifact.license} in the deployment, or serve another model",
        detail={"deployments": list(unread), "license": deployment.artifact.license, "commercial_use": told.commercial},
    )


def _accepted(deployment: CompiledDeployment) -> bool:
    told = license_of(deployment.artifact.license)
    accepted = deployment.model.accept_license
    return not told.restrictive or (accepted is not None and accepted.lower() == deployment.artifact.license.lower())
