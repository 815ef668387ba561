"""Which builds of an engine sbctl installs on a host, and from which pinned file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.engine.programs import find_program
from sbctl.engines.driver import EngineWish
from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.pins import WheelPin
from sbctl.engines.release_pins import LLAMA_CPP_RELEASE_DEFAULT, ArchivePin, Machine, build_name
from sbctl.node.snapshot import HostFacts

__all__ = ["builds_to_install", "pin_for"]


def builds_to_install(spec: Mapping[str, Any], programs: Mapping[str, str]) -> list[str]:
    """Names of the builds of a `launch: binary` engine that its host must be given: none where a program on its PATH serves all that is
    asked for, unless that is a build for CUDA."""
    on_path = find_program(programs, None, spec["versions"]) if programs else None
    if on_path is not None and on_path.blocked is None and spec.get("acceleration", "cpu") != "cuda":
        return []
    versions = spec["versions"] or [LLAMA_CPP_RELEASE_DEFAULT]
    return [build_name(version, spec.get("acceleration", "cpu")) for version in versions]


def pin_for(spec: Mapping[str, Any], build: str, facts: HostFacts) -> WheelPin | ArchivePin:
    """The file of a build for a host. Raises EngineError `engine.not_pinned`, `engine.incompatible`."""
    machine = Machine("Linux", facts.arch, facts.libc)
    wish = EngineWish(
        spec["launch"], build.partition("+")[0] if spec["launch"] == "binary" else build,
        acceleration=spec.get("acceleration", "cpu"), sha256=spec.get("sha256"),
    )  # fmt: skip
    return LlamaCpp().provision(wish, machine)
