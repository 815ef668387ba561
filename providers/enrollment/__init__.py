"""`enrollment.H`: the enrollment server, on the one host that `fleet.identity.enroll` names.

Its keys are made on the host; the authority on the operator's machine signs for them, and its own keys stay there. It is no part of `runtime.H`:
it runs as an account of its own, changes without the runtime, and what fails of it fails alone.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from typing import ClassVar

from providers.enrollment import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["EnrollmentProvider"]


class EnrollmentProvider(OneForm):
    """Plans and changes the enrollment server of a host."""

    kind: ClassVar[str] = "enrollment"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    restore_spec = staticmethod(spec.restored)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)
