"""What one request costs the gateway in CPU, without sockets: both transports are played, everything between them is the delivered code.

    .venv/bin/python benchmarks/gateway_cpu.py [--rounds N] [--only NAME] [--profile] [--calls]

The least of many rounds is told: other work on the machine only ever adds, so the figure holds on a busy one, to about 2 % from run to run.
Key, origin, limits, admission, metrics, checks and names are as in the daemon; not in it are system calls (`bare_proxy.py` shows those, some
12 µs) and the memory that real reads move. `--profile` prints where the time goes by function, `--calls` how many calls a request makes;
both slow it down, so they are for shares, not for figures.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402

from benchmarks.bench_gateway import KEY, request  # noqa: E402
from benchmarks.mock_engine import END, STREAM, TOKEN  # noqa: E402
from sbctl.base.digests import sha256_bytes  # noqa: E402
from sbctl.engines.model import EngineAddress  # noqa: E402
from sbctl.node.paths import node_paths  # noqa: E402
from sbctl.runtime.drain import Drain  # noqa: E402
from sbctl.runtime.engine_client import EngineClient  # noqa: E402
from sbctl.runtime.event_loop import settle  # noqa: E402
from sbctl.runtime.gateway.gateway import Gateway  # noqa: E402
from sbctl.runtime.gateway.server import GatewayServer  # noqa: E402
from sbctl.runtime.gateway.upstream import EngineConnection, EnginePool  # noqa: E402
from sbctl.runtime.generation import Generation  # noqa: E402
from sbctl.runtime.key_limits import KeyLimits  # noqa: E402
from sbctl.runtime.metrics import RuntimeMetrics  # noqa: E402
from sbctl.runtime.readiness import ProgressWatch  # noqa: E402
from sbctl.runtime.replica_messages import ReplicaPorts  # noqa: E402
from sbctl.runtime.replica_states import ReplicaPhase  # noqa: E402
from sbctl.runtime.routes import RouteTable  # noqa: E402
from sbctl.trust.bundle import ApiKeyEntry, OriginMember  # noqa: E402
from tests.simulators.engine_world import facts  # noqa: E402
from tests.simulators.runtime_world import member  # noqa: E402

CALLERS: Final = 8
EVENTS: Final = 64
HISTORY: Final = [
    {
        "role": "user" if turn % 2 == 0 else "assistant",
        "content": f"{turn}: " + "What is the capital of France? \n" * 16,
    }
    for turn in range(15)
]


class PlayedTransport:
    """Takes what is written, and does nothing else."""

    def __init__(self) -> None:
        self.writes = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.last = data

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class PlayedPool(EnginePool):
    """Its connections lead nowhere; what answers them is `Played.answer`."""

    def __init__(self) -> None:
        super().__init__(EngineAddress(port=1))
        self.made: list[tuple[EngineConnection, PlayedTransport]] = []

    async def _connect(self) -> EngineConnection:
        connection, transport = self._make(), PlayedTransport()
        connection.connection_made(cast("Any", transport))
        self.made.append((connection, transport))
        return connection


class Played:
    """A gateway with one ready replica, and both ends of its connections."""

    def __init__(self, folder: Path) -> None:
        served = member(facts(), "/engine", max_concurrency=256, max_queue_depth=256, context_length=4096)
        self.generation = Generation("q", 1, served, ReplicaPorts(cast("Any", None)))
        replica = self.generation.replicas[0]
        client = EngineClient(EngineAddress(port=1))
        self.pool = client.pool = PlayedPool()
        nothing = cast("Any", None)
        watch = ProgressWatch(nothing, client, nothing, nothing)
        replica.launched = cast("Any", SimpleNamespace(client=client, watch=watch))
        replica.phase = ReplicaPhase.READY
        replica.gate.open()
        entry = ApiKeyEntry(sha256=sha256_bytes(KEY.encode()), requests_per_minute=100_000_000)
        self.generations = {"q": self.generation}
        origin = OriginMember(models={"public": "q"})
        self.routes = RouteTable({"localhost": origin, "other": origin}, self.generations, {"app": entry})
        drain = Drain(node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)}))
        gateway = Gateway(
            cast("Any", self), RuntimeMetrics(), KeyLimits(), drain, cast("Any", None), bound_to_loopback=True
        )
        server = GatewayServer(gateway)
        server._loop = asyncio.get_running_loop()
        self.callers = [(server._make(), PlayedTransport()) for _ in range(CALLERS)]
        for caller, transport in self.callers:
            caller.connection_made(cast("Any", transport))

    async def turn(self, asks: bytes, *answers: bytes) -> None:
        """One request of each caller, each answered by these pieces."""
        for caller, transport in self.callers:
            transport.last = b""
            caller.data_received(asks)
        await self._until(lambda: sum(bool(transport.last) for _, transport in self.pool.made) == CALLERS)
        for _, transport in self.pool.made:
            transport.last = b""
        for answer in answers:
            for connection, _ in self.pool.made:
                connection.data_received(answer)
        await self._until(lambda: all(transport.last for _, transport in self.callers))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(8):
            if is_so():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"nobody answered: {self.callers[0][1].last[:300]!r}")


Case = tuple[bytes, tuple[bytes, ...]]
"""What is asked, and the pieces in which it is answered."""
WHOLE: Final = STREAM + TOKEN * 2 + END
CASES: Final[dict[str, Case]] = {
    "whole answer of 2 tokens": (request(max_tokens=2), (WHOLE,)),
    "whole answer of 64 tokens, one by one": (request(max_tokens=64), (STREAM, *[TOKEN] * EVENTS, END)),
    "long chat, 8 KB": (request(max_tokens=2, messages=HISTORY), (WHOLE,)),
    "stream of 2 tokens": (request(max_tokens=2, stream=True), (WHOLE,)),
    "stream of 64 tokens, one by one": (request(max_tokens=64, stream=True), (STREAM, *[TOKEN] * EVENTS, END)),
}


def yardstick() -> None:
    """A fixed piece of Python work, some half a millisecond, that is slowed down by the same things."""
    for number in range(60):
        document = json.loads(
            b'{"model":"public","messages":[{"role":"user","content":"What is the capital of France?"}]}'
        )
        parts = [f"{name}: {len(value)}" for name, value in document.items()]
        sum(map(len, parts)) + max(number, 3)


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU for one request, least of the rounds; and median over the rounds in yardsticks, which holds on a busy machine."""

    least_us: float
    yards: float


