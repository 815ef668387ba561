"""`deployment.H/ID`: one model to serve on one host. A member of `bundle.H`: planned row by row, applied only by it.

Its fingerprint is the member's digest, which the runtime reports for what it serves. Stopped by an operator is drift; unloaded because
nobody asked for it, or failed, is not: the one is as planned, the other is status.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from providers.deployment import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Desired, Observed, Recorded

__all__ = ["DeploymentProvider"]


class DeploymentProvider(OneForm):
    """Plans the deployments of a scope, which its bundle carries."""

    kind: ClassVar[str] = "deployment"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, address)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"content_digest": desired.fingerprint}
