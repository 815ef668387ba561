"""What operators asked of the cluster, on one authority: in the store under one key, and on this disk for the day when the store lost it.

asked        read what the store has, join it with what is known here, write by compare-and-set; it is told as done once the store has it
followed     whatever another authority writes is joined with what is known here, and kept
given back   what the store lacks of it, as after it was wiped
believed     by signature alone, of authorities, whatever their clocks say; what is not believed is replaced, at most twice a minute

The lease-holder follows them and ends those that are over; everybody else only keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs
from sbctl.base.clock import Clock
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, SbctlError
from sbctl.node.actions_document import ACTIONS_MAX, ACTIONS_MAX_BYTES, ActionsDocument, OperatorAction
from sbctl.placement.operator_actions import NO_ACTIONS, ActionKind, OperatorActions
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.store import ACTIONS_KEY, Bucket, Changed, ClusterStore, Gone, Resync, StoreConflictError
from sbctl.runtime.log import get_log
from sbctl.trust.peer_kinds import ACTIONS

__all__ = ["ActionsMemory", "ClusterActions"]

_NAME: Final = "cluster-actions.json"
_LOOK_AGAIN_S: Final = 30.0
_CONFLICTS_MAX: Final = 8


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    evacuations: dict[str, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)
    losses: dict[str, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)
    retries: dict[str, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: int = Field(default=1, ge=1, le=1)
    sha256: str
    actions: str


class ActionsMemory:
    """`<state>/cluster-actions.json`. Its methods block for the disk."""

    def __init__(self, state: Path) -> None:
        self._path = state / _NAME

    def keep(self, actions: OperatorActions) -> None:
        """Durable when it returns. Raises SbctlError `disk.*`."""
        kept = _Kept(
            evacuations=dict(actions.evacuations), losses=dict(actions.losses), retries=dict(actions.retries)
        ).model_dump_json()
        fs.write_atomic(
            self._path, _File(sha256=sha256_bytes(kept.encode()), actions=kept).model_dump_json().encode(), mode=0o600
        )

    def recall(self) -> OperatorActions:
        """What was kept. A damaged file is told and not used: other authorities and the store know the same."""
        try:
            file = _File.model_validate_json(fs.read_bounded(self._path, max_bytes=4 * ACTIONS_MAX_BYTES))
            if sha256_bytes(file.actions.encode()) == file.sha256:
                kept = _Kept.model_validate_json(file.actions)
                return OperatorActions(kept.evacuations, kept.losses, kept.retries)
            why = "it does not have its digest"
        except InputError as error:
            if error.code == "file.missing":
                return NO_ACTIONS
            why = error.message
        except ValidationError:
            why = "it has another form"
        get_log("actions").error("what operators asked is damaged and not used", place=str(self._path), why=why)
        return NO_ACTIONS


class ClusterActions:
    """Of one authority; used from one event loop. `held` is what counts here now."""

    def __init__(
        self,
        *,
        boot_epoch: int,
        trust: HeldTrust,
        fences: ClusterFences,
        store: ClusterStore,
        clock: Clock,
        memory: ActionsMemory,
    ) -> None:
        self._boot_epoch = boot_epoch
        self._trust = trust
        self._fences = fences
        self._store = store
        self._clock = clock
        self._memory = memory
        self._lock = asyncio.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._stored = NO_ACTIONS
        """What the store shows, as far as it is believed."""
        self._heard = False
        self._kept = True
        self._log = get_log("actions")
        self.held: OperatorActions = memory.recall()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follow the store until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            group.create_task(self._keep_giving())

    async def _follow(self) -> None:
        async for told in self._store.watch(Bucket.DESIRED, ACTIONS_KEY):
            async with self._lock:
                came_back = isinstance(told, Resync)
                if isinstance(told, Resync):
                    value = next((entry.value for entry in told.entries if entry.key == ACTIONS_KEY), None)
                    self._stored, self._heard = self._read(value), True
                elif isinstance(told, Changed) and told.entry.key == ACTIONS_KEY:
                    self._stored = self._read(told.entry.value)
                elif isinstance(told, Gone) and told.key == ACTIONS_KEY:
                    self._stored = NO_ACTIONS
                await self._take(self.held.joined(self._stored))
                if came_back:
                    await self._give_back()

    async def _keep_giving(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            async with self._lock:
                await self._take(self.held)
                await self._give_back()

    def _read(self, value: bytes | None) -> OperatorActions:
        """Nothing where it is not the word of an authority of this cluster."""
        if value is None:
            return NO_ACTIONS
        try:
            text = value.decode("utf-8", "replace")
            verified = self._trust.verifier.open(text, ACTIONS, now=self._clock.now(), marks=self._fences.known())
        except SbctlError as error:
            self._log.warning("actions in the store are not believed", code=error.code, reason=error.message)
            return NO_ACTIONS
        return OperatorActions.of(verified.document)

    async def _take(self, actions: OperatorActions) -> None:
        """On this disk, as soon as it takes them; they count in any case, since the store has them or gets them."""
        changed = actions != self.held
        self.held = actions
        if changed or not self._kept:
            try:
                await asyncio.to_thread(self._memory.keep, actions)
                self._kept = True
            except SbctlError as error:
                self._kept = False
                self._log.error("actions are not on this disk", code=error.code, reason=error.message)
        if changed:
            for listener in self._listeners:
                listener()

    async def _give_back(self) -> None:
        if not self._heard or self.held == self._stored:
            return
        try:
            await self._write(lambda known: known)
        except SbctlError as error:
            self._log.warning("the store does not take actions now", code=error.code, reason=error.message)

    async def refresh(self) -> None:
        """What the store has at this moment counts here, too. Raises UnreachableError."""
        async with self._lock:
            entry = await self._store.get(Bucket.DESIRED, ACTIONS_KEY)
            self._stored = self._read(None if entry is None else entry.value)
            await self._take(self.held.joined(self._stored))

    async def add(
        self, kind: ActionKind, subject: str, *, by: str, reason: str, is_over: bool = False, outcome: str = ""
    ) -> OperatorAction:
        """Ask for something; with `is_over` it takes back what was asked before. In the store when it returns.

        Raises UnreachableError `store.*` (with `store.outcome_unknown` it may be done), RefusedError `cluster.too_many_actions`, SbctlError
        while this node's identity does not count.
        """

        def asked(known: OperatorActions) -> OperatorActions:
            action = OperatorAction(
                number=known.next_number,
                by=by[:256],
                reason=reason[:256],
                authority=self._trust.required_signer().node_id,
                at_unix_ms=self._now_ms(),
                is_over=is_over,
                outcome=outcome,
            )
            return known.having(kind, subject, action)

        async with self._lock:
            await self._write(asked)
            return self.held.kind(kind)[subject]

    async def end(self, kind: ActionKind, subjects: frozenset[str], outcome: str) -> None:
        """They are over; one that was asked anew meanwhile is not. Raises as `add`."""
        numbers = {name: self.held.kind(kind)[name].number for name in subjects}

        def ended(known: OperatorActions) -> OperatorActions:
            for name, number in numbers.items():
                one = known.kind(kind).get(name)
                if one is not None and one.number == number and not one.is_over:
                    known = known.having(kind, name, one.model_copy(update={"is_over": True, "outcome": outcome}))
            return known

        async with self._lock:
            await self._write(ended)

    async def _write(self, change: Callable[[OperatorActions], OperatorActions]) -> None:
        for _ in range(_CONFLICTS_MAX):
            entry = await self._store.get(Bucket.DESIRED, ACTIONS_KEY)
            stored = self._read(None if entry is None else entry.value)
            wanted = change(self.held.joined(stored))
            if wanted != stored:
                try:
                    await self._store.compare_and_set(
                        Bucket.DESIRED,
                        ACTIONS_KEY,
                        self._signed(wanted).encode(),
                        expected=0 if entry is None else entry.revision,
                    )
                except StoreConflictError:
                    continue
            self._stored = wanted
            await self._take(wanted)
            return
        raise SbctlError(
            "store.conflict",
            "others write to the same place again and again",
            place=ACTIONS_KEY,
            next_step="ask again: it is the same as once",
            retryable=True,
        )

    def _signed(self, actions: OperatorActions) -> str:
        signer = self._trust.required_signer()
        claims = signer.identity.claims
        document = ActionsDocument(
            cluster_id=claims.cluster_id,
            identity_epoch=claims.identity_epoch,
            boot_epoch=self._boot_epoch,
            authority=claims.node_id,
            written_at_unix_ms=self._now_ms(),
            evacuations=dict(actions.evacuations),
            losses=dict(actions.losses),
            retries=dict(actions.retries),
        )
        return signer.sign(ACTIONS, document)

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
