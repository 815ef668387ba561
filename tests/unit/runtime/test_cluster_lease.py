"""The lease: one holder, an epoch that only grows, also where the store lost its data; time by one's own clock alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import LeaseDocument
from sbctl.runtime.cluster.lease import ClusterLease
from sbctl.runtime.cluster.store import CONTROLLER_KEY, Bucket
from tests.simulators.cluster_store import MemoryCluster
from tests.simulators.engine_world import in_virtual_time

TTL_S = 15


@dataclass
class Words:
    """Believes every document that can be read, as if all were signed."""

    holder: str

    def seal(self, *, epoch: int, renewal: int, acquired_at_ms: int, renewed_at_ms: int, ttl_secs: int) -> bytes:
        return LeaseDocument(
            cluster_id="prod",
            identity_epoch=1,
            boot_epoch=1,
            holder=self.holder,
            epoch=epoch,
            renewal=renewal,
            acquired_at_unix_ms=acquired_at_ms,
            renewed_at_unix_ms=renewed_at_ms,
            ttl_secs=ttl_secs,
        ).model_dump_json().encode()  # fmt: skip

    def open(self, value: bytes) -> LeaseDocument | None:
        try:
            return LeaseDocument.model_validate_json(value)
        except ValueError:
            return None


@dataclass
class Memory:
    lease_epoch_seen: int = 0

    def take_lease_epoch(self, epoch: int) -> None:
        self.lease_epoch_seen = max(self.lease_epoch_seen, epoch)


class Authority:
    def __init__(self, cluster: MemoryCluster, name: str, memory: Memory | None = None) -> None:
        self.name = name
        self.may_hold = True
        self.memory = memory or Memory()
        self.lease = ClusterLease(
            cluster.client(name, is_authority=True),
            Words(name),
            self.memory,
            holder=name,
            clock=SYSTEM_CLOCK,
            ttl_s=TTL_S,
            may_hold=lambda: self.may_hold,
            chance=lambda: 0.5,
        )

    async def step(self) -> int | None:
        try:
            return await self.lease.step()
        except SbctlError:
            return self.lease.epoch


def test_the_first_one_takes_it_and_keeps_it_while_another_waits() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a, b = Authority(cluster, "a"), Authority(cluster, "b")
        assert await a.step() == 1
        for _ in range(20):
            assert await b.step() is None
            await asyncio.sleep(TTL_S / 3)
            assert await a.step() == 1
        assert b.lease.seen is not None
        assert b.lease.seen.holder == "a"

    in_virtual_time(run)


def test_a_holder_that_is_cut_off_stops_before_another_begins() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a, b = Authority(cluster, "a"), Authority(cluster, "b")
        await a.step()
        await b.step()
        cluster.cut("a")
        stopped = taken = None
        for second in range(60):
            await asyncio.sleep(1)
            assert (a.lease.epoch is None) or (b.lease.epoch is None), "two at once"
            await a.step()
            await b.step()
            stopped = second if stopped is None and a.lease.epoch is None else stopped
            taken = second if taken is None and b.lease.epoch is not None else taken
            if taken is not None:
                break
        assert stopped is not None
        assert taken is not None
        assert stopped < taken
        assert b.lease.epoch == 2
        cluster.mend("a")
        assert await a.step() is None

    in_virtual_time(run)


def test_who_may_not_hold_it_gives_it_to_others_and_takes_none() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a, b = Authority(cluster, "a"), Authority(cluster, "b")
        assert await a.step() == 1
        a.may_hold = False
        assert await a.step() is None
        assert await b.step() is None
        await asyncio.sleep(1.1)
        assert await b.step() == 2
        b.may_hold = False
        assert (await b.step(), await a.step()) == (None, None)

    in_virtual_time(run)


def test_what_is_given_back_is_taken_soon() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a, b = Authority(cluster, "a"), Authority(cluster, "b")
        await a.step()
        await b.step()
        await a.lease.release()
        assert a.lease.epoch is None
        await b.step()
        await asyncio.sleep(1.5)
        assert await b.step() == 2

    in_virtual_time(run)


def test_the_epoch_grows_where_the_store_lost_its_data() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a = Authority(cluster, "a", Memory(lease_epoch_seen=41))
        assert await a.step() == 42
        cluster.lose_data()
        assert await a.step() is None, "what it held is not there any more"
        assert await a.step() == 43

    in_virtual_time(run)


def test_who_saw_more_takes_over_a_holder_that_saw_less() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        behind, ahead = Authority(cluster, "a", Memory(3)), Authority(cluster, "b", Memory(9))
        assert await behind.step() == 4
        assert await ahead.step() == 10
        assert await behind.step() is None

    in_virtual_time(run)


def test_two_that_took_the_same_epoch_in_two_stores_do_not_both_keep_it() -> None:
    async def run() -> None:
        one, other = MemoryCluster(), MemoryCluster()
        a = Authority(one, "a", Memory(7))
        b = Authority(other, "b", Memory(7))
        assert await a.step() == await b.step() == 8
        # b comes to the store of a.
        b.lease._store = one.client("b", is_authority=True)
        assert await b.step() is None
        assert await b.step() == 9
        assert await a.step() is None

    in_virtual_time(run)


def test_a_renewal_whose_answer_was_lost_is_recognised() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a = Authority(cluster, "a")
        await a.step()
        cluster.lose_answers = True
        await asyncio.sleep(5)
        assert await a.step() == 1
        cluster.lose_answers = False
        assert await a.step() == 1
        await asyncio.sleep(5)
        assert await a.step() == 1

    in_virtual_time(run)


def test_what_nobody_signed_is_no_lease() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        await cluster.client("c", is_authority=True).put(Bucket.LEASES, CONTROLLER_KEY, b"garbage")
        assert await Authority(cluster, "a", Memory(2)).step() == 3

    in_virtual_time(run)


def test_a_process_that_begins_anew_takes_another_epoch() -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        memory = Memory()
        assert await Authority(cluster, "a", memory).step() == 1
        assert await Authority(cluster, "a", memory).step() == 2

    in_virtual_time(run)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "b", "c", "cut a", "cut b", "mend a", "mend b", "lose", "wait 1", "wait 6", "wait 20"]),
        max_size=40,
    )
)
def test_whatever_happens_no_two_hold_it_and_no_epoch_is_taken_twice(steps: list[str]) -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        authorities = {name: Authority(cluster, name) for name in ("a", "b", "c")}
        holders: dict[int, str] = {}
        lost = False
        for step in steps:
            what, _, which = step.partition(" ")
            match what:
                case "cut":
                    cluster.cut(which)
                case "mend":
                    cluster.mend(which)
                case "lose":
                    # Who holds it keeps it for its time, and another may begin: fences are for that.
                    cluster.lose_data()
                    lost = True
                case "wait":
                    await asyncio.sleep(float(which))
                case name:
                    await authorities[name].step()
            held = [one for one in authorities.values() if one.lease.epoch is not None]
            assert lost or len(held) <= 1
            for one in held:
                epoch = one.lease.epoch
                assert epoch is not None
                assert lost or holders.setdefault(epoch, one.name) == one.name
                assert one.memory.lease_epoch_seen >= epoch

    in_virtual_time(run)


@pytest.mark.parametrize("wait_s", [0, TTL_S])
def test_run_takes_keeps_and_gives_back(wait_s: float) -> None:
    async def run() -> None:
        cluster = MemoryCluster()
        a, b = Authority(cluster, "a"), Authority(cluster, "b")
        first = asyncio.create_task(a.lease.run())
        await asyncio.sleep(1)
        second = asyncio.create_task(b.lease.run())
        await asyncio.sleep(10 * TTL_S + wait_s)
        assert (a.lease.epoch, b.lease.epoch) == (1, None)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(TTL_S)
        assert (a.lease.epoch, b.lease.epoch) == (None, 2)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)

    in_virtual_time(run)
