"""One connection to one server of the store, as long as it lasts: the questions and answers, in our own errors. The only user of nats-py.

The server is proved by its name in its certificate, TLS 1.3 from the first byte; it may have no version that lacks what the buckets need.
Nothing is queued for a server that does not read, a listener that does not keep up is told that it missed something, and what a server sends
is bounded (`nats_wire`).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, SlowConsumerError

from sbctl.base.errors import RefusedError, SbctlError, UnreachableError
from sbctl.base.limits import MIB
from sbctl.node.store_server import LEAST_VERSION, parse_version
from sbctl.runtime.cluster.nats_wire import BoundedClient, answer_of, heard, nonsense
from sbctl.runtime.cluster.store import (
    VALUE_MAX_BYTES,
    Bucket,
    StoreConflictError,
    key_matches,
    outcome_unknown,
    store_unreachable,
)
from sbctl.runtime.cluster.store_answers import NO_MESSAGE, WRONG_SEQUENCE, check_quorum, fail, no_quorum
from sbctl.runtime.cluster.subjects import api_subject, changed_subject, inbox_prefix, write_subject
from sbctl.runtime.cluster.watching import Found, WatchBuffer

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

__all__ = ["BucketInfo", "Link", "StoreServer"]

_ANSWER_S: Final = 5.0
_READ_S: Final = 2.5
"""A question that changes nothing is better asked again, perhaps of a new leader."""
_CONNECT_S: Final = 5
_CLOSE_S: Final = 2
_PING_EVERY_S: Final = 5
_PINGS_UNANSWERED: Final = 2
_OUT_MAX_BYTES: Final = 16 * MIB
_LISTEN_MAX_BYTES: Final = 64 * MIB
_LISTEN_MAX_MESSAGES: Final = 65_536
_PAGE_KEYS: Final = 128
_PAGE_BYTES: Final = 4 * MIB
_TOMBSTONE_S: Final = 86_400
_DENIED: Final = re.compile(r'permissions violation for (?:publish|subscription) to "([^"]*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StoreServer:
    """An authority's server: whose certificate it shows, and where it is."""

    node_id: str
    address: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"tls://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BucketInfo:
    """`incarnation` is another one when the bucket was made anew."""

    incarnation: str
    last_sequence: int
    messages: int
    config: Mapping[str, Any]


