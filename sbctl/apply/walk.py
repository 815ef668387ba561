"""The walk over hosts: starts host threads as the rollout's rules allow, and receives their messages until every chain is finished.

The calling thread waits for messages; so signals reach it at once and heartbeats need no thread of their own. Host threads are daemons: a
call that hangs after a hard stop cannot hold the process.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Final

from sbctl.apply.events import CancelRequested, RolloutPaused
from sbctl.apply.host_chain import HostChain
from sbctl.apply.rollout import Rollout, Stop, Wait
from sbctl.apply.steps import RunContext

__all__ = ["Walk"]

_TICK_S: Final = 0.25
"""How often the walk looks for a heartbeat, or for the end of a pause; messages wake it at once."""


class Walk:
    """`needs` says which hosts a host's changes wait for."""

    def __init__(
        self,
        chains: Mapping[str, HostChain],
        needs: Mapping[str, frozenset[str]],
        rollout: Rollout,
        context: RunContext,
    ) -> None:
        self._context = context
        self._needs = needs
        self._rollout = rollout
        self._waiting = dict(chains)
        """Not begun."""
        self._ready: list[HostChain] = []
        """Begun, and what they waited for may be settled."""
        self._parked: dict[str, HostChain] = {}
        self._through: set[str] = set()
        """Parked, and out of the way of others: their users notice nothing of what is left."""
        self._settled_at_retry = -1
        self._running: set[str] = set()
        self._inbox: queue.SimpleQueue[tuple[HostChain, bool, BaseException | None] | None] = queue.SimpleQueue()
        self._requests_told = 0
        self._give_up_s: float | None = None
        self._pause_told_s: float | None = None

    def run(self) -> None:
        """Until every chain is finished, or a hard stop gives them up. Raises what a host thread could not handle."""
        stop_listening = self._context.cancel.listen(lambda: self._inbox.put(None))
        try:
            while self._waiting or self._ready or self._running or self._parked:
                pause_until_s = self._start()
                if self._running:
                    self._receive()
                elif pause_until_s is not None:
                    left_s = pause_until_s - self._context.clock.monotonic_s()
                    self._context.clock.sleep_s(max(0.0, min(_TICK_S, left_s)))
                elif self._parked:
                    self._release_parked()
                self._tell_requests()
                if self._given_up():
                    self._context.journal.shut()
                    return
        finally:
            stop_listening()

    def _start(self) -> float | None:
        """Start whom the rules let start; when the pause ends that keeps the next host from starting."""
        while (self._waiting or self._ready) and len(self._running) < max(1, self._context.options.parallelism):
            if self._ready:
                self._begin(self._ready.pop())
                continue
            if self._context.board.stop_reason is not None:
                # each of them settles its own rows
                self._begin(self._waiting.pop(next(iter(self._waiting))))
                continue
            now_s = self._context.clock.monotonic_s()
            busy = (self._running | self._parked.keys()) - self._through
            decision = self._rollout.next(self._eligible(), busy, now_s)
            if isinstance(decision, Wait):
                self._tell_pause(decision, now_s)
                return decision.until_s
            if isinstance(decision, Stop):
                for chain in self._waiting.values():
                    chain.give_up(decision.because)
                self._waiting.clear()
                return None
            self._rollout.started(decision)
            self._begin(self._waiting.pop(decision))
        return None

    def _eligible(self) -> list[str]:
        """Hosts that wait for no host that is not begun; all of them when each does: then they are settled by what becomes of them."""
        free = [host for host in self._waiting if not (self._needs.get(host, frozenset()) & self._waiting.keys())]
        return free or list(self._waiting)

    def _begin(self, chain: HostChain) -> None:
        self._running.add(chain.host)
        threading.Thread(target=self._work, args=(chain,), name=f"sbctl-apply-{chain.host}", daemon=True).start()

    def _work(self, chain: HostChain) -> None:
        try:
            finished = chain.advance()
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread, which raises it
            self._inbox.put((chain, True, error))
        else:
            self._inbox.put((chain, finished, None))

    def _receive(self) -> None:
        try:
            message = self._inbox.get(timeout=_TICK_S)
        except queue.Empty:
            self._context.emitter.beat(self._context.options.heartbeat_s)
            return
        if message is None:
            return
        chain, finished, error = message
        if error is not None:
            raise error
        self._running.discard(chain.host)
        if not finished:
            self._parked[chain.host] = chain
            if chain.is_through and chain.host not in self._through:
                self._through.add(chain.host)
                self._rollout.ended(chain.host, chain.result().status, self._context.clock.monotonic_s())
            return
        self._rollout.ended(chain.host, chain.result().status, self._context.clock.monotonic_s())
        self._ready.extend(self._parked.values())
        self._parked.clear()

    def _release_parked(self) -> None:
        """Nobody runs who could end their waiting. Once more each, since one may have settled what another waits for and waits itself now; when
        that brings nothing, the plan's edges go in a circle."""
        settled = self._context.board.settled
        if settled != self._settled_at_retry:
            self._settled_at_retry = settled
            self._ready.extend(self._parked.values())
            self._parked.clear()
            return
        for chain in self._parked.values():
            chain.give_up("it waits for a change on another host that waits for this one")
            self._rollout.ended(chain.host, chain.result().status, self._context.clock.monotonic_s())
        self._parked.clear()

    def _tell_pause(self, wait: Wait, now_s: float) -> None:
        if wait.until_s is not None and wait.until_s != self._pause_told_s:
            self._pause_told_s = wait.until_s
            self._context.emitter.emit(RolloutPaused(wait.until_s - now_s, tuple(self._waiting)))

    def _tell_requests(self) -> None:
        cancel = self._context.cancel
        while self._requests_told < min(cancel.requests, 2):
            self._requests_told += 1
            hard = self._requests_told > 1
            self._context.emitter.emit(CancelRequested(cancel.signal_name or "", hard))
            if hard:
                self._give_up_s = self._context.clock.monotonic_s() + self._context.options.hard_stop_wait_s
                self._context.board.drop_all_sessions()

    def _given_up(self) -> bool:
        return self._give_up_s is not None and self._context.clock.monotonic_s() >= self._give_up_s
