"""`store.H`: the cluster's store on an authority's host; one of them, or three.

Stores change one after another, by name, each only when the one before is an up-to-date member again: their resources stand on each other. The
host itself makes sure of the quorum before it restarts its own.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from typing import ClassVar

from providers.resource import OneForm
from providers.store import apply, changes, observe, spec
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["StoreProvider"]


class StoreProvider(OneForm):
    """Plans and changes the cluster's store on a host."""

    kind: ClassVar[str] = "store"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    restore_spec = staticmethod(spec.restored)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)
