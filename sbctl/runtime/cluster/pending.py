"""What a node was assigned and does not run yet."""

from __future__ import annotations

from dataclasses import dataclass

from sbctl.base.errors import SbctlError
from sbctl.runtime.staying import AssignedAs
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Pending"]


@dataclass(frozen=True, slots=True)
class Pending:
    """One deployment. `error`: why it did not come up; it is tried again."""

    deployment: str
    member: DeploymentMember
    assigned: AssignedAs
    error: SbctlError | None = None
