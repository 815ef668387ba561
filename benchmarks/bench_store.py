"""The cluster's store through our own client: writes, readings, watches, and how long it is without a leader.

    .venv/bin/python benchmarks/bench_store.py [--quick] [--members 1|3]

Real servers on loopback with mutual TLS and `sync_interval: always`, configured as a host gets it. Printed: milliseconds (p50, p99) of a write
of 1 KiB, of a reading, of a write until another node was told of it; seconds until the first write after the leader was killed (several
kills) and until a killed member is whole again; seconds until a cluster of N nodes is listed; resident memory of a server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sbctl.base.clock import SYSTEM_CLOCK  # noqa: E402
from sbctl.runtime.cluster.nats_store import NatsStore, StoreTiming  # noqa: E402
from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket, Changed, Resync  # noqa: E402
from sbctl.runtime.log import configure_logging  # noqa: E402
from tests.simulators.nats_cluster import NatsCluster  # noqa: E402
from tests.simulators.store_contract import eventually  # noqa: E402

VALUE = b"x" * 1024


def spread(samples: list[float]) -> dict[str, float]:
    ordered = sorted(samples)
    at = {"p50": len(ordered) // 2, "p99": min(len(ordered) - 1, len(ordered) * 99 // 100)}
    return {name: round(1000 * ordered[index], 2) for name, index in at.items()}


async def timed(work: Callable[[], Awaitable[object]], times: int) -> dict[str, float]:
    samples = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - began)
    return spread(samples)


class Bench:
    def __init__(self, cluster: NatsCluster) -> None:
        self.cluster = cluster
        self.a, self.w1 = self._client("a"), self._client("w1")

    def _client(self, node_id: str) -> NatsStore:
        cluster = self.cluster
        timing = StoreTiming(first_pause_s=0.05, longest_pause_s=0.5, audit_s=300.0)
        return NatsStore(
            lambda: cluster.servers,
            lambda: cluster.identities.context(node_id),
            node_id=node_id,
            clock=SYSTEM_CLOCK,
            timing=timing,
        )

    async def watch_latency(self, times: int) -> dict[str, float]:
        samples = []
        async with aclosing(self.w1.watch(Bucket.DESIRED)) as told:  # type: ignore[type-var]
            assert isinstance(await anext(told), Resync)
            for number in range(times):
                value = str(number).encode()
                began = time.perf_counter()
                await self.a.put(Bucket.DESIRED, BUNDLE_KEY, value)
                while True:
                    watched = await anext(told)
                    if isinstance(watched, Changed) and watched.entry.value == value:
                        break
                samples.append(time.perf_counter() - began)
        return spread(samples)

    async def elections(self, kills: int) -> list[float]:
        found = []
        for _ in range(kills):
            leader = await asyncio.to_thread(self.cluster.leader, Bucket.DESIRED)
            assert leader is not None
            began = time.perf_counter()
            self.cluster.kill(leader)
            await eventually(lambda: self.a.put(Bucket.DESIRED, BUNDLE_KEY, VALUE))
            found.append(round(time.perf_counter() - began, 2))
            self.cluster.start(leader)
            await asyncio.to_thread(self.cluster.wait_ready)
        return found

    async def listing(self, keys: int) -> float:
        for number in range(keys):
            await self.a.put(Bucket.ASSIGNMENTS, f"n{number}", VALUE * 8)
        began = time.perf_counter()
        async with aclosing(self.w1.watch(Bucket.ASSIGNMENTS)) as told:  # type: ignore[type-var]
            first = await anext(told)
        assert isinstance(first, Resync)
        assert len(first.entries) == keys
        return round(time.perf_counter() - began, 3)


async def measure(cluster: NatsCluster, *, quick: bool) -> dict[str, object]:
    bench = Bench(cluster)
    times = 100 if quick else 1000
    await bench.a.start()
    await bench.w1.start()
    try:
        members = len(cluster.members)

        async def ready() -> bool:
            await bench.a.prepare(replicas=members)
            return True

        began = time.perf_counter()
        await eventually(ready)
        answer: dict[str, object] = {"members": members, "buckets_s": round(time.perf_counter() - began, 2)}
        answer["write_ms"] = await timed(lambda: bench.a.put(Bucket.DESIRED, "trust", VALUE), times)
        answer["read_ms"] = await timed(lambda: bench.w1.get(Bucket.DESIRED, "trust"), times)
        answer["watch_ms"] = await bench.watch_latency(times)
        keys = 100 if quick else 1000
        answer[f"listing_of_{keys}_s"] = await bench.listing(keys)
        answer["server_mib"] = [
            round(psutil.Process(process.pid).memory_info().rss / 2**20) for process in cluster.processes
        ]
        if members > 1:
            answer["leader_killed_s"] = await bench.elections(1 if quick else 5)
        return answer
    finally:
        await bench.a.close()
        await bench.w1.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--members", type=int, choices=(1, 3), action="append")
    options = parser.parse_args()
    configure_logging()
    for members in options.members or (1, 3):
        with tempfile.TemporaryDirectory() as directory:
            cluster = NatsCluster(Path(directory), ("a", "b", "c")[:members])
            try:
                cluster.start()
                cluster.wait_ready()
                print(json.dumps(asyncio.run(measure(cluster, quick=options.quick))))
            finally:
                cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
