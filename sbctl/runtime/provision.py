"""The port through which a replica gets what an engine needs: verified weights, an installed build, and the launch specification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sbctl.engines.driver import EngineDriver
from sbctl.engines.model import Adapter, EngineBuild, LaunchSpec
from sbctl.runtime.room import Room
from sbctl.trust.bundle import DeploymentMember

__all__ = ["Prepared", "Progress", "Provisioner", "quiet"]

Progress = Callable[[int, int | None, str], None]
"""done, total (None when unknown), a note."""


def quiet(_done: int, _total: int | None, _note: str) -> None:
    """A progress listener that is not interested."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Weights and program, checked and in place."""

    weights: Path
    build: EngineBuild
    adapters: tuple[Adapter, ...] = ()


class Provisioner(Protocol):
    """Asked by replicas and by the reconciler; keeps no state about either."""

    def driver(self, engine: str) -> EngineDriver:
        """The driver of an engine kind."""
        ...

    async def check_engine(self, member: DeploymentMember) -> EngineBuild:
        """The build that serves this member. Raises EngineError `engine_missing`, `engine.*`."""
        ...

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        """Weights found by their seal, or fetched unless `pull` is manual; and the build.

        Raises ArtifactError `artifact_not_ready` and what fetching raises; EngineError as `check_engine`.
        """
        ...

    async def room(self, member: DeploymentMember, prepared: Prepared) -> Room:
        """What one replica takes of this host, margin included."""
        ...

    def launch(self, member: DeploymentMember, prepared: Prepared, *, deployment: str, room: Room) -> LaunchSpec:
        """A fresh address, the whole command line, on the devices of its room and below its ceiling. Raises EngineError `engine.unsafe_argument`, `engine.incompatible`."""
        ...

    def keep_only(self, artifacts: frozenset[str]) -> None:
        """Give up the leases on all other weights: nothing that runs or is desired uses them any more."""
        ...
