"""The unit of one engine: what systemd is told so that an engine can do its work and nothing else. Pure.

An engine that listens on a UNIX socket has no network at all; one with a port has loopback. It sees no home, no state and no configuration
of ours, no other engine's socket, no device but the accelerators that are there. It cannot write anywhere but its own /tmp and the directory
of its socket, gains no right, leaves no core file, and dies as a whole. Its output goes to the journal, which bounds it.

Known to break engines, and so not set for them: a private /dev and MemoryDenyWriteExecute with accelerators (drivers and their compilers),
ProcSubset=pid with them (NVML reads /proc/driver).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.runtime.launcher.spec import EngineSpec

__all__ = ["JOURNAL_IDENTIFIER", "Machine", "start_command", "unit_properties"]

JOURNAL_IDENTIFIER: Final = "sbctl-engine"
_STOP_S: Final = 120
"""The longest a stop may take before systemd kills; the launcher kills earlier, after the grace it was asked for."""

_ALWAYS: Final = (
    "User=sbctl-engine",
    "Group=sbctl-engine",
    "RemainAfterExit=yes",  # so that how it ended can still be asked
    "Restart=no",
    "KillMode=control-group",
    f"TimeoutStopSec={_STOP_S}",
    "OOMPolicy=stop",
    "OOMScoreAdjust=300",
    "LimitCORE=0",
    "LimitNOFILE=65536",
    "LimitMEMLOCK=infinity",
    "TasksMax=4096",
    "UMask=0007",  # its socket is for its group, the runtime's, and nobody else
    "WorkingDirectory=/",
    "StandardInput=null",
    "StandardOutput=journal",
    "StandardError=journal",
    f"SyslogIdentifier={JOURNAL_IDENTIFIER}",
    "LogRateLimitIntervalSec=30",
    "LogRateLimitBurst=2000",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "AmbientCapabilities=",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "PrivateIPC=yes",
    "ProtectProc=invisible",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "RemoveIPC=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources",
    "SystemCallErrorNumber=EPERM",
    "InaccessiblePaths=-/etc/sbctl",
    "InaccessiblePaths=-/var/lib/sbctl",
)

_SINCE: Final[Mapping[str, int]] = {
    "ProtectProc": 247,
    "ProcSubset": 247,
    "PrivateIPC": 248,
    "SocketBindDeny": 249,
    "SocketBindAllow": 249,
}
"""Properties that an older systemd would refuse the unit for, with the version that brought them."""

_HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the host offers: its systemd, its accelerators (device nodes) and the groups that may open them."""

    systemd_version: int
    devices: tuple[str, ...] = ()
    device_groups: tuple[str, ...] = ()


def unit_properties(spec: EngineSpec, machine: Machine) -> list[str]:
    """`Name=value`, one a property; every value is a constant or a word that `read_spec` admitted."""
    listed = [
        f"Description=sbctl engine {spec.deployment} generation {spec.generation} replica {spec.replica}",
        *_ALWAYS,
        *_network(spec),
        *_devices(spec, machine),
        *_weights(spec),
        f"MemoryMax={spec.memory_bytes}",
        "MemorySwapMax=0",
    ]
    return [entry for entry in listed if _SINCE.get(entry.partition("=")[0], 0) <= machine.systemd_version]


def start_command(spec: EngineSpec, machine: Machine, program: str) -> list[str]:
    """The whole command that makes the unit; it returns when the engine's program runs, or could not be executed."""
    properties = (part for entry in unit_properties(spec, machine) for part in ("--property", entry))
    environment = (part for name, value in sorted(spec.env.items()) for part in ("--setenv", f"{name}={value}"))
    fixed = (program, "--quiet", "--no-ask-password", "--service-type=exec", "--unit", spec.unit)
    return [*fixed, *properties, *environment, "--", *spec.argv]


def _network(spec: EngineSpec) -> Sequence[str]:
    if spec.unix_path is not None:
        own = spec.unix_path.parent
        return (
            "PrivateNetwork=yes",
            "RestrictAddressFamilies=AF_UNIX",
            f"TemporaryFileSystem={own.parent.parent}:ro",
            f"BindPaths={own}",
            f"ReadWritePaths={own}",
        )
    return (
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
        "IPAddressDeny=any",
        "IPAddressAllow=localhost",
        "SocketBindDeny=any",
        f"SocketBindAllow=ipv4:tcp:{spec.port}",
        "InaccessiblePaths=-/run/sbctl",
    )


def _devices(spec: EngineSpec, machine: Machine) -> Sequence[str]:
    if machine.devices:
        groups = (f"SupplementaryGroups={' '.join(machine.device_groups)}",) if machine.device_groups else ()
        return ("DevicePolicy=closed", *(f"DeviceAllow={device} rw" for device in machine.devices), *groups)
    # What a program of the user's compiles at run time is not known here; the wheel compiles nothing without an accelerator.
    writes_code = ("MemoryDenyWriteExecute=yes",) if spec.kind == "wheel" else ()
    return ("PrivateDevices=yes", "ProcSubset=pid", "PrivateUsers=yes", *writes_code)


def _weights(spec: EngineSpec) -> Sequence[str]:
    at_home = [root for root in spec.weights if any(home in root.parents for home in _HOMES)]
    if not at_home:
        return ("ProtectHome=yes", *(f"ReadOnlyPaths=-{root}" for root in spec.weights))
    return ("ProtectHome=tmpfs", *(f"BindReadOnlyPaths=-{root}" for root in at_home))
