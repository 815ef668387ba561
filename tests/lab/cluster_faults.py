"""What can be done to a host of a cluster on the lab, each with what undoes it. None of it touches the machine's own clock or disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.lab.fixture import LabHost

__all__ = ["filled", "kill_processes", "shifted_clock", "stopped", "wipe_store"]

_DROP_IN: Final = "/etc/systemd/system/sbctl-runtime.service.d"
_SHIFTED: Final = """\
[Service]
ExecStart=
ExecStart={python} -I -c "from datetime import timedelta; from sbctl.base.clock import SystemClock; now = SystemClock.now; \
SystemClock.now = lambda self: now(self) + timedelta(seconds={shift_s}); from sbctl.runtime.main import main; raise SystemExit(main(['serve']))"
"""


def kill_processes(host: LabHost) -> None:
    """The runtime and every engine, at once; systemd starts the runtime again."""
    host.ssh("systemctl kill -s KILL sbctl-runtime.service 'sbctl-engine-*.service'")


@contextmanager
def stopped(*hosts: LabHost, units: str) -> Iterator[None]:
    """As `systemctl stop` does it, which waits for what still runs."""
    for host in hosts:
        host.ssh(f"systemctl stop {units}", timeout_s=120)
    try:
        yield
    finally:
        for host in hosts:
            host.ssh(f"systemctl start {units}", timeout_s=120)


def wipe_store(*hosts: LabHost) -> None:
    """All members lose their data at once, and begin anew."""
    for host in hosts:
        host.ssh("systemctl kill -s KILL sbctl-store.service; systemctl stop sbctl-store.service", timeout_s=120)
    for host in hosts:
        host.ssh("find /var/lib/sbctl-store/ -mindepth 1 -delete; systemctl start sbctl-store.service", timeout_s=120)


@contextmanager
def shifted_clock(host: LabHost, seconds: int) -> Iterator[None]:
    """The runtime's wall clock alone, from a restart to a restart."""
    python = (
        host.ssh("systemctl cat sbctl-runtime.service | grep ^ExecStart=").strip().split()[0].removeprefix("ExecStart=")
    )
    text = _SHIFTED.format(python=python, shift_s=seconds)
    restart = "systemctl daemon-reload; systemctl restart sbctl-runtime.service"
    host.ssh(f"mkdir -p {_DROP_IN}; cat > {_DROP_IN}/clock.conf <<'END'\n{text}END\n{restart}", timeout_s=120)
    try:
        yield
    finally:
        host.ssh(f"rm -r {_DROP_IN}; {restart}", timeout_s=120)


@contextmanager
def filled(host: LabHost) -> Iterator[None]:
    """Not a byte is left on its disk."""
    host.ssh("cat /dev/zero > /var/filler 2>/dev/null; true", timeout_s=120)
    try:
        yield
    finally:
        host.ssh("rm -f /var/filler")
