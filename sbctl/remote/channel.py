"""The node interface over one open channel: hello first, then one request after another, each with its progress and exactly one answer.

A channel that breaks while an answer is awaited says nothing about the work that was asked: `ChannelBroken` carries the cause, and the
session turns it into `host.outcome_unknown` for whatever can change the host.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.progress import tell_words
from sbctl.base.secret import Secret
from sbctl.node.frames import encode_frame, read_frame
from sbctl.node.messages import PROTOCOL_VERSION
from sbctl.remote.transport import Channel, ChannelBroken, Progress, foreign_error, foreign_text, lost, timed_out

__all__ = ["NodeChannel", "NodeMissing"]

_HELLO_STATUS_WAIT_S = 2.0
_NOTE_MAX_CHARS = 1024
_CANNOT_EXECUTE = (126, 127)


class NodeMissing(Exception):  # noqa: N818
    """The program of the node interface, or its interpreter, is not there (any more)."""


class NodeChannel:
    """One user at a time. After any exception but the answered error the channel is closed."""

    def __init__(self, channel: Channel, *, place: str, clock: Clock, deadline_s: float) -> None:
        """Wait for the hello. Raises NodeMissing, UnreachableError, HostError `node.start_failed`, `node.protocol_mismatch`."""
        self._channel = channel
        self._place = place
        self._clock = clock
        self._next_id = 0
        self.open = True
        try:
            self.version = self._hello(deadline_s)
        except BaseException:
            self.close()
            raise

    def request(
        self,
        method: str,
        params: Mapping[str, Any],
        secrets: Mapping[str, Secret],
        *,
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """The answer's result. Raises the error the host answered, or ChannelBroken. What `progress` raises cancels and closes."""
        deadline = self._clock.monotonic_s() + deadline_s
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": dict(params)}
        if secrets:
            message["secrets"] = {
                name: base64.b64encode(value.reveal()).decode("ascii") for name, value in secrets.items()
            }
        try:
            answer = self._exchange(encode_frame(message), deadline, deadline_s, progress)
        except BaseException:
            self.close()
            raise
        if isinstance(answer, SbctlError):
            raise answer
        return answer

    def close(self) -> None:
        """End the node process; a request that runs is cancelled there."""
        if self.open:
            self.open = False
            self._channel.close()

    def _exchange(
        self, frame: bytes, deadline: float, deadline_s: float, progress: Progress
    ) -> Mapping[str, Any] | SbctlError:
        try:
            self._channel.send(frame, deadline_s)
        except TimeoutError as error:
            raise ChannelBroken(timed_out(self._place, deadline_s), sent=False) from error
        except OSError as error:
            raise ChannelBroken(lost(self._place), sent=False) from error
        while True:
            message = self._read(deadline, deadline_s)
            if message.get("id") != self._next_id:
                raise ChannelBroken(self._nonsense("an answer to a question that was not asked"), sent=True)
            if isinstance(message.get("result"), dict):
                result: Mapping[str, Any] = message["result"]
                return result
            if isinstance(message.get("error"), dict):
                return foreign_error(message["error"], self._place)
            step = message.get("progress")
            if not isinstance(step, dict):
                raise ChannelBroken(self._nonsense("a message without result, error or progress"), sent=True)
            done, total = step.get("done"), step.get("total")
            if isinstance(done, int):
                progress(done, total if isinstance(total, int) else None)
                tell_words(progress, foreign_text(str(step.get("note") or ""), max_chars=_NOTE_MAX_CHARS))

    def _read(self, deadline: float, deadline_s: float) -> dict[str, Any]:
        try:
            message = read_frame(lambda count: self._channel.receive(count, deadline - self._clock.monotonic_s()))
        except TimeoutError as error:
            raise ChannelBroken(timed_out(self._place, deadline_s), sent=True) from error
        except OSError as error:
            raise ChannelBroken(lost(self._place), sent=True) from error
        except HostError as error:
            cause = lost(self._place) if error.code == "frame.closed" else self._nonsense(error.message)
            raise ChannelBroken(cause, sent=True) from error
        if message is None:
            raise ChannelBroken(self._gone(), sent=True)
        return message

    def _hello(self, deadline_s: float) -> str:
        try:
            hello = self._read(self._clock.monotonic_s() + deadline_s, deadline_s).get("hello")
        except ChannelBroken as broken:
            status = self._channel.ended(_HELLO_STATUS_WAIT_S)
            if status in _CANNOT_EXECUTE:
                raise NodeMissing from broken
            raise broken.cause from broken
        protocol = hello.get("protocol") if isinstance(hello, dict) else None
        version = hello.get("version") if isinstance(hello, dict) else None
        if not isinstance(protocol, int) or not isinstance(version, str):
            raise self._nonsense("its first message is not a hello")
        if protocol != PROTOCOL_VERSION:
            older = protocol < PROTOCOL_VERSION
            raise HostError(
                "node.protocol_mismatch",
                f"the runtime on the host ({foreign_text(version, max_chars=40)}) speaks version {protocol} of the node interface,"
                f" this sbctl version {PROTOCOL_VERSION}",
                place=self._place,
                next_step="use the sbctl that installed it to upgrade it" if older else "use a newer sbctl",
            )
        return version

    def _gone(self) -> SbctlError:
        """The stream ended between two frames: the process ended by itself, or the connection did."""
        status = self._channel.ended(_HELLO_STATUS_WAIT_S)
        said = foreign_text(self._channel.stderr_tail())
        if status is None and not said:
            return lost(self._place)
        ended = "ended" if status is None else f"ended with status {status}"
        what = f"the node interface {ended}" + (f": {said}" if said else "")
        if self._next_id:
            return HostError("node.ended", what, place=self._place, next_step="run the command again", retryable=True)
        return HostError(
            "node.start_failed",
            what,
            place=self._place,
            next_step="if the programs there are damaged, remove the runtime's version directory; the next apply installs it again",
        )

    def _nonsense(self, what: str) -> HostError:
        return HostError(
            "node.protocol_error",
            f"the node interface sent {what}",
            place=self._place,
            next_step="run the command again: the host is read before anything is done; if it stays so, look what runs there",
        )
