"""One request on its way through the gateway."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbctl.runtime.admission import Priority
from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.connection import ClientConnection
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.ports import Served
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.surface import Operation
from sbctl.runtime.generation import Generation
from sbctl.runtime.replica import Replica
from sbctl.runtime.routes import Caller
from sbctl.trust.bundle import StandIn

__all__ = ["Request"]


@dataclass(slots=True)
class Request:
    """What is known of it so far. Loop times in seconds."""

    operation: Operation
    asked: Asked | AskedForm
    host: str
    caller: Caller
    id: str
    client: ClientConnection
    began_s: float
    reserved: int = 0
    """Tokens of the caller's key, to be settled."""
    no_training: bool = False
    """The caller's prompts go to nobody who may train on them."""
    way: tuple[str, ...] | None = ()
    """The gateways that it went through, this one last; None where it may not be led to another."""
    admitted_s: float | None = None
    name: str = ""
    served: Served | None = None
    """The deployment that answers, wherever it runs."""
    generation: Generation | None = None
    """Of it, where this host's own replicas are asked."""
    stand_ins: tuple[StandIn, ...] = ()
    """Who is asked after the deployment of the public name."""
    instead: str | None = None
    """The deployment that is asked now, where it is not that of the public name."""
    failed: set[Replica] = field(default_factory=set)
    relay: Relay | None = None
    """Of whoever was asked last."""
    elsewhere: bool = False
    """An external provider was asked."""

    @property
    def priority(self) -> Priority:
        return self.caller.entry.priority if self.caller.entry is not None else "standard"
