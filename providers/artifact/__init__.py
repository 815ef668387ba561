"""`artifact.H/MODEL:VARIANT`: the weights in one host's cache that its deployments need; deployments of a host share them.

Fetched before the bundle when a deployment asks for it (`pull: on_boot`, `warm`) or the host cannot fetch (`delivery: push`); otherwise the
row says what the first request will fetch. It leaves with the last deployment that needs it, unless the host keeps its weights.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from providers.artifact import apply, changes, observe, spec
from providers.resource import only_version
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step
from sbctl.provider import PerformContext

__all__ = ["ArtifactProvider"]


class ArtifactProvider:
    kind: ClassVar[str] = "artifact"
    record_version: ClassVar[int] = 1

    def desired(self, config: CompiledConfig) -> Iterable[Desired]:
        return spec.desired(config)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, recorded)

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        return changes.diff(desired, recorded, observed, context)

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        return apply.perform(step, context)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"artifact": desired.spec["facts"]["artifact"]}

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return only_version(self.kind, self.record_version, record, version)

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.fields_for_reader(full_spec)
