"""`origin.H/HOSTNAME`: one hostname of a host's API: its public model names and the deployments behind them. A member of `bundle.H`.

Its fingerprint is the member's digest, which the runtime reports for what it serves.
"""

# ruff: noqa: ARG002 - the protocol has one signature for all kinds

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from providers.origin import apply, changes, observe, spec
from providers.resource import OneForm
from sbctl.base.ids import Address
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Desired, Observed, Recorded

__all__ = ["OriginProvider"]


class OriginProvider(OneForm):
    """Plans the hostnames of a host's API, which its bundle carries."""

    kind: ClassVar[str] = "origin"
    desired = staticmethod(spec.desired)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        return observe.interpret(snapshot, address)

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"content_digest": desired.fingerprint}
