"""`bundle.H`: all that one host's runtime should serve, as one signed, numbered document.

Its members, `deployment.H/*` and `origin.H/*`, are planned row by row and applied only here. What belongs to no member (API keys, whether
callers need one, the key epoch) is the bundle's own.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from providers.bundle import apply, changes, cluster, observe, spec
from providers.resource import only_version
from sbctl.base.ids import Address
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step
from sbctl.provider import PerformContext

__all__ = ["BundleProvider"]


class BundleProvider:
    kind: ClassVar[str] = "bundle"
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

    def merge_spec(
        self,
        recorded_spec: Mapping[str, Any] | None,
        desired_spec: Mapping[str, Any] | None,
        selected_members: Collection[Address],
        own_fields: bool,
    ) -> Mapping[str, Any]:
        return spec.merged(recorded_spec, desired_spec, selected_members, own_fields)

    def document_of(self, full_spec: Mapping[str, Any]) -> str | None:
        return str(full_spec[cluster.CLUSTER]) if cluster.is_cluster(full_spec) else None

    def revision_of(self, record: Mapping[str, Any]) -> int:
        return int(record.get("revision") or 0)

    def restore_spec(self, snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.restored(snapshot_spec, recorded_spec)

    def shown_spec(self, full_spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return spec.own_fields_for_reader(full_spec)
