"""A download that is killed again and again: each attempt is a process of its own, ended by SIGKILL at a moment drawn by lot.

python -m tests.simulators.interrupted_pull URL TARGET SHA256 BYTES KILLS SEED

Attempts are forked from this process, which has no threads of its own, so that one costs no interpreter start. Prints how often it killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from yarl import URL

from sbctl.artifacts import transfer
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.base.errors import SbctlError


def attempt(url: str, target: Path, sha256: str, size_bytes: int) -> int:
    """0: whole. 1: given up. In a child process."""
    transfer.DOWNLOAD_PIECE_BYTES = 256 * 1024  # type: ignore[misc]
    transfer._WINDOW_S = transfer._TICK_S = 0.02  # type: ignore[misc]
    transfer._MARK_BYTES = transfer._WRITE_BYTES = 64 * 1024  # type: ignore[misc]

    async def run() -> None:
        hub = URL("https://hub.invalid")
        async with Fetcher(FetchSettings(index=hub, hf_endpoint=hub), stall_s=5) as fetcher:
            await fetch_file([url], target, sha256=sha256, size_bytes=size_bytes, fetcher=fetcher)

    try:
        asyncio.run(run())
    except SbctlError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def forked(url: str, target: Path, sha256: str, size_bytes: int) -> int:
    pid = os.fork()
    if pid == 0:
        code = 2
        with contextlib.suppress(BaseException):
            code = attempt(url, target, sha256, size_bytes)
        os._exit(code)
    return pid


def main() -> int:
    url, target, sha256, size_bytes, kills, seed = sys.argv[1:]
    lot, done = random.Random(int(seed)), 0
    while done < int(kills) and not Path(target).exists():
        pid = forked(url, Path(target), sha256, int(size_bytes))
        time.sleep(lot.uniform(0.02, 0.2))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        done += os.WIFSIGNALED(status)
    pid = forked(url, Path(target), sha256, int(size_bytes))
    _, status = os.waitpid(pid, 0)
    print(done)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
