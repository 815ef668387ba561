"""`bundle.H`: all that one host's runtime should serve, as one signed, numbered document.

Its members, `deployment.H/*` and `origin.H/*`, are planned row by row and applied only here. What belongs to no member (API keys, whether
callers need one, the key epoch) is the bundle's own.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from providers.bundle import apply, changes, cluster, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["BundleProvider"]


class BundleProvider(OneForm):
    """Plans a scope's signed desired state, and has it accepted."""

    kind: ClassVar[str] = "bundle"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    merge_spec = staticmethod(spec.merged)
    restore_spec = staticmethod(spec.restored)
    shown_spec = staticmethod(spec.own_fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)

    def document_of(self, full_spec: Mapping[str, Any]) -> str | None:
        return str(full_spec[cluster.CLUSTER]) if cluster.is_cluster(full_spec) else None

    def revision_of(self, record: Mapping[str, Any]) -> int:
        return int(record.get("revision") or 0)
