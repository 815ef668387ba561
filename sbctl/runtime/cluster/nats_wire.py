"""What a server of the store may send at most, and how its words are read: a server that misbehaves costs its connection, never memory or a task."""

from __future__ import annotations

import json
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from sbctl.base.limits import KIB, MIB
from sbctl.runtime.cluster.store import VALUE_MAX_BYTES, Bucket, store_unreachable
from sbctl.runtime.cluster.watching import Found

__all__ = ["BoundedClient", "answer_of", "heard", "nonsense"]

_MESSAGE_MAX_BYTES: Final = 16 * MIB
"""A value of eight as the text of an answer."""
_LINE_MAX_BYTES: Final = 256 * KIB


class _BoundedParser(Parser):
    """Ends the connection to a server that announces more than any message of the store has, or a line without an end."""

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        if self.needed > _MESSAGE_MAX_BYTES or len(self.buf) > max(_LINE_MAX_BYTES, self.needed + KIB):
            raise ProtocolError


class BoundedClient(Client):
    def __init__(self) -> None:
        super().__init__()
        self._ps = _BoundedParser(self)


def answer_of(data: bytes) -> dict[str, Any]:
    """One answer of the server's interface; `error`, where it has one, is a mapping with a number. Raises UnreachableError `store.unreachable`."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        raise nonsense() from None
    failure = answer.get("error") if isinstance(answer, dict) else "none"
    if failure is not None and not (isinstance(failure, dict) and isinstance(failure.get("err_code", 0), int)):
        raise nonsense()
    return dict(answer)


def nonsense() -> Exception:
    return store_unreachable("its answer makes no sense")


def heard(message: Msg, bucket: Bucket) -> Found | None:
    """A stored message; None for anything else. A value that is larger than the bucket takes is none."""
    headers = message.headers or {}
    start = f"$KV.{bucket}."
    subject, sequence = headers.get("Nats-Subject", ""), headers.get("Nats-Sequence", "")
    if not subject.startswith(start) or not (sequence.isascii() and sequence.isdecimal()):
        return None
    gone = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
    is_good = not gone and len(message.data) <= VALUE_MAX_BYTES[bucket]
    return subject.removeprefix(start), int(sequence[:20]), message.data if is_good else None
