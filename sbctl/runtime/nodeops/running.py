"""What shall run on a host, whether it does, and how it is brought about: by systemd, else by a small parent process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from sbctl.base import fs
from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, InputError
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.units import (
    GUARD_NAME,
    SOCKET_NAME,
    UNIT_NAME,
    Systemd,
    socket_addresses,
    systemd_of,
)
from sbctl.runtime.nodeops.users import find_users, own_directories
from sbctl.runtime.supervise import start_supervised, stop_supervised, supervisor_of

__all__ = [
    "HEALTHY_DEADLINE_S",
    "LocalRuntime",
    "Wanted",
    "link_version",
    "local_runtime",
    "stamp_path",
    "stored_stamp",
]

HEALTHY_DEADLINE_S: Final = 60.0

_STAMP: Final = "activated"
_START_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
_RESTARTS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be running, as the control socket reports it."""

    version: str
    config_sha256: str
    trust_digest: str | None
    stamp: str
    """Of the units and the password, which no status reports; stored once a runtime that was started after them was healthy."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError."""
        values = {field.name: document[field.name] for field in fields(cls)}
        if not all(isinstance(value, str) or value is None for value in values.values()):
            raise TypeError("not text")
        return cls(**values)

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def differs(self, status: Mapping[str, Any] | None) -> str | None:
        """What is not so yet, in a phrase; None when all is."""
        if status is None:
            return "it does not answer"
        if not status.get("healthy"):
            return "it is not healthy"
        for name in ("version", "config_sha256", "trust_digest"):
            if status.get(name) != getattr(self, name):
                return f"it runs with another {name.partition('_')[0]}"
        return None


def stamp_path(paths: NodePaths) -> Path:
    return paths.secrets / _STAMP


def stored_stamp(paths: NodePaths) -> str:
    try:
        return fs.read_bounded(stamp_path(paths), max_bytes=1024).decode("ascii", "replace")
    except InputError:
        return ""


def link_version(link: Path) -> str | None:
    """The version that `current` or `proven` names."""
    try:
        return os.readlink(link)
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class LocalRuntime:
    """The runtime of this host in the hands of whoever starts, stops and judges it."""

    paths: NodePaths
    environ: Mapping[str, str]
    systemd: Systemd | None
    control: ControlClient
    clock: Clock

    @property
    def supervision(self) -> str:
        return self.systemd.kind if self.systemd is not None else "parent"

    def held_addresses(self) -> frozenset[str]:
        """Addresses that systemd keeps open for it."""
        if self.systemd is None or not self.systemd.is_active(SOCKET_NAME):
            return frozenset()
        return socket_addresses(self.systemd.installed())

    @property
    def has_accounts(self) -> bool:
        """Whether the runtime and its engines run under accounts of their own."""
        return self.systemd is not None and self.systemd.kind == "system"

    def give_files(self, cache: Path) -> None:
        """Let the runtime's account read and write what is its own. Raises HostError `host.ownership_failed`."""
        accounts = find_users() if self.has_accounts else None
        if accounts is not None:
            own_directories(self.paths, cache, accounts)

    def must_restart(self, wanted: Wanted) -> bool:
        """Whether what runs is not what the files say."""
        return wanted.differs(self.control.status()) is not None or wanted.stamp != stored_stamp(self.paths)

    def run(self, version: str, *, restart: bool, rebind: bool) -> None:
        """Start it when it does not run, or `restart` it. `rebind`: the ports that systemd holds are others than before.

        Raises HostError `runtime.not_healthy` when it ends while it starts, `host.systemctl_failed`, `runtime.not_stopped`.
        """
        if self.systemd is not None:
            self._run_under_systemd(self.systemd, restart=restart, rebind=rebind)
            return
        if supervisor_of(self.paths) is not None and restart:
            stop_supervised(self.paths)
        start_supervised(self.paths, self.paths.version(version) / "bin" / "python", self.environ)

    def _run_under_systemd(self, systemd: Systemd, *, restart: bool, rebind: bool) -> None:
        if supervisor_of(self.paths) is not None:
            stop_supervised(self.paths)
        units = systemd.installed()
        has_socket = bool(socket_addresses(units))
        systemd.must("enable", *(name for name in (UNIT_NAME, SOCKET_NAME, GUARD_NAME) if name in units))
        if has_socket and (rebind or not systemd.is_active(SOCKET_NAME)):
            # systemd opens ports only while the service that gets them is down.
            systemd.must("stop", SOCKET_NAME, UNIT_NAME, deadline_s=_START_DEADLINE_S)
            self._start_socket(systemd)
        try:
            done = systemd.ctl("restart" if restart else "start", UNIT_NAME, deadline_s=_START_DEADLINE_S)
        except HostError as error:
            if error.code != "host.program_timeout":
                raise
            raise self.not_healthy(f"it did not start within {_START_DEADLINE_S:.0f} s", systemd.why()) from error
        if done.returncode:
            raise self.not_healthy("it ended while it started", systemd.why() or done.tail())

    def _start_socket(self, systemd: Systemd) -> None:
        done = systemd.ctl("start", SOCKET_NAME)
        if done.returncode:
            raise self.not_healthy("systemd cannot open its ports", systemd.why(SOCKET_NAME) or done.tail())

    def await_healthy(self, wanted: Wanted, *, deadline_s: float, check: Callable[[], None]) -> Mapping[str, Any]:
        """Its status once it is what is wanted. Raises HostError `runtime.not_healthy`, and what `check` raises."""
        began, looked_s = self.clock.monotonic_s(), 0.0
        while True:
            check()
            status = self.control.status()
            missing = wanted.differs(status)
            if missing is None and status is not None:
                return status
            if self.systemd is None and supervisor_of(self.paths) is None:
                raise self.not_healthy("its supervisor ended", self._log_tail())
            waited_s = self.clock.monotonic_s() - began
            if waited_s > deadline_s:
                break
            if self.systemd is not None and waited_s > looked_s + _LOOK_S:
                looked_s = waited_s
                if self.systemd.restarts() >= _RESTARTS_MAX:
                    raise self.not_healthy(f"it ended {_RESTARTS_MAX} times while it started", self.systemd.why())
            self.clock.sleep_s(_POLL_S)
        said = self.systemd.why() if self.systemd is not None else self._log_tail()
        raise self.not_healthy(f"after {deadline_s:.0f} s {missing}", said)

    def not_healthy(self, what: str, said: str) -> HostError:
        return HostError(
            "runtime.not_healthy",
            f"the runtime did not come up: {what}" + (f"; it said: {said}" if said else ""),
            place=str(self.paths.control_socket),
            next_step="correct what it says, then run sbctl apply again",
        )

    def _log_tail(self) -> str:
        from sbctl.base.display import display_safe
        from sbctl.base.secret import redact

        try:
            with (self.paths.logs / "runtime.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = file.read().decode("utf-8", "replace").splitlines()[-5:]
        except OSError:
            return ""
        return display_safe(redact("; ".join(lines)), max_chars=1500)


def local_runtime(context: NodeContext, init: str) -> LocalRuntime:
    """As the host's facts name its init."""
    systemd = systemd_of(init, context.environ, context.uid)
    return LocalRuntime(
        context.paths, context.environ, systemd, ControlClient(context.paths.control_socket), context.clock
    )
