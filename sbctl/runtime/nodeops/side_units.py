"""Units of the system's systemd that stand beside the runtime's: rendered, judged by systemd-analyze, installed when they differ, removed.

    sbctl-identity-renewal.{service,timer}   a host that enrolled asks for its next identity
    sbctl-public-tls.{path,timer,service}    files of somebody else, with the API's certificate and key, are looked at when they change
    sbctl-enrollment.service                 the enrollment server of an authority's host
    sbctl-store.service                      the cluster's store on an authority's host

Like the runtime's, they hold no timestamp, so an unchanged one is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import SbctlError
from sbctl.node.paths import PREFIX_VARIABLE
from sbctl.node.store_server import STORE_UNIT
from sbctl.runtime.nodeops.units import Systemd, Units, templates

__all__ = [
    "ENROLLMENT_UNIT",
    "RENEWAL_UNITS",
    "STORE_UNIT",
    "SYSTEM",
    "install_units",
    "installed_units",
    "remove_units",
    "render",
    "system_of_root",
]

SYSTEM: Final = Systemd("system", Path("/etc/systemd/system"), {})
ENROLLMENT_UNIT: Final = "sbctl-enrollment.service"
RENEWAL_UNITS: Final = ("sbctl-identity-renewal.timer", "sbctl-identity-renewal.service")
_RUNNING: Final = Path("/run/systemd/system")


def system_of_root(uid: int, environ: Mapping[str, str]) -> Systemd | None:
    """The system's manager, when this process may give it units: as root, outside tests' prefixes, where systemd runs."""
    if uid != 0 or environ.get(PREFIX_VARIABLE) or not _RUNNING.is_dir():
        return None
    return SYSTEM


def render(names: Iterable[str], values: Mapping[str, Any]) -> Units:
    """Unit name → text, from the templates of these names. Raises HostError `runtime.unit_value_refused`."""
    environment = templates()
    return {name: environment.get_template(f"{name}.j2").render(values).encode("ascii") for name in names}


def installed_units(systemd: Systemd, names: Iterable[str]) -> Units:
    """Those that stand there."""
    found = {name: systemd.directory / name for name in names}
    return {
        name: fs.read_bounded(path, max_bytes=1 << 20)
        for name, path in found.items()
        if path.is_file() and not path.is_symlink()
    }


def install_units(systemd: Systemd, units: Units) -> bool:
    """Put them in place when they differ; True when they did, and systemd has read them then. What it cannot read is taken back.

    Raises HostError `runtime.unit_invalid`, `host.systemctl_failed`, SbctlError `disk.*`.
    """
    former = installed_units(systemd, units)
    if former == units:
        return False
    systemd.verify(units)
    try:
        for name, text in units.items():
            fs.write_atomic(systemd.directory / name, text, mode=0o644)
        systemd.must("daemon-reload")
    except SbctlError:
        for name in units:
            if name in former:
                fs.write_atomic(systemd.directory / name, former[name], mode=0o644)
            else:
                fs.remove_file(systemd.directory / name)
        systemd.ctl("daemon-reload")
        raise
    return True


def remove_units(systemd: Systemd, names: Iterable[str]) -> bool:
    """Stop them and take them away; False when none stood there. Raises HostError `host.systemctl_failed`, SbctlError `disk.*`."""
    there = [name for name in names if os.path.lexists(systemd.directory / name)]
    if not there:
        return False
    systemd.must("disable", "--now", *there)
    for name in there:
        fs.remove_file(systemd.directory / name)
    systemd.must("daemon-reload")
    systemd.ctl("reset-failed", *there)
    return True
