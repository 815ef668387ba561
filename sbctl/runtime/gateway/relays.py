"""Which relay takes an answer: by what the operation answers, and by what the caller asked for."""

from __future__ import annotations

from collections.abc import Callable

from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.ports import Client
from sbctl.runtime.gateway.relay import BytesRelay, DocumentRelay, Relay, StreamRelay, WholeRelay
from sbctl.runtime.gateway.surface import Operation

__all__ = ["relay_for"]


def relay_for(
    operation: Operation,
    asked: Asked | AskedForm,
    client: Client,
    progressed: Callable[[], None],
    *,
    lines: bytes,
    request_id: str,
    model: str,
    writes_whole: bool = False,
) -> Relay:
    """`lines`: of the answer's head; `model`: the public name; `writes_whole`: who is asked was asked for a stream only if the caller wants one."""
    if operation.answers == "bytes" or isinstance(asked, AskedForm):
        return BytesRelay(client, lines, progressed, request_id=request_id)
    if operation.answers == "json" or (writes_whole and not asked.wants_stream):
        return DocumentRelay(client, lines, progressed, request_id=request_id, model=model)
    if not asked.wants_stream:
        return WholeRelay(client, lines, progressed, request_id=request_id, model=model)
    return StreamRelay(client, lines, progressed, request_id=request_id, model=model, keeps_usage=asked.wants_usage)
