"""A caller's requests and tokens against the limits of its key. Tokens are estimated when a request arrives and settled when it is over.

The estimate is a token for each four characters of the prompt and the bound that the caller set. A caller that leaves before the engine
has counted is charged for the prompt and for what had arrived by then.
"""

from __future__ import annotations

from typing import Final

from sbctl.runtime.gateway.asked import Asked
from sbctl.runtime.gateway.form import AskedForm
from sbctl.runtime.gateway.ports import Keys
from sbctl.runtime.gateway.relay import Relay
from sbctl.runtime.loop_time import LoopTime
from sbctl.runtime.routes import Caller

__all__ = ["Accounts", "estimated_tokens", "used_tokens"]

_CHARS_A_TOKEN: Final = 4
_BYTES_AN_EVENT: Final = 256
"""Engines write about so many for one token."""


class Accounts:
    """Callers without a key, and keys without limits, pass."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._now_s = LoopTime()

    def take(self, caller: Caller) -> None:
        """One request. Raises SbctlError `rate_limited`."""
        if caller.name is not None and caller.entry is not None:
            self._keys.take(caller.name, caller.entry, now_s=self._now_s())

    def lines(self, caller: Caller | None) -> str:
        """What the caller is told of its limits, as it stands in a head."""
        if caller is None or caller.name is None or caller.entry is None:
            return ""
        return self._keys.lines(caller.name, caller.entry, now_s=self._now_s())

    def reserve(self, caller: Caller, asked: Asked | AskedForm) -> int:
        """Tokens; 0 where there is nothing to settle. Raises SbctlError `rate_limited`."""
        if caller.name is None or caller.entry is None or caller.entry.tokens_per_minute is None:
            return 0
        return self._keys.reserve(caller.name, caller.entry, estimated_tokens(asked), now_s=self._now_s())

    def settle(self, caller: Caller, reserved: int, used: int) -> None:
        if caller.name is not None and caller.entry is not None:
            self._keys.settle(caller.name, caller.entry, reserved=reserved, used=used, now_s=self._now_s())


def estimated_tokens(asked: Asked | AskedForm) -> int:
    """At least 1."""
    if isinstance(asked, AskedForm):
        return 1
    return _prompt_tokens(asked) + (asked.tokens_asked or 0)


def _prompt_tokens(asked: Asked) -> int:
    return max(1, sum(map(len, asked.prompts())) // _CHARS_A_TOKEN)


def used_tokens(asked: Asked | AskedForm, relay: Relay | None, *, left: bool) -> int:
    """`relay` is that of the last engine that was asked; `left`: the caller did not wait for the end. 0 where nothing was computed."""
    if relay is None:
        return 0
    if relay.usage is not None:
        return relay.usage.prompt_tokens + relay.usage.completion_tokens
    if not left and relay.first_byte_s is None:
        return 0
    prompt = 1 if isinstance(asked, AskedForm) else _prompt_tokens(asked)
    return prompt + relay.received_bytes // _BYTES_AN_EVENT
