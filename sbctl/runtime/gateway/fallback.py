"""When somebody else answers instead of a deployment, and what they get of the request.

Only before the first byte of an answer, only when the fault is on our side (cold, full, failed, stopped), never for what the caller did
wrong or may not do. A caller that says `x-sbproxy-disallow-prompt-training` is led to providers with `no_prompt_training` only.

Two gateways may name each other as providers, or one itself. So a request to a provider says whose hands it went through
(`x-sbproxy-via`), and one that comes back here, or went through eight, is led to no provider again.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from sbctl.base.errors import HTTP_STATUS, SbctlError
from sbctl.runtime.external.providers import Question
from sbctl.runtime.gateway.answers import public_code
from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.head import RequestHead
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.gateway.request import Request
from sbctl.trust.bundle import ExternalMember, LocalStandIn, OriginMember, StandIn

__all__ = ["Externals", "disallows_training", "is_our_fault", "provider_body", "stand_ins", "way_of"]

_DISALLOW: Final = b"x-sbproxy-disallow-prompt-training"
_VIA: Final = b"x-sbproxy-via"
_VIA_RE: Final = re.compile(r"[0-9a-f]{16}(?:, [0-9a-f]{16}){0,15}")
_WAY_MAX: Final = 8


class Externals(Protocol):
    """Who asks external providers."""

    async def ask(self, member: ExternalMember, question: Question) -> Relay:
        """Raises InputError for what the caller did wrong, EngineError `upstream_failed` when this provider cannot answer now."""
        ...

    def may_answer(self, member: ExternalMember) -> bool:
        """Whether it would be asked now: it is not left alone, and one of its keys does not rest."""
        ...


def is_our_fault(error: SbctlError) -> bool:
    return HTTP_STATUS.status(public_code(error)) >= 500


def disallows_training(head: RequestHead) -> bool:
    """Whatever the header says but a plain no counts as yes."""
    said = head.text(_DISALLOW)
    return said is not None and said.strip().lower() not in ("", "0", "false", "no")


def way_of(head: RequestHead, own: str) -> tuple[str, ...] | None:
    """Which gateways the request went through, each by the name that it gave itself when it started, and `own` as the last; None where it
    goes in a circle, or went through too many. What is not written as a gateway writes it says nothing."""
    said = head.text(_VIA)
    before = tuple(said.split(", ")) if said is not None and _VIA_RE.fullmatch(said) else ()
    return None if own in before or len(before) >= _WAY_MAX else (*before, own)


def stand_ins(origin: OriginMember, request: Request) -> tuple[StandIn, ...]:
    """Who may answer for the public name of a request, in order. A deployment of this runtime always may."""

    def may(member: ExternalMember) -> bool:
        return request.way is not None and (member.no_prompt_training or not request.no_training)

    return tuple(
        member
        for member in origin.stand_ins
        if request.name in member.models and (isinstance(member, LocalStandIn) or may(member))
    )


def provider_body(asked: Asked | AskedForm, *, model: str) -> tuple[bytes, str]:
    """The body and its content type."""
    if isinstance(asked, AskedForm):
        return asked.for_engine(model=model)
    return asked.for_provider(model=model), "application/json"
