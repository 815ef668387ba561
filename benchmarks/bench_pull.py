"""How fast weights come: `fetch_file`, which verifies and stores, beside `curl | sha256sum`, which only verifies, on the same loopback server.

    .venv/bin/python benchmarks/bench_pull.py [--mib N] [--capped-mib N] [--turns N]

First a server that sends as fast as it can, then one that gives each connection 8 MiB/s. The sides take turns; the least of the turns counts,
since other work on the machine only ever adds. Each side is a process of its own, begun before the clock: what is measured is the pull, not
the start of an interpreter. The server is a third process. Files lie in a temporary directory, and the disk's part is in our time alone:
curl's bytes go into a pipe. Wall seconds, and CPU seconds of the side. Without curl only our side is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAP_MIB_PER_S = 8
MARK = 1.0
"""Our speed over curl's, of the project's own design."""

_FETCHER = """
import asyncio, hashlib, os, resource, sys, time
from pathlib import Path
from yarl import URL
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
url, target, sha256, size = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
async def main():
    hub = URL("https://hub.invalid")
    async with Fetcher(FetchSettings(index=hub, hf_endpoint=hub)) as fetcher:
        print("ready", flush=True)
        sys.stdin.readline()
        began, cpu = time.monotonic(), time.process_time()
        await fetch_file([url], target, sha256=sha256, size_bytes=size, fetcher=fetcher)
        print(time.monotonic() - began, time.process_time() - cpu, flush=True)
asyncio.run(main())
"""


@dataclass(frozen=True)
class Pull:
    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="length of the file of the fast server")
    parser.add_argument("--capped-mib", type=int, default=192, help="length of the file of the capped one")
    parser.add_argument("--turns", type=int, default=3, help="the least of so many turns counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        compare(place, options.mib, options.turns, None, f"as fast as loopback goes, {options.mib} MiB")
        capped = f"{CAP_MIB_PER_S} MiB/s a connection, {options.capped_mib} MiB"
        compare(place, options.capped_mib, 1, CAP_MIB_PER_S * 1024.0 * 1024.0, capped)


def compare(place: Path, mib: int, turns: int, bytes_per_s: float | None, title: str) -> None:
    file, digest = sample(place / "weights", mib)
    with serving(file, bytes_per_s) as url:
        sides: dict[str, Callable[[], Pull]] = {"fetch_file": lambda: ours(url, place / "got", digest, mib << 20)}
        if shutil.which("curl") and shutil.which("sha256sum"):
            sides["curl | sha256sum"] = lambda: curl(url, digest)
        best = {name: Pull(math.inf, math.inf) for name in sides}
        for _ in range(turns):
            for name, run in sides.items():
                got = run()
                best[name] = min(best[name], got, key=lambda pull: pull.wall_s)
    file.unlink()
    print(f"\n{title}")
    for name, pull in best.items():
        print(f"  {name:20} {pull.wall_s:7.2f} s wall {pull.cpu_s:7.2f} s CPU {mib / pull.wall_s:9.0f} MiB/s")
    if len(best) > 1:
        ratio = best["curl | sha256sum"].wall_s / best["fetch_file"].wall_s
        mark = f" (mark: {MARK})" if bytes_per_s is None else " (mark: the number of ranges)"
        print(f"  {'fetch_file / curl':20} {ratio:7.2f} times as fast{mark}")


def sample(path: Path, mib: int) -> tuple[Path, str]:
    digest, source = hashlib.sha256(), random.Random(1)
    with path.open("wb") as out:
        for _ in range(mib):
            piece = source.randbytes(1 << 20)
            digest.update(piece)
            out.write(piece)
    os.sync()
    return path, digest.hexdigest()


@contextlib.contextmanager
def serving(file: Path, bytes_per_s: float | None) -> Iterator[str]:
    argv = [sys.executable, "-m", "tests.simulators.download_server", str(file)]
    argv += [] if bytes_per_s is None else ["--bytes-per-s", str(bytes_per_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


def ours(url: str, target: Path, digest: str, size: int) -> Pull:
    argv = [sys.executable, "-c", _FETCHER, url, str(target), digest, str(size)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        words = process.stdout.readline().split()
        process.stdin.close()
    if len(words) != 2:
        raise SystemExit("fetch_file failed")
    target.unlink()
    return Pull(float(words[0]), float(words[1]))


def curl(url: str, digest: str) -> Pull:
    before, began = os.times(), time.monotonic()
    with subprocess.Popen(["curl", "-sS", url], stdout=subprocess.PIPE) as source:
        summed = subprocess.run(["sha256sum"], stdin=source.stdout, capture_output=True, text=True, check=True)
    wall_s, after = time.monotonic() - began, os.times()
    if not summed.stdout.startswith(digest):
        raise SystemExit("curl got other bytes")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Pull(wall_s, cpu_s)


if __name__ == "__main__":
    main()
