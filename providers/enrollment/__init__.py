"""`enrollment.H`: the enrollment server, on the one host that `fleet.identity.enroll` names.

Its keys are made on the host; the authority on the operator's machine signs for them, and its own keys stay there. It is no part of `runtime.H`:
it runs as an account of its own, changes without the runtime, and what fails of it fails alone.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from providers.enrollment import apply, changes, observe, spec
from providers.resource import only_version
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step
from sbctl.provider import PerformContext

__all__ = ["EnrollmentProvider"]


class EnrollmentProvider:
    kind: ClassVar[str] = "enrollment"
    record_version: ClassVar[int] = 1

    def desired(self, config: CompiledConfig) -> Iterable[Desired]:
        return spec.desired(config)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)

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

    def restore_spec(self, snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.restored(snapshot_spec, recorded_spec)

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.fields_for_reader(full_spec)
