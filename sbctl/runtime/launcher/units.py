"""systemd as the launcher needs it: start, look, stop, read the journal. `UnitPort` is the port; tests put their own behind it."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import grp
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from sbctl.base.display import display_safe
from sbctl.base.errors import HostError
from sbctl.base.secret import redact
from sbctl.runtime.launcher.properties import JOURNAL_IDENTIFIER, Machine, start_command
from sbctl.runtime.launcher.site import UNIT_GLOB
from sbctl.runtime.launcher.spec import UNIT_RE, EngineSpec

__all__ = ["SystemdUnits", "UnitPort", "UnitState"]

_DIRECTORIES: Final = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
_ENVIRONMENT: Final = {"PATH": ":".join(_DIRECTORIES), "LANG": "C.UTF-8", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
_DEADLINE_S: Final = 30.0
_START_S: Final = 90.0
_OUTPUT_MAX_BYTES: Final = 1024 * 1024
_LINE_MAX_CHARS: Final = 400
_FIELDS: Final = (
    "Id", "LoadState", "ActiveState", "SubState", "MainPID", "InvocationID", "ExecMainCode", "ExecMainStatus", "Result", "ControlGroup",
)  # fmt: skip
_EXITED: Final = 1
_ACCELERATORS: Final = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
                        "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd")  # fmt: skip
_DEVICE_GROUPS: Final = ("video", "render")


@dataclass(frozen=True, slots=True)
class UnitState:
    """One unit as systemd shows it. `returncode` as subprocess has it; None while it runs and when systemd does not know."""

    unit: str
    is_loaded: bool
    is_running: bool
    is_stopped: bool
    """No job and no process of it is left as far as systemd knows."""
    pid: int | None
    invocation: str
    returncode: int | None
    result: str
    cgroup: str


class UnitPort(Protocol):
    """Everything the launcher asks of the service manager."""

    async def start(self, spec: EngineSpec) -> None:
        """The engine's program runs when it returns. Raises HostError `launcher.start_failed`."""
        ...

    async def show(self, unit: str) -> UnitState: ...

    async def listed(self) -> Sequence[UnitState]:
        """All engine units that systemd has loaded, whether they run or not."""
        ...

    async def stop(self, unit: str) -> None:
        """Begin to stop it: SIGTERM now. Does not wait."""
        ...

    async def kill(self, unit: str) -> None:
        """SIGKILL to all of it."""
        ...

    async def forget(self, unit: str) -> None:
        """Let go of a unit that has ended."""
        ...

    def pids(self, cgroup: str) -> frozenset[int]:
        """Every process in a unit's control group, now."""
        ...

    async def lines(self, invocation: str, count: int) -> Sequence[str]:
        """The last lines that this run of an engine printed, safe to show; none where there is no journal."""
        ...