def spent_us(before_ns: int) -> float:
    return (time.process_time_ns() - before_ns) / 1000


async def measure(played: Played, case: Case, rounds: int) -> Cost:
    asks, answers = case
    for _ in range(20):
        await played.turn(asks, *answers)
    costs, yards = [], []
    for _ in range(rounds):
        before_ns = time.process_time_ns()
        yardstick()
        between_ns = time.process_time_ns()
        await played.turn(asks, *answers)
        costs.append(spent_us(between_ns) / CALLERS)
        yards.append(costs[-1] / ((between_ns - before_ns) / 1e6))
    return Cost(min(costs), statistics.median(yards))


async def profile(played: Played, case: Case, *, calls: bool) -> None:
    asks, answers = case
    turns = 100
    await played.turn(asks, *answers)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(turns):
        await played.turn(asks, *answers)
    profiler.disable()
    stats = pstats.Stats(profiler)
    if calls:
        rows = sorted(cast("Any", stats).stats.items(), key=lambda row: -row[1][1])
        for (file, line, name), (_, count, own_s, *_) in rows[:120]:
            if count >= turns * CALLERS:
                each = count / turns / CALLERS
                place = f"{Path(file).name}:{line}"
                print(f"{each:6.1f} calls {own_s / turns / CALLERS * 1e6:7.2f} µs own  {name} ({place})")
        return
    stats.strip_dirs().sort_stats("tottime").print_stats(50)


async def main(asked: argparse.Namespace) -> None:
    cases = {name: case for name, case in CASES.items() if asked.only in name}
    with tempfile.TemporaryDirectory() as folder:
        played = Played(Path(folder))
        settle()
        if asked.profile or asked.calls:
            await profile(played, next(iter(cases.values())), calls=asked.calls)
            return
        costs: dict[str, Cost] = {}
        for name, case in cases.items():
            costs[name] = await measure(played, case, asked.rounds)
            print(f"| {name} | {costs[name].least_us:.1f} | {costs[name].yards:.0f} |")
        for kind in ("whole answer", "stream"):
            few, many = costs.get(f"{kind} of 2 tokens"), costs.get(f"{kind} of 64 tokens, one by one")
            if few is not None and many is not None:
                print(
                    f"| an event of a {kind} that comes alone | {(many.least_us - few.least_us) / EVENTS:.1f} | {(many.yards - few.yards) / EVENTS:.1f} |"
                )
    gc.unfreeze()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--profile", action="store_true", help="time by function, of the first case")
    parser.add_argument("--calls", action="store_true", help="calls a request, of the first case")
    uvloop.run(main(parser.parse_args()))
