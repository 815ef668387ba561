"""What this machine is, as far as engine files go."""

from __future__ import annotations

import os
import platform

from sbctl.engines.release_pins import Machine

__all__ = ["this_machine"]


def this_machine() -> Machine:
    """The host that runs this process. On macOS with its version, which decides what it can load."""
    system, arch = platform.system(), platform.machine()
    if system == "Darwin":
        return Machine(system, arch, os_version=platform.mac_ver()[0])
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "-")
    except (ValueError, OSError):
        libc = ""
    return Machine(system, arch, libc or "unknown")
