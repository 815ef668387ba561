"""`host.H`: the claim of one fleet on one machine, and nothing else.

Marking and giving up work by the bootstrap, without any program of ours on the host, so a host is claimed before the first wheel is sent
and given up after the last one is gone. Programs belong to `runtime.H`, which installs them before it activates.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from providers.host import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Desired, Observed, Recorded

__all__ = ["HostProvider"]


class HostProvider(OneForm):
    """Plans and changes whose a machine is."""

    kind: ClassVar[str] = "host"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, recorded)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"lineage": desired.spec["lineage"], "host": desired.host}