class SystemdUnits:
    """The system's manager, by its own programs."""

    def __init__(self) -> None:
        self._version: int | None = None

    async def start(self, spec: EngineSpec) -> None:
        command = start_command(spec, await self._machine(), _program("systemd-run"))
        status, said = await _run(command, deadline_s=_START_S)
        if status:
            raise HostError(
                "launcher.start_failed",
                f"systemd did not start the engine: {_tail(said) or f'status {status}'}",
                place=spec.unit,
                next_step=f"look at: journalctl --unit {spec.unit}",
                retryable=True,
            )

    async def show(self, unit: str) -> UnitState:
        return (await self._show([unit]))[0]

    async def listed(self) -> Sequence[UnitState]:
        said = await self._must("list-units", "--all", "--plain", "--no-legend", "--full", UNIT_GLOB)
        names = [line.split()[0] for line in said.splitlines() if line.strip()]
        ours = [name for name in names if UNIT_RE.fullmatch(name)]
        return await self._show(ours) if ours else ()

    async def stop(self, unit: str) -> None:
        await self._may("stop", "--no-block", unit)

    async def kill(self, unit: str) -> None:
        await self._may("kill", "--kill-who=all", "--signal=SIGKILL", unit)

    async def forget(self, unit: str) -> None:
        await self._may("reset-failed", unit)

    def pids(self, cgroup: str) -> frozenset[int]:
        found: set[int] = set()
        for hierarchy in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
            if cgroup.startswith("/"):
                for directory, _, _ in os.walk(hierarchy + cgroup):
                    with contextlib.suppress(OSError, ValueError):
                        text = Path(directory, "cgroup.procs").read_text(encoding="ascii")
                        found.update(int(word) for word in text.split())
        return frozenset(found)

    async def lines(self, invocation: str, count: int) -> Sequence[str]:
        try:
            program = _program("journalctl")
            await _run([program, "--sync"], deadline_s=_DEADLINE_S)
            fields = (f"_SYSTEMD_INVOCATION_ID={invocation}", f"SYSLOG_IDENTIFIER={JOURNAL_IDENTIFIER}")
            asked = [program, "--quiet", "--no-pager", "--output=cat", f"--lines={count}", *fields]
            status, said = await _run(asked, deadline_s=_DEADLINE_S)
        except HostError:
            return ()
        kept = [line.strip() for line in said.splitlines() if line.strip()][-count:] if status == 0 else []
        return [display_safe(redact(line), max_chars=_LINE_MAX_CHARS) for line in kept]

    async def _machine(self) -> Machine:
        if self._version is None:
            said = await self._must("--version")
            number = said.split()[1] if len(said.split()) > 1 else ""
            self._version = int(number) if number.isdigit() else 0
        devices = _accelerators()
        present = {group.gr_name for group in grp.getgrall()} if devices else set()
        return Machine(self._version, devices, tuple(name for name in _DEVICE_GROUPS if name in present))

    async def _show(self, units: Sequence[str]) -> list[UnitState]:
        said = await self._must("show", f"--property={','.join(_FIELDS)}", "--", *units)
        blocks = [dict(_pairs(block)) for block in said.split("\n\n") if block.strip()]
        by_name = {block.get("Id", ""): block for block in blocks}
        return [_state(unit, by_name.get(unit, {})) for unit in units]

    async def _must(self, *arguments: str) -> str:
        status, said = await _run([_program("systemctl"), "--no-ask-password", *arguments], deadline_s=_DEADLINE_S)
        if status:
            raise HostError(
                "host.systemctl_failed",
                f"systemctl {arguments[0]} failed: {_tail(said) or f'status {status}'}",
                next_step="look at: systemctl status sbctl-launcher, journalctl -u sbctl-launcher",
            )
        return said

    async def _may(self, *arguments: str) -> None:
        """What may fail because the unit is gone; how the unit is afterwards is looked at."""
        await _run([_program("systemctl"), "--no-ask-password", *arguments], deadline_s=_DEADLINE_S)


def _accelerators() -> tuple[str, ...]:
    """Device nodes of GPUs, those that exist now."""
    found = {path for pattern in _ACCELERATORS for path in glob.glob(pattern)}
    return tuple(sorted(path for path in found if not os.path.isdir(path)))


def _pairs(block: str) -> list[tuple[str, str]]:
    return [(name, value) for name, equals, value in (line.partition("=") for line in block.splitlines()) if equals]


def _state(unit: str, shown: Mapping[str, str]) -> UnitState:
    active, sub = shown.get("ActiveState", "inactive"), shown.get("SubState", "dead")
    pid, code, status = (_number(shown.get(name)) for name in ("MainPID", "ExecMainCode", "ExecMainStatus"))
    return UnitState(
        unit,
        is_loaded=shown.get("LoadState") == "loaded",
        is_running=active in ("active", "activating", "reloading") and sub != "exited",
        is_stopped=active in ("inactive", "failed") or sub == "exited",
        pid=pid or None,
        invocation=shown.get("InvocationID", ""),
        returncode=None if pid or not code else status if code == _EXITED else -status,
        result=shown.get("Result", ""),
        cgroup=shown.get("ControlGroup", ""),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _program(name: str) -> str:
    """Raises HostError `host.program_missing`."""
    for directory in _DIRECTORIES:
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    raise HostError(
        "host.program_missing",
        f"{name} is not on this host",
        place=name,
        next_step="install it on the host: it comes with systemd",
    )


async def _run(command: Sequence[str], *, deadline_s: float) -> tuple[int, str]:
    """Status and both streams. Raises HostError `host.program_timeout`, `host.program_failed`."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
        )
    except OSError as error:
        raise HostError("host.program_failed", f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        said, _ = await asyncio.wait_for(process.communicate(), deadline_s)
    except TimeoutError:
        raise HostError(
            "host.program_timeout", f"{command[0]} did not end in {deadline_s:.0f} s", retryable=True
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said[-_OUTPUT_MAX_BYTES:].decode("utf-8", "replace")


def _tail(said: str) -> str:
    lines = [line.strip() for line in said.splitlines()[-4:] if line.strip()]
    return display_safe(redact("; ".join(lines)), max_chars=1024)
