"""When somebody else answers instead of a deployment, and what they get of the request.

Only before the first byte of an answer, only when the fault is on our side (cold, full, failed, stopped), never for what the caller did
wrong or may not do. A caller that says `x-sbproxy-disallow-prompt-training` is led to providers with `no_prompt_training` only.
"""

from __future__ import annotations

from typing import Final, Protocol

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.external.providers import Question
from sbctl.runtime.gateway.answers import public_code
from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.relay import Relay
from sbctl.trust.bundle import ExternalMember, LocalStandIn, OriginMember, StandIn

__all__ = ["Externals", "disallows_training", "is_our_fault", "provider_body", "stand_ins"]

_DISALLOW: Final = b"x-sbproxy-disallow-prompt-training"


class Externals(Protocol):
    """Who asks external providers."""

    async def ask(self, member: ExternalMember, question: Question) -> Relay:
        """Raises InputError for what the caller did wrong, EngineError `upstream_failed` when this provider cannot answer now."""
        ...


def is_our_fault(error: SbctlError) -> bool:
    return HTTP_STATUS.status(public_code(error)) >= 500


def disallows_training(head: RequestHead) -> bool:
    """Whatever the header says but a plain no counts as yes."""
    said = head.text(_DISALLOW)
    return said is not None and said.strip().lower() not in ("", "0", "false", "no")


def stand_ins(origin: OriginMember, name: str, *, no_training: bool) -> tuple[StandIn, ...]:
    """Who may answer for a public model name, in order. A deployment of this runtime always may."""
    return tuple(
        member
        for member in origin.stand_ins
        if name in member.models and (isinstance(member, LocalStandIn) or member.no_prompt_training or not no_training)
    )


def provider_body(asked: Asked | AskedForm, *, model: str) -> tuple[bytes, str]:
    """The body and its content type."""
    if isinstance(asked, AskedForm):
        return asked.for_engine(model=model)
    return asked.for_provider(model=model), "application/json"
