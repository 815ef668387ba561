"""What has to be here before a deployment can run, and how often it was tried: weights come in the background, each member by itself; what failed is
tried again, later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.runtime.log import get_log
from sbctl.trust.bundle import DeploymentMember, member_digest

__all__ = ["AGAIN_FIRST_S", "Tries"]

AGAIN_FIRST_S: Final = 2.0
_AGAIN_CAP_S: Final = 60.0


@dataclass(slots=True)
class _Failure:
    error: SbctlError
    attempts: int
    until_s: float


class Tries:
    """`prepare` puts a member's weights and engine build in place; `came` is told when that ended, well or not. One event loop."""

    def __init__(self, prepare: Callable[[DeploymentMember], Awaitable[object]], came: Callable[[], None]) -> None:
        self._prepare = prepare
        self._came = came
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._fetched: set[str] = set()
        self._failed: dict[str, _Failure] = {}
        self._log = get_log("obey")

    def are_here(self, members: Iterable[DeploymentMember]) -> None:
        """They ran here before: nothing has to be fetched for them."""
        self._fetched = {member_digest(member) for member in members}

    def may_begin(self, name: str, member: DeploymentMember) -> bool:
        """Whether it is time for it and all of it is here; else that is on its way when this returns."""
        failure = self._failed.get(name)
        if failure is not None and asyncio.get_running_loop().time() < failure.until_s:
            return False
        digest = member_digest(member)
        if digest in self._fetched or not (member.warm or member.pull == "on_boot"):
            return True
        if digest not in self._fetching:
            self._fetching[digest] = asyncio.create_task(self._fetch(name, member, digest))
        return False

    async def _fetch(self, name: str, member: DeploymentMember, digest: str) -> None:
        try:
            await self._prepare(member)
            self._fetched.add(digest)
        except SbctlError as error:
            self.failed(name, error)
        finally:
            self._fetching.pop(digest, None)
            self._came()

    def failed(self, name: str, error: SbctlError) -> None:
        """It is tried again after a while, that grows with each failure."""
        known = self._failed.get(name)
        attempts = 1 if known is None else known.attempts + 1
        wait_s = min(_AGAIN_CAP_S, AGAIN_FIRST_S * 2.0 ** min(attempts - 1, 10))
        self._failed[name] = _Failure(error, attempts, asyncio.get_running_loop().time() + wait_s)
        self._log.warning("not as assigned", deployment=name, code=error.code, reason=error.message, again_in_s=wait_s)

    def forget(self, name: str) -> None:
        """That it failed: it runs, or an operator wants it tried at once."""
        self._failed.pop(name, None)

    def forget_others(self, wanted: Mapping[str, DeploymentMember]) -> None:
        """All that was tried and fetched for what is not wanted any more."""
        for name in [each for each in self._failed if each not in wanted]:
            self._failed.pop(name)
        digests = {member_digest(member) for member in wanted.values()}
        for digest in [each for each in self._fetching if each not in digests]:
            self._fetching.pop(digest).cancel()
        self._fetched &= digests

    def error(self, name: str) -> SbctlError | None:
        """Why it does not run, as far as it was tried."""
        failure = self._failed.get(name)
        return None if failure is None else failure.error

    def next_s(self) -> float | None:
        """Seconds until something is to be tried again."""
        now_s = asyncio.get_running_loop().time()
        waits = [failure.until_s - now_s for failure in self._failed.values() if failure.until_s > now_s]
        return min(waits, default=None)

    def end(self) -> None:
        """What is on its way is left."""
        for task in self._fetching.values():
            task.cancel()
