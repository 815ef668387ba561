"""Checkouts of one fleet that share a state: each has its own `.sbctl`, all meet at one place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sbctl.base.clock import Clock
from sbctl.base.secret import Secret
from sbctl.state.settings import EncryptionSettings, StateSettings
from sbctl.state.store import StateStore
from sbctl.state_backends.http import HttpBackend
from sbctl.state_backends.port import Backend
from sbctl.state_backends.postgres import PostgresBackend
from sbctl.state_backends.session import SharedSession
from sbctl.state_backends.vault import Vault
from sbctl.trust.sealing import Identity
from tests.simulators.fleet import ManualClock
from tests.simulators.state_world import APPLY, StateWorld, address, change, desired, recorded, step

__all__ = ["Checkout"]


@dataclass
class Checkout:
    """One operator's directory. Every call is a command of its own, with a store and a session of its own."""

    root: Path
    settings: StateSettings
    clock: Clock = field(default_factory=ManualClock)
    identity: Identity | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    former: EncryptionSettings | None = None
    lenient: bool = False
    notes: list[str] = field(default_factory=list)
    wrap: Callable[[Backend], Backend] = lambda backend: backend

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.world = StateWorld(self.root, self.clock)

    def resolve(self, reference: str) -> Secret:
        return Secret(self.secrets[reference].encode())

    def backend(self) -> Backend:
        password = None if self.settings.password is None else self.resolve(self.settings.password)
        if self.settings.backend == "http":
            return HttpBackend(self.settings, password, self.clock)
        return PostgresBackend(self.settings, password)

    def session(self, store: StateStore, *, write_every_s: float = 3600.0) -> SharedSession:
        vault = Vault(
            self.settings.encryption, self.resolve, identity=self.identity, former=self.former, lenient=self.lenient
        )
        return SharedSession(
            store,
            self.settings,
            backend=self.wrap(self.backend()),
            vault=vault,
            clock=self.clock,
            note=self.notes.append,
            write_every_s=write_every_s,
        )

    @contextlib.contextmanager
    def writing(
        self, *, timeout_s: float = 0.0, overrule: bool = False, write_every_s: float = 3600.0
    ) -> Iterator[tuple[StateStore, SharedSession]]:
        with self.world.locked() as store:
            session = self.session(store, write_every_s=write_every_s)
            with session.writing(self.world.info(), timeout_s, overrule=overrule):
                if not store.exists():
                    store.create("fleet")
                yield store, session

    def apply(self, *numbers: int, content: object = 0) -> int:
        """A whole run that records these."""
        with self.writing() as (store, _):
            run = store.begin_run(APPLY, [desired(number, content) for number in numbers])
            for number in numbers:
                run.intent(step(f"{address(number)}#1"), change(number))
                run.outcome(f"{address(number)}#1", "done")
                run.record(recorded(number, content))
            run.finish("applied")
            return run.serial

    def plan(self) -> dict[str, object]:
        """What a reader sees: address to content."""
        store = self.world.store()
        self.session(store).refresh()
        if not store.exists():
            return {}
        return {str(key): value.spec["content"] for key, value in store.read().resources.items()}
