"""A download that is interrupted at random, again and again (docs/threats.md F13; docs/faults.md 62, 75): it ends right, and gets on."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.simulators.download_server import DownloadServer

ROOT = Path(__file__).parents[2]


def sample(size_bytes: int, seed: int) -> tuple[bytes, str]:
    data = random.Random(seed).randbytes(size_bytes)
    return data, hashlib.sha256(data).hexdigest()


def killed_pull(url: str, target: Path, data: bytes, sha256: str, *, kills: int, seed: int) -> int:
    words = (url, str(target), sha256, str(len(data)), str(kills), str(seed))
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulators.interrupted_pull", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize(
    ("kills", "size_bytes", "seed"),
    [(8, 3_000_000, 1), pytest.param(50, 24_000_000, 2, marks=pytest.mark.soak)],
    ids=["8 times", "50 times"],
)
def test_F13_a_pull_that_is_killed_at_random_ends_right_and_fetches_little_twice(
    tmp_path: Path, kills: int, size_bytes: int, seed: int
) -> None:
    data, sha256 = sample(size_bytes, seed)
    with DownloadServer({"/w": data}, bytes_per_s=600_000) as server:
        killed = killed_pull(server.url("/w"), tmp_path / "w", data, sha256, kills=kills, seed=seed)
        assert killed >= 2
        lost = server.sent_bytes - len(data)
    assert (tmp_path / "w").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    # What a kill costs at most: what eight connections had in their buffers.
    assert lost <= killed * 8 * 300_000


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_F13_a_pull_whose_server_is_cut_50_times_ends_right(tmp_path: Path, seed: int) -> None:
    data, sha256 = sample(12_000_000, seed)
    lot, over = random.Random(seed), threading.Event()
    with DownloadServer({"/w": data}, bytes_per_s=800_000) as server:

        def cut() -> None:
            for _ in range(50):
                if over.wait(lot.uniform(0.05, 0.3)):
                    return
                server.cut_all()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            killed_pull(server.url("/w"), tmp_path / "w", data, sha256, kills=5, seed=seed)
        finally:
            over.set()
            cutter.join()
    assert (tmp_path / "w").read_bytes() == data


async def test_F12_many_processes_that_want_one_file_fetch_it_once(tmp_path: Path) -> None:
    data, sha256 = sample(2_000_000, 3)
    with DownloadServer({"/w": data}, bytes_per_s=4_000_000) as server:
        await asyncio.gather(
            *(
                asyncio.to_thread(killed_pull, server.url("/w"), tmp_path / "w", data, sha256, kills=0, seed=0)
                for _ in range(4)
            )
        )
        assert server.sent_bytes < 1.5 * len(data)
    assert (tmp_path / "w").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
