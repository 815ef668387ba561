"""Licences of weights: a deployment of a model with a restrictive one says that somebody has read it."""

from __future__ import annotations

from collections.abc import Mapping

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.errors import RefusedError
from sbctl.catalog.licenses import license_of
from sbctl.config.compiled import CompiledDeployment, CompiledHost

__all__ = ["refuse_unread_licenses"]


def refuse_unread_licenses(hosts: Mapping[str, CompiledHost]) -> None:
    """Raises RefusedError `config.license_not_accepted` for the first deployment in file order, naming how many more there are."""
    unread: dict[str, tuple[CompiledDeployment, ArtifactFacts]] = {}
    for host in hosts.values():
        for name, deployment in host.deployments.items():
            for facts in deployment.artifacts:
                if not _accepted(facts, deployment.model.accept_license):
                    unread.setdefault(name, (deployment, facts))
    if not unread:
        return
    name, (deployment, facts) = next(iter(unread.items()))
    told = license_of(facts.license)
    others = f"; so it is with {', '.join(list(unread)[1:6])}" if len(unread) > 1 else ""
    accepted = deployment.model.accept_license
    had = f", and accept_license says {accepted}" if accepted is not None else ""
    raise RefusedError(
        "config.license_not_accepted",
        f"deployment {name} serves {facts.model} under {told.phrase}{had}{others}",
        place=str(deployment.span) if deployment.span is not None else None,
        next_step=f"read {told.name}, then write accept_license: {facts.license} in the deployment, or serve another model",
        detail={"deployments": list(unread), "license": facts.license, "commercial_use": told.commercial},
    )


def _accepted(facts: ArtifactFacts, accepted: str | None) -> bool:
    return not license_of(facts.license).restrictive or (
        accepted is not None and accepted.lower() == facts.license.lower()
    )
