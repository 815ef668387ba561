"""`engine.H/KIND`: the engine builds that the deployments of one host need.

From a pinned wheel: installed by us, beside other versions, removed when nobody needs the kind. As a program of the host (`path:`, or
llama-server on PATH): only looked at; what is missing or has another version blocks the apply before its first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from providers.engine import apply, changes, observe, spec
from providers.resource import only_version
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step
from sbctl.provider import PerformContext

__all__ = ["EngineProvider"]


class EngineProvider:
    kind: ClassVar[str] = "engine"
    record_version: ClassVar[int] = 1

    def desired(self, config: CompiledConfig) -> Iterable[Desired]:
        return spec.desired(config)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, address, recorded)

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        return changes.diff(desired, recorded, observed, context)

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        return apply.perform(step, context)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return apply.record(desired, results)

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return only_version(self.kind, self.record_version, record, version)

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.fields_for_reader(full_spec)
