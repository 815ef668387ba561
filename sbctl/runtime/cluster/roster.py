"""The directory as it follows the store: snapshots in batches, off the loop, and one view of who counts for all who ask.

A node that writes without end, or what takes long to read, is read seldom: others are heard in time whatever one of them does.

While the store is away the last view stays in use: what expires then expired for want of the store, not of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote

from sbctl.base.clock import Clock
from sbctl.base.errors import SbctlError
from sbctl.node.cluster_documents import BundleMark
from sbctl.runtime.cluster.directory import Directory, DirectoryRow, DirectoryView, origin_of
from sbctl.runtime.cluster.roster_memory import RosterMemory
from sbctl.runtime.cluster.store import Bucket, Changed, ClusterStore, Gone, Resync
from sbctl.runtime.log import get_log

__all__ = ["Roster", "node_of_key"]

_LOOK_S: Final = 1.0
_BATCH_S: Final = 0.05
_KEEP_S: Final = 5.0
_SPACING: Final = 10.0
"""Judging a large cluster anew takes this part of one processor at most."""
_NODE_SPACING: Final = 20.0
"""Reading what one node writes takes this part of one processor at most; beyond it, only its newest words are read."""
_NODE_REST_MAX_S: Final = 10.0
_SET_MS: Final = 500.0
"""A clock that moved by more against monotonic time was set."""
_SUFFIX: Final = ".snapshot"


def node_of_key(key: str) -> str | None:
    """Whose snapshot stands under a key; None for a key of another kind."""
    if not key.endswith(_SUFFIX):
        return None
    try:
        return unquote(key.removesuffix(_SUFFIX).replace("=", "%"), errors="strict")
    except UnicodeDecodeError:
        return None


class Roster:
    """`active`: the bundle that this node holds. `view` is the newest judgement, at most a second old."""

    def __init__(
        self,
        directory: Directory,
        *,
        store: ClusterStore,
        clock: Clock,
        active: Callable[[], BundleMark | None],
        grace_s: float,
        memory: RosterMemory,
    ) -> None:
        """`grace_s`: so long after the store came back, snapshots that ended meanwhile still count for requests.

        Whom this node knew before is known again when this returns, so that a gateway has somebody to ask at its first request.
        """
        self._directory = directory
        self._store = store
        self._clock = clock
        self._active = active
        self._grace_s = grace_s
        self._memory = memory
        self._texts: dict[str, str] = {}
        self._lock = asyncio.Lock()
        self._waiting: dict[str, str] = {}
        self._fresh: set[str] = set()
        """Of those that wait, the nodes that wrote just now."""
        self._rests: dict[str, float] = {}
        """Loop time until which a node's next words wait."""
        self._gone: set[str] = set()
        self._arrived = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._was_away_until_s: float | None = None
        self._log = get_log("cluster")
        kept = memory.recall()
        self._is_recalled = kept is not None
        """Nobody was heard yet: whom it knows, it knows from before."""
        if kept is not None:
            directory.recall(*kept)
        self._view: DirectoryView = directory.view(active())
        self._watching_since_s: float | None = None

    @property
    def view(self) -> DirectoryView:
        """By the wall clock of now, also where it was just set."""
        origin_ms = origin_of(self._clock)
        if abs(origin_ms - self._view.origin_ms) > _SET_MS:
            self._view = self._view.redated(origin_ms)
        return self._view

    @property
    def watching_since_ms(self) -> int | None:
        """Since when silence is a node's own: the store has been heard without a break. None: it was not heard yet."""
        return None if self._watching_since_s is None else int(self.view.origin_ms + self._watching_since_s * 1000)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Told after every new view."""
        self._listeners.append(listener)

    async def run(self) -> None:
        if self._is_recalled:
            self._is_recalled = False
            self._was_away_until_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._take())
            group.create_task(self._look())
            group.create_task(self._remember())

    async def _remember(self) -> None:
        """Who counts and what runs there, soon after that changed; nobody is forgotten for want of the store."""
        kept: object = None
        while True:
            await asyncio.sleep(_LOOK_S)
            counted = {name: row.snapshot for name, row in self.view.rows.items() if row.snapshot and not row.exclusion}
            told = {
                name: (
                    one.boot_epoch,
                    one.node.peer_address,
                    [(each.deployment, each.deployment_generation, each.state) for each in one.replicas],
                )
                for name, one in counted.items()
            }
            if told and told != kept and self._watching_since_s is not None:
                kept = told
                texts = {name: self._texts[name] for name in told if name in self._texts}
                await asyncio.to_thread(self._memory.keep, texts, self._clock.now())
                await asyncio.sleep(_KEEP_S)

    async def _follow(self) -> None:
        async for told in self._store.watch(Bucket.NODES):
            if isinstance(told, Resync):
                # Who is not among them may have been lost with the store's data: such a one ends by its own time.
                found = {entry.key: entry.value for entry in told.entries}
                if self._watching_since_s is None:
                    self._watching_since_s = self._clock.monotonic_s()
            else:
                found = {told.entry.key: told.entry.value} if isinstance(told, Changed) else {}
                self._fresh |= {node for key in found if (node := node_of_key(key)) is not None}
                if isinstance(told, Gone) and (left := node_of_key(told.key)) is not None:
                    self._gone.add(left)
            for key, value in found.items():
                node = node_of_key(key)
                if node is not None:
                    self._waiting[node] = value.decode("utf-8", "replace")
                    self._gone.discard(node)
            self._arrived.set()

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            texts = self._readable(loop.time())
            fresh = self._fresh & texts.keys()
            # What a node said last comes before its place is empty.
            gone = self._gone - self._waiting.keys()
            self._fresh -= fresh
            self._gone -= gone
            try:
                async with self._lock:
                    took_s = await asyncio.to_thread(self._directory.take, texts, fresh=fresh)
                    for node in gone:
                        self._directory.remove(node)
            except SbctlError as error:
                # What cannot be remembered is not believed; who was believed before is asked on, as while the store is away.
                self._was_away_until_s = loop.time()
                self._log.error("snapshots not taken", code=error.code, reason=error.message)
                await asyncio.sleep(_LOOK_S)
                self._gone |= gone - self._waiting.keys()
                self._waiting = texts | self._waiting
                self._fresh |= fresh
                self._arrived.set()
                continue
            self._texts = {node: text for node, text in (self._texts | texts).items() if node not in gone}
            self._rest(took_s, loop.time())
            began_s = loop.time()
            await self.refresh()
            await asyncio.sleep(max(_BATCH_S, _SPACING * (loop.time() - began_s)))

    def _readable(self, now_s: float) -> dict[str, str]:
        """What is read now of what waits; the rest is looked at again when its time comes."""
        self._rests = {node: until_s for node, until_s in self._rests.items() if until_s > now_s}
        texts = {node: text for node, text in self._waiting.items() if node not in self._rests}
        self._waiting = {node: text for node, text in self._waiting.items() if node in self._rests}
        if self._waiting:
            next_s = min(self._rests[node] for node in self._waiting)
            asyncio.get_running_loop().call_at(next_s, self._arrived.set)
        return texts

    def _rest(self, took_s: Mapping[str, float], now_s: float) -> None:
        for node, seconds in took_s.items():
            self._rests[node] = now_s + min(_NODE_REST_MAX_S, _NODE_SPACING * seconds)

    async def _look(self) -> None:
        """Time alone changes who counts."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._store.status().state == "connected":
                if self._was_away_until_s is not None and self._watching_since_s is None:
                    self._watching_since_s = self._clock.monotonic_s()
                self._directory.contact()
            else:
                self._was_away_until_s = loop.time()
                self._watching_since_s = None
            await self.refresh()

    async def refresh(self) -> None:
        """Judge everybody anew."""
        async with self._lock:
            self._view = self._directory.view(self._active())
        for listener in self._listeners:
            listener()

    def is_asked(self, row: DirectoryRow) -> bool:
        """Whether requests may go to it: it counts, or only the store's absence, or this node's own clock, lets it look as if it did not."""
        if row.snapshot is None or row.peer is None or row.removed:
            return False
        if row.exclusion in ("snapshot_expired", "clock_skew") and self._view.own_ahead_s is not None:
            return True
        return not row.exclusion or (row.exclusion == "snapshot_expired" and self._is_away())

    def may_answer(self, row: DirectoryRow) -> bool:
        """Whether requests may go to it where nobody else is left: it was believed, and only its time is over. A slow store hides nodes, too."""
        if row.snapshot is None or row.peer is None or row.removed or self._clock.now() > row.peer.until:
            return False
        return row.exclusion in ("snapshot_expired", "clock_skew")

    def own_clock_problem(self) -> str | None:
        """What its operator has to know, where this node's clock is another than that of most nodes."""
        ahead_s = self._view.own_ahead_s
        if ahead_s is None:
            return None
        side = "ahead of" if ahead_s > 0 else "behind"
        return f"this node's clock is {abs(ahead_s):.0f} s {side} that of most nodes: set it (timedatectl set-ntp true)"

    def _is_away(self) -> bool:
        if self._is_recalled:
            return True
        since_s = self._was_away_until_s
        return since_s is not None and asyncio.get_running_loop().time() - since_s <= self._grace_s
