"""`artifact.H/MODEL:VARIANT`: the weights in one host's cache that its deployments need; deployments of a host share them.

Fetched before the bundle when a deployment asks for it (`pull: on_boot`, `warm`) or the host cannot fetch (`delivery: push`); otherwise the
row says what the first request will fetch. It leaves with the last deployment that needs it, unless the host keeps its weights.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from providers.artifact import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Desired, Observed, Recorded

__all__ = ["ArtifactProvider"]


class ArtifactProvider(OneForm):
    """Plans and changes the weights in a host's cache."""

    kind: ClassVar[str] = "artifact"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, recorded)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"artifact": desired.spec["facts"]["artifact"]}
