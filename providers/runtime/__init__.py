"""`runtime.H`: the daemon of one host: its version, its configuration, whose bundles it accepts, and that it runs.

What the runtime serves is not here: that is the bundle. A change of anything here restarts the runtime, except a new signer.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from typing import ClassVar

from providers.resource import OneForm
from providers.runtime import apply, changes, observe, spec
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["RuntimeProvider"]


class RuntimeProvider(OneForm):
    """Plans and changes the daemon of a host."""

    kind: ClassVar[str] = "runtime"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    restore_spec = staticmethod(spec.restored)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)
