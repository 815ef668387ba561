"""The process that fetches weights for a daemon: receiving, writing and checking at full speed takes nothing from the loop that answers requests.

It reads one order from its standard input and tells in lines of JSON what comes of it: `progress`, `note`, and at the end `result` or `error`.
It yields the processor to whoever answers requests, ends by SIGTERM with its journal in order, and never outlives the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.egress import Egress
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.foreign_caches import foreign_caches
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.egress import egress_settings

__all__ = ["ORDER_MAX_BYTES", "PullOrder", "main"]

ORDER_MAX_BYTES: Final = 4 * MIB
_NICE: Final = 10
_TELL_EVERY_S: Final = 0.2
_PR_SET_PDEATHSIG: Final = 1


class PullOrder(BaseModel):
    """What is wanted. `secrets` is the directory of this host's secrets; none of them is in here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    facts: ArtifactFacts
    cache: str
    egress: Egress
    secrets: str
    offline: bool = False


def _tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said, ensure_ascii=False) + "\n")
    sys.stdout.flush()


async def _carry_out(order: PullOrder) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    told_at_s = 0.0

    def progress(done: int, total: int | None) -> None:
        nonlocal told_at_s
        now_s = time.monotonic()
        if done == total or now_s - told_at_s >= _TELL_EVERY_S:
            told_at_s = now_s
            _tell(progress={"done": done, "total": total})

    try:
        settings = egress_settings(order.egress, Path(order.secrets), os.environ)
        async with Fetcher(settings) as fetcher:
            result = await pull(
                ArtifactCache(Path(order.cache)),
                order.facts,
                progress=progress,
                fetcher=fetcher,
                offline=order.offline,
                foreign=foreign_caches(os.environ),
                note=lambda sentence: _tell(note=sentence),
            )
    except SbctlError as error:
        _tell(error=error.to_wire())
    except OSError as error:
        failed = HostError(
            "runtime.pull_failed",
            f"weights cannot be kept here: {error.strerror or type(error).__name__}",
            place=str(error.filename or order.cache),
            next_step="the cache and all in it have to be the runtime's own, on a disk that takes writes",
            retryable=True,
        )
        _tell(error=failed.to_wire())
    else:
        _tell(
            result={
                "downloaded_bytes": result.downloaded_bytes,
                "quarantined": [str(path) for path in result.quarantined],
            }
        )


def main(argv: list[str]) -> int:
    """`argv[1]` is the daemon's pid. 0 when the end was told."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(argv[1]):
        return 1  # the daemon died before the signal was asked for
    os.umask(0o022)  # engines of another user read what is fetched; what is nobody else's has modes of its own
    with contextlib.suppress(OSError):  # the hardened unit lets nobody change priorities
        os.nice(_NICE)
    try:
        order = PullOrder.model_validate_json(sys.stdin.buffer.read(ORDER_MAX_BYTES))
    except ValueError as error:
        refused = HostError("runtime.pull_failed", f"the order of a download is unreadable: {type(error).__name__}")
        _tell(error=refused.to_wire())
        return 0
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_carry_out(order))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
