"""`deployment.H/ID`: one model to serve on one host. A member of `bundle.H`: planned row by row, applied only by it.

Its fingerprint is the member's digest, which the runtime reports for what it serves. Stopped by an operator is drift; unloaded because
nobody asked for it, or failed, is not: the one is as planned, the other is status.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from providers.deployment import apply, changes, observe, spec
from providers.resource import only_version
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step
from sbctl.provider import PerformContext

__all__ = ["DeploymentProvider"]


class DeploymentProvider:
    kind: ClassVar[str] = "deployment"
    record_version: ClassVar[int] = 1

    def desired(self, config: CompiledConfig) -> Iterable[Desired]:
        return spec.desired(config)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, address)

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        return changes.diff(desired, recorded, observed, context)

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        return apply.perform(step, context)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"content_digest": desired.fingerprint}

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return only_version(self.kind, self.record_version, record, version)

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.fields_for_reader(full_spec)
