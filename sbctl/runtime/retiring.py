"""Generations that are not desired any more, from their last request until nothing of them is left on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from sbctl.base.errors import SbctlError
from sbctl.runtime.generation import Generation
from sbctl.runtime.log import get_log

__all__ = ["Retiring"]

_END_AGAIN_FIRST_S: Final = 5.0
_END_AGAIN_CAP_S: Final = 60.0


class Retiring:
    """`generations`: those on their way out, the oldest first. `spawn` runs what goes on in the background."""

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self.generations: list[Generation] = []
        self._spawn = spawn
        self._log = get_log("reconcile")

    async def retire(
        self, generations: list[Generation], *, drain_s: float, leave: bool = False, by_name: Mapping[str, float] = {}
    ) -> dict[str, str]:
        """Drain each for at most `drain_s`, or its own seconds of `by_name`, then end it. Returns what did not end, which is tried again
        until it is gone; `leave`: engines are left to the next daemon."""
        self.generations += generations
        results = await asyncio.gather(
            *(each.retire(drain_s=by_name.get(each.deployment, drain_s), leave=leave) for each in generations),
            return_exceptions=True,
        )
        failures = {}
        for generation, result in zip(generations, results, strict=True):
            if isinstance(result, BaseException):
                self._log.error("a generation did not end", deployment=generation.deployment, error=str(result))
                failures[generation.deployment] = str(result)
        for generation in generations:
            if leave or not generation.has_unended:
                self._gone(generation)
        if not leave:
            self.end_later(generations)
        return failures

    def end_later(self, generations: Iterable[Generation]) -> None:
        """What did not end holds memory, and its place: it is tried again until it is gone."""
        for generation in generations:
            if generation.has_unended:
                self._spawn(self._end_again(generation))

    async def _end_again(self, generation: Generation) -> None:
        wait_s = _END_AGAIN_FIRST_S
        while generation.has_unended:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _END_AGAIN_CAP_S)
            try:
                await generation.end_what_is_left()
            except SbctlError as error:
                self._log.error("an engine still does not end", deployment=generation.deployment, error=str(error))
        self._gone(generation)

    def _gone(self, generation: Generation) -> None:
        self.generations = [each for each in self.generations if each is not generation]
