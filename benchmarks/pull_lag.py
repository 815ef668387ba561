"""How much a pull at full speed delays a daemon's event loop: in the loop itself, and in the process beside it that the runtime uses.

    .venv/bin/python benchmarks/pull_lag.py [--mib N]

A loop as the runtime's wakes every 2 ms and notes how late it was: idle, while `fetch_file` runs in it, and while it runs in a process of its
own, from the same loopback server in a third process, each three times in turns. Files lie in a temporary directory. Milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402

_TICK_S: Final = 0.002
_TURNS: Final = 3
_PULL: Final = """
import asyncio, os, sys
from pathlib import Path
from yarl import URL
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.sources import Location
url, target, sha256, size = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
async def pull():
    async with Fetcher() as fetcher:
        await fetch_file([Location(url=URL(url))], target, sha256=sha256, size_bytes=size, fetcher=fetcher)
"""


async def _late_ms(work: asyncio.Task[object]) -> list[float]:
    found: list[float] = []
    while not work.done():
        began = time.monotonic()
        await asyncio.sleep(_TICK_S)
        found.append(max(0.0, (time.monotonic() - began - _TICK_S) * 1000))
    await work
    return sorted(found)


def _row(name: str, late: list[float]) -> str:
    at = [late[int(len(late) * part)] for part in (0.5, 0.9, 0.99)]
    return f"{name:24} p50 {at[0]:5.1f}   p90 {at[1]:5.1f}   p99 {at[2]:5.1f}   max {late[-1]:6.1f}"


async def _measure(url: str, folder: Path, sha256: str, size: int) -> None:
    given = ["-", url, str(folder / "target"), sha256, str(size)]
    sys.argv[1:] = given[1:]
    names: dict[str, object] = {}
    exec(_PULL, names)

    async def beside() -> None:
        program = f"{_PULL}\nos.nice(10)\nasyncio.run(pull())"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *given[1:], cwd=ROOT)
        await process.wait()

    ways = {"idle": lambda: asyncio.sleep(3), "pull in the loop": names["pull"], "pull in a process": beside}
    late: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_TURNS):
        for name, way in ways.items():
            late[name] += await _late_ms(asyncio.ensure_future(way()))  # type: ignore[operator]
            (folder / "target").unlink(missing_ok=True)
    for name, found in late.items():
        print(_row(name, sorted(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    size = parser.parse_args().mib << 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = os.urandom(1 << 20) * (size >> 20)
        (folder / "weights").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        del data
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.simulators.download_server", str(folder / "weights")],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            uvloop.run(_measure(server.stdout.readline().strip(), folder, sha256, size))
        finally:
            server.stdin.close()
            server.wait()


if __name__ == "__main__":
    main()
