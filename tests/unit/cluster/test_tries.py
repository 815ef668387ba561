"""Weights are fetched once for each member, and what failed is tried again later each time."""

from __future__ import annotations

import asyncio

import pytest

from sbctl.base.errors import ArtifactError
from sbctl.runtime.cluster.tries import Tries
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import facts, in_virtual_time, settle
from tests.simulators.runtime_world import member


class _World:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.came = 0
        self.gate = asyncio.Event()
        self.fails = False
        self.tries = Tries(self._prepare, self._came)

    async def _prepare(self, of: DeploymentMember) -> None:
        self.asked.append(of.model)
        await self.gate.wait()
        if self.fails:
            raise ArtifactError("artifact.no_source", "nowhere")

    def _came(self) -> None:
        self.came += 1


def test_weights_of_one_member_are_fetched_once_whatever_it_is_called() -> None:
    async def scenario() -> None:
        world, one = _World(), member(facts(), "/engine")
        assert not any(world.tries.may_begin(name, one) for name in ("a", "b", "a"))
        await settle()
        assert (world.asked, world.came) == (["tiny"], 0)
        world.gate.set()
        await settle()
        assert world.came == 1
        assert all(world.tries.may_begin(name, one) for name in ("a", "b"))
        assert world.asked == ["tiny"]

    in_virtual_time(scenario)


@pytest.mark.parametrize(("pull", "fetches"), [("on_demand", False), ("on_boot", True)])
def test_what_is_loaded_on_demand_waits_for_weights_only_where_they_come_first(pull: str, fetches: bool) -> None:
    async def scenario() -> None:
        world, one = _World(), member(facts(), "/engine", warm=False, pull=pull)
        assert world.tries.may_begin("a", one) is not fetches
        world.tries.end()

    in_virtual_time(scenario)


def test_what_failed_waits_longer_each_time_and_is_tried_at_once_when_that_is_forgotten() -> None:
    async def scenario() -> None:
        world, one = _World(), member(facts(), "/engine")
        world.tries.are_here([one])
        waits = []
        for _ in range(7):
            world.tries.failed("a", ArtifactError("artifact.no_source", "nowhere"))
            waits.append(world.tries.next_s())
            assert not world.tries.may_begin("a", one)
            await asyncio.sleep(waits[-1] or 0)
            assert world.tries.may_begin("a", one)
        assert waits == [2, 4, 8, 16, 32, 60, 60]
        world.tries.failed("a", ArtifactError("artifact.no_source", "nowhere"))
        world.tries.forget("a")
        assert (world.tries.may_begin("a", one), world.tries.error("a"), world.tries.next_s()) == (True, None, None)

    in_virtual_time(scenario)


def test_what_is_not_wanted_any_more_is_fetched_no_further() -> None:
    async def scenario() -> None:
        world, one, other = _World(), member(facts(), "/engine"), member(facts("other"), "/engine")
        world.tries.may_begin("a", one)
        world.tries.may_begin("b", other)
        world.tries.failed("a", ArtifactError("artifact.no_source", "nowhere"))
        await settle()
        world.tries.forget_others({"b": other})
        world.gate.set()
        await settle()
        assert world.tries.error("a") is None
        assert world.tries.may_begin("b", other)
        assert not world.tries.may_begin("a", one), "it was left, and begins anew"
        world.tries.end()

    in_virtual_time(scenario)
