"""The contract of an engine's driver: everything that differs between engines, and nothing of how processes are run.

    detect     is it here, can it be had, why not, and what to do          launch   the whole command line, environment and address
    provision  which pinned files make it on this machine                  probe    how readiness, health and progress are asked for
    launch also says how it is stopped (`LaunchSpec.stop`): the ladder is the runtime's, its times are the engine's

A driver is pure but for `detect`, which looks at the host. llama.cpp is the first. The contract has room for engines on GPUs: weights may be
a directory, a build a container or a uv tool, readiness slow, devices many, and a probe may have to generate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sbctl.engines.model import (
    Acceleration,
    Availability,
    EngineBuild,
    EngineKind,
    LaunchRequest,
    LaunchSpec,
    ProbePlan,
)
from sbctl.engines.pins import WheelPin
from sbctl.engines.release_pins import ArchivePin, Machine

__all__ = ["EngineDriver", "EngineSite", "EngineWish"]


@dataclass(frozen=True, slots=True)
class EngineWish:
    """What sb.yml asks for: `launch` as its field; `path` comes first, then what is installed or on PATH, then the pin of `version`."""

    launch: str
    version: str | None = None
    path: str | None = None
    acceleration: Acceleration = "cpu"
    sha256: str | None = None
    """Of a release file that sbctl has no pin for."""


@dataclass(frozen=True, slots=True)
class EngineSite:
    """Where to look on a host: our own engines, PATH, and what the machine is."""

    engines: Path
    search_path: str
    machine: Machine


class EngineDriver(Protocol):
    """One engine kind."""

    engine: ClassVar[EngineKind]

    def detect(self, wish: EngineWish, site: EngineSite) -> Availability:
        """Never raises: a program that misbehaves is `blocked`."""
        ...

    def provision(self, wish: EngineWish, machine: Machine) -> WheelPin | ArchivePin:
        """The pinned file that makes this engine on `machine`. Raises EngineError `engine.not_pinned`, `engine.incompatible`."""
        ...

    def launch(self, build: EngineBuild, request: LaunchRequest) -> LaunchSpec:
        """Raises EngineError `engine.unsafe_argument`, `engine.incompatible`; ValueError for an address that the engine cannot have."""
        ...

    def probe(self, request: LaunchRequest) -> ProbePlan:
        """How an engine that was launched for `request` is asked; part of its LaunchSpec."""
        ...

    def mismatch(self, spec: LaunchSpec, facts: Mapping[str, Any], slots: object) -> str | None:
        """How what a started engine tells of itself (`facts_path`, `slots_path`) differs from its launch; None when it does not."""
        ...
