"""A runtime that was started by hand: its file read again, by hand or because it changed; a bad file changes nothing and says why."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import EngineError, SbctlError
from sbctl.node.paths import NodePaths
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.event_log import EventLog
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.settings import load_settings
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, in_virtual_time, settle
from tests.simulators.runtime_world import SCOPE, content

MakeMember = Callable[..., DeploymentMember]


class _Hand:
    def __init__(self, folder: Path, world: EngineWorld) -> None:
        self.folder, self.world = folder, world
        self.file = folder / "mine.json"
        self.paths = NodePaths(folder / "etc", folder / "state", folder / "cache", folder / "opt")
        self.store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
        self.events = EventLog(folder / "runtime.db", SYSTEM_CLOCK)
        self.reconciler = Reconciler(
            scope=SCOPE,
            trust=None,
            store=self.store,
            ports=world.ports(),
            clock=SYSTEM_CLOCK,
            drain_s=5,
            parallel_prepares=2,
            by_hand=True,
        )
        self.writes = 0

    def write(self, deployments: dict[str, DeploymentMember], **runtime: Any) -> None:
        document = {
            "runtime": {"lineage": "mine", "host": SCOPE, **runtime},
            "content": content(deployments).model_dump(mode="json"),
        }
        self.write_text(json.dumps(document))

    def write_text(self, text: str) -> None:
        """As an editor does, by a rename; no two writes have the same time."""
        self.writes += 1
        beside = self.folder / "mine.tmp"
        beside.write_text(text)
        os.utime(beside, ns=(self.writes, self.writes))
        beside.replace(self.file)

    def opened(self) -> ConfigFile:
        def read() -> Any:
            return load_settings(self.paths, self.file)

        return ConfigFile(read(), read, self.reconciler, events=self.events, audit=self.store.audit)

    def states(self) -> dict[str, str]:
        return {row.deployment: row.state for row in self.reconciler.deployments()}


def _run(folder: Path, scenario: Callable[[_Hand], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        hand = _Hand(folder, EngineWorld())
        try:
            await scenario(hand)
        finally:
            await hand.reconciler.shutdown(drain_s=1.0)
            hand.events.close()
            hand.store.close()

    in_virtual_time(work)


def test_a_reload_is_the_same_transaction_as_a_bundle(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(hand: _Hand) -> None:
        hand.write({"q": make_member()})
        file = hand.opened()
        assert (await file.reload("test"))["added"] == ["q"]
        hand.write({"q": make_member(max_concurrency=9), "p": make_member("other")})
        hand.world.events.clear()
        report = await file.reload("test")
        assert (report["added"], report["changed"]) == (["p"], ["q"])
        started = next(event for event in hand.world.events if event.startswith("start q#"))
        assert hand.world.events.index(started) < hand.world.events.index("stop q#1")
        assert hand.states() == {"p": "ready", "q": "ready"}
        assert (await file.reload("test"))["preserved"] == ["p", "q"]

    _run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda hand, _: hand.write_text("{"), "json.invalid"),
        (lambda hand, _: hand.write_text('{"runtime": {}}'), "runtime.config_invalid"),
        (
            lambda hand, _: hand.write_text('{"runtime": {"lineage": "mine", "host": "local"}}'),
            "runtime.config_invalid",
        ),
        (lambda hand, make: hand.write({"q": make()}, http_bind_port=9999), "runtime.restart_needed"),
        (lambda hand, _: hand.file.unlink(), "file.missing"),
        (lambda hand, make: hand.write({"q": make(max_concurrency=3)}), "engine_early_exit"),
    ],
    ids=["no JSON", "no settings", "no content", "another port", "gone", "an engine that ends"],
)
def test_a_bad_file_leaves_the_old_serving_and_says_why(
    tmp_path: Path, make_member: MakeMember, spoil: Callable[[_Hand, MakeMember], None], code: str
) -> None:
    async def scenario(hand: _Hand) -> None:
        hand.write({"q": make_member()})
        file = hand.opened()
        await file.reload("test")
        spoil(hand, make_member)
        hand.world.faults[:] = [EngineError("engine_early_exit", "it ended")]
        with pytest.raises(SbctlError) as caught:
            await file.reload("test")
        assert caught.value.code == code
        assert hand.states() == {"q": "ready"}
        assert hand.reconciler.generations["q"].number == 1
        hand.world.faults.clear()
        hand.write({"p": make_member("other")})
        await file.reload("test")
        assert hand.states() == {"p": "ready"}

    _run(tmp_path, scenario)


def test_a_file_that_the_audit_cannot_name_is_not_taken(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(hand: _Hand) -> None:
        hand.write({"q": make_member()})
        await hand.opened().reload("test")

        def full(*_: Any) -> None:
            raise SbctlError("store_failed", "the disk is full")

        hand.write({"q": make_member(max_concurrency=9)})
        file = ConfigFile(
            load_settings(hand.paths, hand.file),
            lambda: load_settings(hand.paths, hand.file),
            hand.reconciler,
            events=hand.events,
            audit=full,
        )
        with pytest.raises(SbctlError, match="full"):
            await file.reload("test")
        assert hand.states() == {"q": "ready"}
        assert hand.reconciler.generations["q"].number == 1, "the engine that served before serves"

    _run(tmp_path, scenario)


def test_a_change_is_taken_up_once_the_file_lies_still(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(hand: _Hand) -> None:
        hand.write({"q": make_member()})
        file = hand.opened()
        await file.reload("test")
        watch = asyncio.create_task(file.watch())
        await asyncio.sleep(10)
        before = hand.reconciler.revision
        for depth in range(1, 6):  # somebody saves again and again, faster than it lies still
            hand.write({"q": make_member(max_queue_depth=depth)})
            await asyncio.sleep(0.4)
        await asyncio.sleep(3)
        assert hand.reconciler.generations["q"].member.max_queue_depth == 5
        assert hand.reconciler.revision - before <= 2
        hand.file.unlink()
        await asyncio.sleep(5)
        hand.write_text("not yet")
        await asyncio.sleep(5)
        assert hand.states() == {"q": "ready"}
        hand.write({"p": make_member("other")})
        await asyncio.sleep(3)
        await settle()
        assert hand.states() == {"p": "ready"}
        watch.cancel()

    _run(tmp_path, scenario)