class Link:
    """Made by `open`. `lost` is set once, when it is over; `why_lost` says why."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        self.lost = asyncio.Event()
        self.why_lost = "the connection was closed"
        self._client = BoundedClient()
        self._denied: dict[str, set[asyncio.Future[None]]] = {}
        self._listeners: dict[int, WatchBuffer] = {}

    @classmethod
    async def open(cls, server: StoreServer, context: ssl.SSLContext, *, node_id: str) -> Link:
        """As `node_id`, whom the certificate in `context` names. Raises UnreachableError `store.unreachable`, RefusedError `store.denied`, `store.too_old`."""
        link = cls(server)
        try:
            async with asyncio.timeout(2 * _CONNECT_S):
                await link._client.connect(
                    server.url,
                    name=node_id,
                    inbox_prefix=inbox_prefix(node_id),
                    tls=context,
                    tls_hostname=server.node_id,
                    tls_handshake_first=True,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=_CONNECT_S,
                    ping_interval=_PING_EVERY_S,
                    max_outstanding_pings=_PINGS_UNANSWERED,
                    pending_size=_OUT_MAX_BYTES,
                    error_cb=link._on_error,
                    closed_cb=link._on_closed,
                )
        except (NatsError, OSError, TimeoutError) as error:
            reason = link._client.last_error or error
            await link.close()
            raise _not_connected(server, reason) from None
        except BaseException:  # also that it is cancelled: a half-made connection would try again for ever
            await link.close()
            raise
        told = str(link._client.connected_server_version)
        version = parse_version(told)
        if version is None or version < LEAST_VERSION:
            await link.close()
            raise RefusedError(
                "store.too_old",
                f"the store's server on {server.node_id} is too old",
                place=told[:100],
                next_step="sbctl apply installs the version that is pinned",
            )
        return link

    async def close(self) -> None:
        self.lost.set()
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()

    # Questions

    async def write(
        self, bucket: Bucket, key: str, value: bytes | None, *, expected: int | None = None, ttl_s: int | None = None
    ) -> int:
        """None deletes. Raises StoreConflictError, and what `ClusterStore` says."""
        headers: dict[str, str] = {}
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        if value is None:
            headers["KV-Operation"] = "DEL"
            ttl_s = _TOMBSTONE_S
        if ttl_s is not None:
            headers["Nats-TTL"] = f"{ttl_s}s"
        try:
            answer = await self._ask(write_subject(bucket, key), value or b"", headers)
        except UnreachableError as error:
            if error.code == "store.no_quorum":
                raise
            raise outcome_unknown(bucket, key) from None
        failure = answer.get("error")
        if failure is not None:
            if failure.get("err_code") in WRONG_SEQUENCE:
                raise StoreConflictError(bucket, key)
            fail(failure, f"{bucket}/{key}")
        if not isinstance(answer.get("seq"), int):
            raise outcome_unknown(bucket, key)
        return int(answer["seq"])

    async def read(self, bucket: Bucket, key: str) -> Found | None:
        """The newest, from the leader."""
        asked = json.dumps({"last_by_subj": write_subject(bucket, key)}).encode()
        answer = await self._ask(api_subject("read", bucket), asked, timeout_s=_READ_S)
        failure = answer.get("error")
        if failure is not None:
            if failure.get("err_code") == NO_MESSAGE:
                return None
            fail(failure, bucket)
        try:
            message = answer["message"]
            headers = base64.b64decode(message.get("hdrs", ""), validate=True)
            value = base64.b64decode(message.get("data", ""), validate=True)
            is_good = b"KV-Operation:" not in headers and len(value) <= VALUE_MAX_BYTES[bucket]
            return key, int(message["seq"]), value if is_good else None
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, binascii.Error):
            raise nonsense() from None

    async def info(self, bucket: Bucket) -> BucketInfo:
        answer = await self._ask(api_subject("info", bucket), b"", timeout_s=_READ_S)
        if answer.get("error") is not None:
            fail(answer["error"], bucket)
        try:
            check_quorum(answer.get("cluster"))
            state = answer["state"]
            return BucketInfo(
                str(answer["created"]), int(state["last_seq"]), int(state["messages"]), dict(answer["config"])
            )
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            raise nonsense() from None

    async def make(self, what: str, bucket: Bucket, config: Mapping[str, Any]) -> None:
        """`create` or `update` a bucket."""
        answer = await self._ask(api_subject(what, bucket), json.dumps(config).encode(), timeout_s=3 * _ANSWER_S)
        if answer.get("error") is not None:
            fail(answer["error"], bucket)

    async def listing(self, bucket: Bucket, prefix: str) -> list[Found]:
        """All below `prefix`, as some member has it."""
        found: list[Found] = []
        try:
            inbox = self._client.new_inbox()
            subscription = await self._client.subscribe(inbox, pending_bytes_limit=_LISTEN_MAX_BYTES)
            try:
                await self._list(bucket, prefix, inbox, subscription, found)
            finally:
                with suppress(NatsError, OSError):
                    await subscription.unsubscribe()
        except (NatsError, OSError, TimeoutError) as error:
            raise self._unanswered(error) from None
        return [one for one in found if key_matches(prefix, one[0])]

    async def _list(
        self, bucket: Bucket, prefix: str, inbox: str, subscription: Subscription, found: list[Found]
    ) -> None:
        below = f"{prefix}>" if not prefix or prefix.endswith(".") else prefix
        position: int | None = 1
        while position is not None:
            page = {
                "seq": position,
                "batch": _PAGE_KEYS,
                "max_bytes": _PAGE_BYTES,
                "next_by_subj": write_subject(bucket, below),
            }
            await self._client.publish(api_subject("list", bucket), json.dumps(page).encode(), reply=inbox)
            following = await self._page(subscription, bucket, found)
            if following is not None and following <= position:
                raise nonsense()
            position = following

    async def _page(self, subscription: Subscription, bucket: Bucket, found: list[Found]) -> int | None:
        """Where the next page begins; None after the last."""
        last = 0
        while True:
            message = await subscription.next_msg(timeout=_READ_S)
            headers = message.headers or {}
            if headers.get("Status"):
                pending = headers.get("Nats-Num-Pending", "")
                more = headers["Status"] == "204" and pending.isdecimal() and pending.strip("0") != ""
                if headers["Status"] not in ("204", "404"):
                    raise store_unreachable(f"it refuses to list ({headers['Status'][:8]})")
                return last + 1 if more and last else None
            one = heard(message, bucket)
            if one is not None:
                if one[1] <= last:
                    raise nonsense()
                last = one[1]
                found.append(one)

    async def listen(self, bucket: Bucket, prefix: str, buffer: WatchBuffer) -> Callable[[], Any]:
        """Tell `buffer` what is written from now on; → what ends it."""
        subject = changed_subject(bucket, prefix)

        async def hear(message: Msg) -> None:
            one = heard(message, bucket)
            if one is not None and key_matches(prefix, one[0]):
                buffer.message(*one)

        try:
            subscription = await self._client.subscribe(
                subject, cb=hear, pending_msgs_limit=_LISTEN_MAX_MESSAGES, pending_bytes_limit=_LISTEN_MAX_BYTES
            )
            await self._client.flush(timeout=int(_ANSWER_S))
        except (NatsError, OSError, TimeoutError) as error:
            raise self._unanswered(error) from None
        self._listeners[subscription._id] = buffer

        async def end() -> None:
            self._listeners.pop(subscription._id, None)
            with suppress(NatsError, OSError):
                await subscription.unsubscribe()

        return end

    async def _ask(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None, *, timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        """One answer, as JSON. Raises UnreachableError, RefusedError `store.denied`."""
        denied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = self._denied.setdefault(subject.lower(), set())
        waiting.add(denied)
        request: asyncio.Task[Msg] = asyncio.create_task(
            self._client.request(subject, payload, timeout=timeout_s, headers=dict(headers) if headers else None)
        )
        try:
            await asyncio.wait([request, denied], return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise RefusedError(
                    "store.denied",
                    "the store lets this node do no such thing: a node writes under its own name only",
                    place=subject[:200],
                )
            return answer_of(request.result().data)
        except (NatsError, OSError, TimeoutError) as error:
            raise self._unanswered(error) from None
        finally:
            request.cancel()
            waiting.discard(denied)
            if not waiting and self._denied.get(subject.lower()) is waiting:
                del self._denied[subject.lower()]

    # What the client tells

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            buffer = self._listeners.get(error.sid)
            if buffer is not None:
                buffer.missed()
            return
        denied = _DENIED.search(str(error))
        if denied is not None:
            # The server tells names in lower case, and to nobody in particular.
            for waiting in self._denied.pop(denied[1].lower(), ()):
                if not waiting.done():
                    waiting.set_result(None)
            return
        self.why_lost = str(error)[:200]

    async def _on_closed(self) -> None:
        self._end()

    def _unanswered(self, error: BaseException) -> UnreachableError:
        """The client may be closed without having told so: its own end may fail on a connection that is gone."""
        if self._client.is_closed and not self.lost.is_set():
            self._end()
        return _no_answer(error)

    def _end(self) -> None:
        self.lost.set()
        for buffer in self._listeners.values():
            buffer.missed()


def _not_connected(server: StoreServer, error: BaseException) -> SbctlError:
    if "authorization violation" in str(error).lower():
        return RefusedError(
            "store.denied",
            "the store does not know this node: it is not one of the cluster's, or was revoked",
            place=server.node_id,
            next_step="sbctl apply tells the store which nodes there are",
        )
    why = str(error) or type(error).__name__
    return store_unreachable(f"{server.node_id} at {server.address}:{server.port}: {why[:200]}")


def _no_answer(error: BaseException) -> UnreachableError:
    if isinstance(error, NoRespondersError):
        return no_quorum("nobody leads it")
    return store_unreachable("no answer in time" if isinstance(error, TimeoutError) else str(error)[:200])
