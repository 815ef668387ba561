"""Workers that take a dispatch and say nothing, in virtual time: whom the caller's request goes to then, and when they are asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.gateway.upstream import EngineConnection
from sbctl.runtime.peer.choice import Candidate
from sbctl.runtime.peer.client import PeerPool
from sbctl.runtime.peer.resting import Rests
from sbctl.runtime.peer.signs import INTERIM, SIGN_S, SILENCE_S
from tests.simulators.engine_world import VirtualLoop, in_virtual_time
from tests.simulators.peer_world import DONE, STREAM, Caller, GatewayNode, PeerWorld, event

ANSWER = STREAM + event("Hel") + event("lo") + DONE
Says = Callable[["Line"], None]


class Line:
    """A connection to a worker, which does with each dispatch what it is told; as a transport."""

    def __init__(self, connection: EngineConnection, says: Says) -> None:
        self._connection = connection
        self._says = says
        self.is_cut = False

    def say(self, data: bytes) -> None:
        if not self.is_cut:
            self._connection.data_received(data)

    def later(self, seconds: float, data: bytes) -> None:
        asyncio.get_running_loop().call_later(seconds, self.say, data)

    def write(self, _data: bytes) -> None:
        self._says(self)

    def abort(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    close = abort

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Scene:
    """A gateway, and workers by name that say what they say."""

    def __init__(self, folder: Path, workers: dict[str, Says]) -> None:
        self.gateway: GatewayNode = PeerWorld(folder).gateway()
        self.workers = workers
        self.asked: list[str] = []
        self.lines: list[Line] = []
        self.gateway.directory.candidates = [
            Candidate(node_id=name, generation=3, state="ready", address=f"{name}:9443", active=number)
            for number, name in enumerate(workers)
        ]

    async def connect(self, pool: PeerPool) -> EngineConnection:
        name = pool.address.partition(":")[0]
        made = pool._make()

        def says(line: Line) -> None:
            self.asked.append(name)
            self.workers[name](line)

        self.lines.append(Line(made, says))
        made.connection_made(cast("asyncio.BaseTransport", self.lines[-1]))
        return made

    async def ask(self, *, patience_s: float = 30.0) -> tuple[Caller, float]:
        """The caller's side, and how long it took."""
        loop = asyncio.get_running_loop()
        caller, began_s = Caller(), loop.time()
        await self.gateway.dispatcher.ask(self.gateway.request(caller, deadline_s=began_s + patience_s))
        return caller, loop.time() - began_s

    def counted(self, name: str) -> dict[str, float]:
        """A metric's values by outcome or reason."""
        found = [sample for family in self.gateway.registry.collect() for sample in family.samples]
        return {
            sample.labels.get("outcome", sample.labels.get("reason", "")): sample.value
            for sample in found
            if sample.name == name
        }


def silent(_line: Line) -> None:
    """A process that was stopped, or somebody who only claims to serve."""


def answers(line: Line) -> None:
    line.say(ANSWER)


