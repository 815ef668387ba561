"""Who passes the gate, in which order, and why others do not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.runtime.admission import AdmissionError, Gate, Permit, Priority
from tests.simulators.engine_world import in_virtual_time, outcome_of, settle


def _gate(active: int = 1, queued: int = 8, timeout_ms: int = 1000) -> Gate:
    return Gate(max_active=active, max_queued=queued, queue_timeout_ms=timeout_ms)


def test_classes_in_order_and_first_come_inside_a_class() -> None:
    async def work() -> list[str]:
        gate = _gate()
        order: list[str] = []
        held = await gate.acquire("standard")

        async def ask(name: str, priority: Priority) -> None:
            permit = await gate.acquire(priority)
            order.append(name)
            permit.release()

        tasks = []
        for name, priority in (
            ("b1", "batch"),
            ("s1", "standard"),
            ("i1", "interactive"),
            ("s2", "standard"),
            ("i2", "interactive"),
        ):
            tasks.append(asyncio.create_task(ask(name, priority)))  # type: ignore[arg-type]
            await settle(2)
        assert gate.queued == 5
        held.release()
        await asyncio.gather(*tasks)
        assert (gate.active, gate.queued) == (0, 0)
        return order

    assert in_virtual_time(work) == ["i1", "i2", "s1", "s2", "b1"]


def test_nobody_overtakes_a_line() -> None:
    async def work() -> None:
        gate = _gate()
        held = await gate.acquire("standard")
        waiting = asyncio.create_task(gate.acquire("batch"))
        await settle()
        held.release()
        late = asyncio.create_task(gate.acquire("batch"))
        await settle()
        assert waiting.done()
        assert not late.done()
        waiting.result().release()
        (await late).release()

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("queued", "timeout_ms", "code", "retry_after_s"), [(0, 1000, "queue_full", 1.0), (1, 2000, "queue_timeout", 1.0)]
)
def test_a_refusal_says_why_and_when_to_come_back(
    queued: int, timeout_ms: int, code: str, retry_after_s: float
) -> None:
    async def work() -> None:
        gate = _gate(queued=queued, timeout_ms=timeout_ms)
        held = await gate.acquire("standard")
        with pytest.raises(AdmissionError) as caught:
            await gate.acquire("standard")
        assert (caught.value.code, caught.value.retry_after_s, caught.value.retryable) == (code, retry_after_s, True)
        assert gate.queued == 0
        held.release()
        held.release()
        assert gate.active == 0, "releasing twice is the same as once"

    in_virtual_time(work)


def test_a_drain_refuses_the_line_and_waits_for_what_runs() -> None:
    async def work() -> None:
        gate = _gate()
        held = await gate.acquire("standard")
        waiting = asyncio.create_task(outcome_of(gate.acquire("standard")))
        await settle()
        draining = asyncio.create_task(gate.drain(5.0))
        await settle()
        assert await waiting == "draining"
        assert await outcome_of(gate.acquire("interactive")) == "draining"
        held.release()
        await draining
        assert (gate.active, gate.queued) == (0, 0)
        gate.open()
        (await gate.acquire("standard")).release()

    in_virtual_time(work)


def test_a_drain_does_not_wait_longer_than_told() -> None:
    async def work() -> None:
        gate = _gate()
        await gate.acquire("standard")
        began_s = asyncio.get_running_loop().time()
        await gate.drain(5.0)
        assert gate.active == 1
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(5.0)

    in_virtual_time(work)


def test_idle_time_starts_with_the_last_release() -> None:
    async def work() -> None:
        gate = _gate()
        assert gate.idle_since_s is None
        gate.open()
        assert gate.idle_since_s == 0
        permit = await gate.acquire("standard")
        assert gate.idle_since_s is None
        await asyncio.sleep(3)
        permit.release()
        assert gate.idle_since_s == 3

    in_virtual_time(work)


def test_adjusted_bounds_hold_for_who_comes_next() -> None:
    async def work() -> None:
        gate = _gate(queued=1)
        await gate.acquire("standard")
        waiting = asyncio.create_task(outcome_of(gate.acquire("standard")))
        await settle()
        gate.adjust(max_queued=0, queue_timeout_ms=10)
        assert await outcome_of(gate.acquire("standard")) == "queue_full"
        assert not waiting.done()
        assert await waiting == "queue_timeout"

    in_virtual_time(work)


def test_a_waiter_cancelled_as_it_is_given_the_permit_hands_it_on() -> None:
    async def work() -> None:
        gate = _gate()
        held = await gate.acquire("standard")
        first = asyncio.create_task(gate.acquire("standard"))
        second = asyncio.create_task(gate.acquire("standard"))
        await settle()
        held.release()
        first.cancel()
        (await second).release()
        assert (gate.active, gate.queued) == (0, 0)

    in_virtual_time(work)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "release", "cancel", "close", "open"]),
            st.sampled_from(["interactive", "standard", "batch"]),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_no_permit_is_lost_or_invented(steps: list[tuple[str, Priority]], active: int, queued: int) -> None:
    async def work() -> None:
        gate = Gate(max_active=active, max_queued=queued, queue_timeout_ms=60_000)
        asking: list[asyncio.Task[Permit]] = []
        for what, priority in steps:
            if what == "ask":
                asking.append(asyncio.create_task(gate.acquire(priority)))
            elif what == "close":
                gate.close("draining")
            elif what == "open":
                gate.open()
            else:
                for task in asking:
                    granted = task.done() and not task.cancelled() and task.exception() is None
                    if what == "release" and granted:
                        task.result().release()
                        asking.remove(task)
                        break
                    if what == "cancel" and not task.done():
                        task.cancel()
                        break
            await settle(4)
            held = sum(task.done() and not task.cancelled() and task.exception() is None for task in asking)
            assert gate.active == held <= active
            assert gate.queued == sum(not task.done() for task in asking) <= queued
        for task in asking:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and task.exception() is None:
                task.result().release()
        assert (gate.active, gate.queued) == (0, 0)

    in_virtual_time(work)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["interactive", "standard", "batch"]), min_size=20, max_size=60))
def test_whoever_is_first_of_its_class_waits_for_nine_others_at_most(arrivals: list[Priority]) -> None:
    async def work() -> None:
        gate = _gate(queued=1000, timeout_ms=3_600_000)
        held = await gate.acquire("standard")
        lines: dict[Priority, list[asyncio.Task[Permit]]] = {"interactive": [], "standard": [], "batch": []}
        passed = dict.fromkeys(lines, 0)

        async def arrive(priority: Priority) -> None:
            lines[priority].append(asyncio.create_task(gate.acquire(priority)))
            await settle(2)

        for priority in (*lines, *arrivals[:10]):
            await arrive(priority)
        last: list[Priority] = ["interactive"] * 12
        for priority in (*arrivals[10:], *last):
            await arrive(priority)
            held.release()
            await settle(2)
            (served,) = [name for name, line in lines.items() if line and line[0].done()]
            held = lines[served].pop(0).result()
            for name, line in lines.items():
                passed[name] = passed[name] + 1 if line and name != served else 0
                assert passed[name] <= 9, name
        for task in (task for line in lines.values() for task in line):
            task.cancel()
        await settle(4)
        held.release()
        assert (gate.active, gate.queued) == (0, 0)

    in_virtual_time(work)


def test_batch_is_served_between_callers_of_a_higher_class_that_never_end() -> None:
    async def work() -> int:
        gate = _gate(queued=100, timeout_ms=3_600_000)
        held = await gate.acquire("interactive")
        batch = asyncio.create_task(gate.acquire("batch"))
        await settle(2)
        served = 0
        while not batch.done():
            following = asyncio.create_task(gate.acquire("interactive"))
            await settle(2)
            held.release()
            await settle(2)
            if following.done():
                held, served = following.result(), served + 1
        return served

    assert in_virtual_time(work) == 8
