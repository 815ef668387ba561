"""An engine's answer on its way back, in one of three ways: events as they come, one document, or bytes as they come.

Until the first byte has gone to the caller a failure is only an error, and somebody may try another replica. After it a stream that breaks
ends with one error event, without `[DONE]`, and with the end of the connection; it is never replayed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from sbctl.base.errors import EngineError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.gateway.answers import JSON_LINE, Answer, compact, error_document, header_lines
from sbctl.runtime.gateway.asking import Ending
from sbctl.runtime.gateway.assemble import has_end, whole_answer
from sbctl.runtime.gateway.events import EventStream, Usage, engine_error, renamed_document
from sbctl.runtime.gateway.ports import Client

__all__ = ["BytesRelay", "DocumentRelay", "Relay", "StreamRelay", "WholeRelay"]

_ANSWER_MAX_BYTES: Final = 64 * MIB
_ERROR_MAX_BYTES: Final = 64 * 1024
_EVENTS_LINES: Final = b"Content-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n"


class Relay:
    """Takes one answer of an engine (`upstream.AnswerSink`). `ending` comes when the caller has it or why there is none is known."""

    begun = False
    """A byte of the answer has gone to the caller."""
    first_byte_s: float | None = None
    """Loop time of the engine's first byte of an answer."""
    received_bytes = 0
    """Of an answer, so far."""
    usage: Usage | None = None
    problem: SbctlError | None = None
    """Why a begun answer broke."""
    _refused: bytearray | None = None
    _status = 0

    def __init__(self, client: Client, lines: bytes, progressed: Callable[[], None], *, request_id: str) -> None:
        self._client = client
        self._lines = lines
        self._progressed = progressed
        self._request_id = request_id
        self.ending = Ending()

    @property
    def heard(self) -> bool:
        """Whether the engine answered anything."""
        return self._status != 0

    @property
    def is_satisfied(self) -> bool:
        """Whether the engine did all that was asked of it: its connection may be kept."""
        return self.ending.is_over and self.problem is None and self.ending.error is None

    # What each way does its own way

    def _accepts(self, fields: Mapping[bytes, bytes]) -> None:
        """A head with status 200."""

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """The answer is complete as HTTP."""
        raise NotImplementedError

    # AnswerSink

    def head(self, status: int, fields: dict[bytes, bytes]) -> None:
        self._status = status
        if status == 200:
            self._accepts(fields)
        else:
            self._refused = bytearray()

    def data(self, data: bytes) -> None:
        self._progressed()
        if self._refused is not None:
            if len(self._refused) < _ERROR_MAX_BYTES:
                self._refused += data
            return
        self.received_bytes += len(data)
        if self.first_byte_s is None:
            self.first_byte_s = asyncio.get_running_loop().time()
        try:
            self._take(data)
        except SbctlError as error:
            self._fail(error)

    def end(self) -> None:
        if self.ending.is_over:
            return
        try:
            if self._refused is not None:
                raise engine_error(self._status, _document(self._refused))
            self._close()
        except SbctlError as error:
            self._fail(error)

    def broke(self, why: str) -> None:
        self._fail(EngineError("upstream_failed", why, retryable=True))

    # Ends

    def _fail(self, error: SbctlError) -> None:
        if self.ending.is_over:
            return
        if not self.begun:
            self.ending.end(error)
            return
        self.problem = error
        self._client.finish(broken=True, told=self._tell(error))
        self.ending.end()

    def _tell(self, error: SbctlError) -> bool:  # noqa: ARG002 - most forms have no place for it
        """Say in a begun answer that it broke, where its form has a place for that; whether it has."""
        return False

    def _whole(self, body: bytes, type_line: bytes = JSON_LINE) -> None:
        self.begun = True
        self._client.answer(Answer(200, body, type_line + self._lines))
        self.ending.end()


class StreamRelay(Relay):
    """Events as they come."""

    def __init__(
        self,
        client: Client,
        lines: bytes,
        progressed: Callable[[], None],
        *,
        request_id: str,
        model: str,
        keeps_usage: bool,
    ) -> None:
        super().__init__(client, lines, progressed, request_id=request_id)
        self._events = EventStream(model, keeps_usage=keeps_usage)
        self._ends_blank = False

    def _take(self, data: bytes) -> None:
        if self.ending.is_over:
            return
        block = self._events.feed(data)
        is_done = self._events.is_done
        if is_done and not block.endswith(b"\n\n"):
            block += b"\n"
        if block:
            if not self.begun:
                self.begun = True
                self._client.begin(200, _EVENTS_LINES + self._lines)
            self._client.write(block)
        if is_done:
            self.usage = self._events.usage
            self._client.finish()
            self.ending.end()

    def _close(self) -> None:
        raise EngineError("upstream_failed", "the engine closed the stream early", retryable=True)

    def _tell(self, error: SbctlError) -> bool:
        self._client.write(b"data: " + compact(error_document(error, self._request_id)) + b"\n\n")
        return True


class WholeRelay(Relay):
    """One document, put together from the events that the engine was asked for. They are read at the end, all at once."""

    def __init__(
        self, client: Client, lines: bytes, progressed: Callable[[], None], *, request_id: str, model: str
    ) -> None:
        super().__init__(client, lines, progressed, request_id=request_id)
        self._model = model
        self._stream = bytearray()
        self._looked = 0
        """Where the first line begins that may tell of the end."""

    def _take(self, data: bytes) -> None:
        if self.ending.is_over:
            return
        self._stream += data
        if len(self._stream) > _ANSWER_MAX_BYTES:
            raise EngineError("upstream_failed", "the engine's answer has no end")
        if b"\n" not in data:
            return
        is_over, self._looked = has_end(self._stream, self._looked)
        if is_over:
            document, self.usage = whole_answer(bytes(self._stream))
            self._whole(compact({**document, "model": self._model}))

    def _close(self) -> None:
        whole_answer(bytes(self._stream))
        raise EngineError("upstream_failed", "the engine closed the stream early", retryable=True)


class DocumentRelay(Relay):
    """One document that the engine writes at once."""

    def __init__(
        self, client: Client, lines: bytes, progressed: Callable[[], None], *, request_id: str, model: str
    ) -> None:
        super().__init__(client, lines, progressed, request_id=request_id)
        self._model = model
        self._body = bytearray()

    def _take(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > _ANSWER_MAX_BYTES:
            raise EngineError("upstream_failed", "the engine's answer has no end")

    def _close(self) -> None:
        body, self.usage = renamed_document(bytes(self._body), self._model)
        self._whole(body)


class BytesRelay(Relay):
    """Whatever it is (sound, text), as it comes. An answer that breaks just ends, with the connection."""

    def _accepts(self, fields: Mapping[bytes, bytes]) -> None:
        kind = fields.get(b"content-type", b"application/octet-stream").decode("latin-1")
        kind = kind if kind.isprintable() and len(kind) <= 128 else "application/octet-stream"
        self._type_line = header_lines({"Content-Type": kind})

    def _take(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            self._client.begin(200, self._type_line + self._lines)
        self._client.write(data)

    def _close(self) -> None:
        if not self.begun:
            self._whole(b"", self._type_line)
            return
        self._client.finish()
        self.ending.end()


def _document(data: bytes | bytearray) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
