"""`certificate.H`: who a host is in its cluster: key, certificate, identity document, trusted CAs, revocations.

The private key is made on the host and never leaves it; the operator's machine signs. Every certificate has an identity epoch of its own, so
whatever changes who the host is, and every renewal, is the next epoch.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from typing import ClassVar

from providers.certificate import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Observed, Recorded

__all__ = ["CertificateProvider"]


class CertificateProvider(OneForm):
    """Plans and changes the identity of a host."""

    kind: ClassVar[str] = "certificate"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    restore_spec = staticmethod(spec.restored)
    shown_spec = staticmethod(spec.fields_for_reader)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot)
