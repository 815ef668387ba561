"""What does it cost the nodes of a cluster to come to rest with many deployments?

    python benchmarks/cluster_settle.py [--deployments 1000] [--workers 3] [--profile FILE]

One authority and some workers in one process and in virtual time, with real identities, signatures, documents and state on disk; the store is in
memory and engines are scripted. The deployments are loaded on demand, so that what is measured is the cluster's own work. One bundle with all of
them is published and obeyed; then one deployment is changed; then nothing happens for a minute. CPU seconds of each part of each kind of node; a worker's are those of
one of them on average. `seconds` is how long the cluster took, by its own clocks.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import functools
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode
from tests.simulators.engine_world import VirtualLoop, facts, until
from tests.simulators.runtime_world import member

_T = TypeVar("_T")
_HOUR_S: Final = 3600.0
_PARTS: Final = ("placement", "directory", "plan feed", "obeying", "snapshots", "bundle")
"""Of a node, in the order of the table."""


class _Loop(VirtualLoop):
    """What others leave to threads is done at once: its CPU seconds are those of the part that asked."""

    def run_in_executor(self, _executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for it gets it
            future.set_exception(error)
        return future


class _Metered:
    """A coroutine whose steps are timed."""

    def __init__(self, work: Coroutine[Any, Any, Any], spend: Callable[[float], None]) -> None:
        self._work, self._spend = work, spend

    def __await__(self) -> Generator[Any, Any, Any]:
        sends: Any = None
        throws: BaseException | None = None
        while True:
            began = time.process_time()
            try:
                waits_for = self._work.send(sends) if throws is None else self._work.throw(throws)
            except StopIteration as end:
                return end.value
            finally:
                self._spend(time.process_time() - began)
            sends = throws = None
            try:
                sends = yield waits_for
            except BaseException as error:  # noqa: BLE001 - also that it is cancelled
                throws = error


class Meter:
    """CPU seconds by node and part. What a part begins belongs to it."""

    def __init__(self) -> None:
        self.spent: Counter[tuple[str, str]] = Counter()
        self._part: ContextVar[tuple[str, str]] = ContextVar("part", default=("", ""))
        asyncio.get_running_loop().set_task_factory(self._task)

    def _task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.pop("context", None)
        return asyncio.Task(self._metered(work), loop=loop, context=context, **options)

    async def _metered(self, work: Coroutine[Any, Any, _T]) -> _T:
        part = self._part.get()

        def spend(seconds: float) -> None:
            self.spent[part] += seconds

        done: _T = await _Metered(work, spend)
        return done

    def follow(self, node: SimNode) -> None:
        """From now on. Before it starts."""
        it = node.node
        parts = {"obeying": it.obedience, "snapshots": it.publisher, "bundle": it.desired, "directory": it.roster}
        parts |= {"plan feed": it.feed} | ({} if it.controller is None else {"placement": it.controller})
        for part, owner in parts.items():
            owner.run = functools.partial(self._run_as, (node.name, part), owner.run)

    async def _run_as(self, part: tuple[str, str], work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._part.set(part)
        await asyncio.create_task(work())


class Bench:
    def __init__(self, folder: Path, deployments: int, workers: int) -> None:
        self.world, self.meter = ClusterWorld(folder), Meter()
        one = clustered(member(facts(), "/engine", pull="on_demand", warm=False), replicas=2)
        self.wanted = {f"deployment-{number:04}": one for number in range(deployments)}
        self.names = [f"w{number}" for number in range(workers)]
        self.revision = 0

    async def run(self) -> None:
        roles = {"a": ("authority",), **dict.fromkeys(self.names, ("worker",))}
        try:
            await self._start(roles)
            await self._measured(f"{len(self.wanted)} deployments are published", self._publish)
            first = next(iter(self.wanted))
            self.wanted[first] = self.wanted[first].model_copy(update={"context_length": 1024})
            await self._measured("one of them is changed", self._publish)
            await self._measured("nothing happens for a minute", lambda: asyncio.sleep(60))
        finally:
            await self.world.close()

    async def _start(self, roles: dict[str, Any]) -> None:
        start = self.world.start

        async def metered(name: str, engines: Any = None) -> SimNode:
            made = self.world.make(name, engines)
            self.meter.follow(made)
            await made.start()
            return made

        self.world.start = metered  # type: ignore[method-assign]
        await self.world.build(**roles)
        self.world.start = start  # type: ignore[method-assign]

    async def _publish(self) -> None:
        self.revision += 1
        await self.world.publish(self.world.nodes["a"], self.wanted, self.revision)
        await until(self._rests, at_most_s=_HOUR_S)

    def _rests(self) -> bool:
        plan = self.world.nodes["a"].node.feed.plan
        if plan is None or plan.bundle.revision != self.revision:
            return False
        marks = [self.world.nodes[name].node.obedience.mark() for name in self.names]
        return (
            len(plan.deployments) == len(self.wanted)
            and all(
                one.rollout.phase == "stable" and not one.retained and not one.draining
                for one in plan.deployments.values()
            )
            and all(mark is not None and mark.state == "ready" for mark in marks)
        )

    async def _measured(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        before, began_cpu, began_s = Counter(self.meter.spent), time.process_time(), asyncio.get_running_loop().time()
        await work()
        spent, cpu_s = self.meter.spent - before, time.process_time() - began_cpu
        print(f"\n{what}: {asyncio.get_running_loop().time() - began_s:.0f} seconds, {cpu_s:.1f} CPU s in all")
        print(f"  {'':10}" + "".join(f"{part:>11}" for part in (*_PARTS, "all")))
        for kind, names in (("authority", ["a"]), ("a worker", self.names)):
            parts = [sum(spent[name, part] for name in names) / len(names) for part in _PARTS]
            print(f"  {kind:10}" + "".join(f"{seconds:>11.2f}" for seconds in (*parts, sum(parts))), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--deployments", type=int, default=1000)
    options.add_argument("--workers", type=int, default=3)
    options.add_argument("--profile", type=Path, help="write the profile of all of it there")
    asked = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    profile = cProfile.Profile() if asked.profile is not None else None
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=_Loop) as runner:

        async def work() -> None:
            await Bench(Path(folder), asked.deployments, asked.workers).run()

        if profile is None:
            runner.run(work())
        else:
            profile.runcall(runner.run, work())
            profile.dump_stats(asked.profile)


if __name__ == "__main__":
    main()