def long_prompt(line: Line) -> None:
    for number in range(1, 721):
        line.later(number * SIGN_S, INTERIM)
    line.later(1801, ANSWER)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a scenario among these workers."""

    def run(work: Callable[[Scene], Coroutine[Any, Any, None]], **workers: Says) -> None:
        async def whole() -> None:
            scene = Scene(tmp_path, workers)
            monkeypatch.setattr(PeerPool, "_connect", lambda pool: scene.connect(pool))
            await work(scene)
            scene.gateway.client.close()

        in_virtual_time(whole)

    return run


Play = Callable[..., None]


def test_a_silent_worker_is_left_after_ten_seconds_and_not_chosen_next(play: Play) -> None:
    async def work(scene: Scene) -> None:
        caller, took_s = await scene.ask()
        assert (caller.status, caller.broke, took_s) == (200, False, SILENCE_S)
        assert caller.body.count(b"Hel") == 1
        assert scene.lines[0].is_cut, "what a worker may begin later is taken back"
        assert scene.counted("sbproxy_managed_replica_attempts_total") == {"worker_silent": 1, "ok": 1}
        assert scene.counted("sbproxy_managed_replica_failovers_total") == {"worker_silent": 1}
        assert scene.counted("sbproxy_model_plane_failing_peers") == {"": 1}
        assert (await scene.ask())[1] == 0
        assert scene.asked == ["a", "b", "b"]

    play(work, a=silent, b=answers)


def test_a_worker_that_says_it_is_at_it_is_waited_for_as_long_as_a_prompt_takes(play: Play) -> None:
    async def work(scene: Scene) -> None:
        caller, took_s = await scene.ask()
        assert (caller.status, took_s) == (200, 1801)
        assert scene.asked == ["a"]

    play(work, a=long_prompt, b=answers)


def test_a_worker_that_is_stopped_over_a_prompt_is_left(play: Play) -> None:
    def stopped(line: Line) -> None:
        line.later(SIGN_S, INTERIM)

    async def work(scene: Scene) -> None:
        caller, took_s = await scene.ask()
        assert (caller.status, took_s) == (200, SIGN_S + SILENCE_S)

    play(work, a=stopped, b=answers)


@pytest.mark.parametrize("head", [STREAM, b"HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\n{"], ids=["answer", "refusal"])
def test_a_head_without_its_body_is_no_answer(play: Play, head: bytes) -> None:
    async def work(scene: Scene) -> None:
        caller, took_s = await scene.ask()
        assert (caller.status, took_s, scene.asked) == (200, SILENCE_S, ["a", "b"])

    play(work, a=lambda line: line.say(head), b=answers)


def test_silence_on_a_kept_connection_is_no_closed_connection(play: Play) -> None:
    """It would be asked anew on another one, and waited for again."""

    async def work(scene: Scene) -> None:
        await scene.ask()
        scene.workers["a"] = silent
        caller, took_s = await scene.ask()
        assert (caller.status, took_s) == (200, SILENCE_S)
        assert scene.asked == ["a", "a", "b"]

    play(work, a=answers, b=answers)


def test_a_gateway_that_stood_still_itself_reads_first_what_came_meanwhile(play: Play) -> None:
    async def work(scene: Scene) -> None:
        asking = asyncio.create_task(scene.ask())
        await asyncio.sleep(SIGN_S)
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        loop.pass_s(60)
        loop.call_later(0.1, scene.lines[0].say, ANSWER)
        caller, _took_s = await asking
        assert (caller.status, scene.asked) == (200, ["a"])

    play(work, a=silent, b=answers)


def test_an_answer_that_comes_too_late_reaches_nobody(play: Play) -> None:
    async def work(scene: Scene) -> None:
        caller, _took_s = await scene.ask()
        assert b"late" not in caller.body
        assert caller.body.count(b"[DONE]") == 1

    play(work, a=lambda line: line.later(SILENCE_S + 1e-10, STREAM + event("late")), b=answers)


def test_the_queue_timeout_leaves_room_for_one_silent_worker_and_for_no_more(play: Play) -> None:
    async def work(scene: Scene) -> None:
        with pytest.raises(SbctlError) as caught:
            await scene.ask(patience_s=5)
        assert caught.value.code == "worker_silent"
        assert scene.asked == ["a", "b"]

    play(work, a=silent, b=silent, c=answers)


def test_after_its_rest_one_request_tries_a_failed_worker_and_others_follow_its_first_word(play: Play) -> None:
    async def work(scene: Scene) -> None:
        await scene.ask()
        await asyncio.sleep(5)
        scene.workers["a"] = lambda line: line.later(1, INTERIM)
        trial = asyncio.create_task(scene.ask())
        await asyncio.sleep(0.5)
        await scene.ask()
        assert scene.asked == ["a", "b", "a", "b"]
        await asyncio.sleep(1)
        scene.workers["a"] = answers
        scene.gateway.directory.candidates = scene.gateway.directory.candidates[::-1]
        assert scene.counted("sbproxy_model_plane_failing_peers") == {"": 0}
        trial.cancel()

    play(work, a=silent, b=answers)


def test_rests_grow_with_each_failure_in_a_row_and_end_with_a_word() -> None:
    now_s = 0.0
    rests = Rests(lambda: now_s)
    lengths = []
    for _ in range(6):
        rests.failed("a", asked_s=now_s)
        rests.failed("a", asked_s=now_s - 1)
        began_s = now_s
        while "a" in rests:
            now_s += 1
        lengths.append(now_s - began_s)
    assert lengths == [5, 10, 20, 40, 60, 60], "those that were asked before the last failure count with it"
    rests.heard("a")
    assert ("a" in rests, len(rests)) == (False, 0)
    rests.failed("a", asked_s=now_s)
    now_s += 5
    with rests.trying("a"):
        assert "a" in rests
    assert "a" not in rests
    now_s += 600
    rests.forget()
    assert len(rests) == 0
