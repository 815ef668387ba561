"""The runtime's systemd unit: rendered, verified, installed; and the few questions asked of systemctl.

A unit has no timestamps and nothing that changes by itself, so its digest differs only when it does. Whatever is put into it passes
`unit_value`: a newline would begin a directive, `%` a specifier, `$` an expansion.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sbctl.base import fs
from sbctl.base.errors import HostError
from sbctl.base.resources import data_path
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.programs import Finished, run_program

__all__ = ["UNIT_NAME", "Systemd", "render_unit", "systemd_of", "unit_value"]

UNIT_NAME: Final = "sbctl-runtime.service"
_QUICK_S: Final = 30.0
_SLOW_S: Final = 180.0
_VALUE: Final = re.compile(r"[A-Za-z0-9_./@:+,=-]{1,4096}")
_STOP_MARGIN_S: Final = 20


def unit_value(value: Any) -> str:
    """A value as it may stand in a unit. Raises HostError `runtime.unit_value_refused` for anything systemd would read otherwise."""
    text = str(value)
    if _VALUE.fullmatch(text) is None:
        raise HostError(
            "runtime.unit_value_refused",
            f"{text[:200]!r} cannot stand in a systemd unit",
            next_step="use directories without spaces, %, $, quotes and control characters",
        )
    return text


def render_unit(
    kind: Literal["system", "user"], paths: NodePaths, version_directory: Path, config: RuntimeConfig
) -> bytes:
    """The unit of one version with one configuration. Raises HostError `runtime.unit_value_refused`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(data_path("templates", "systemd"))),
        undefined=jinja2.StrictUndefined,
        finalize=unit_value,
        autoescape=False,  # noqa: S701 - not HTML; `finalize` refuses what a unit cannot hold
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    ports = [config.http_bind_port, *([config.admin_port] if config.admin_enabled else [])]
    text = environment.get_template(f"{UNIT_NAME}.j2").render(
        kind=kind,
        python=version_directory / "bin" / "python",
        state=paths.state,
        cache=Path(config.cache_directory) if config.cache_directory else paths.models,
        privileged_port=any(0 < port < 1024 for port in ports),
        stop_s=config.shutdown_deadline_ms // 1000 + _STOP_MARGIN_S,
    )
    return text.encode("ascii")


@dataclass(frozen=True, slots=True)
class Systemd:
    """The system's manager, or one user's."""

    kind: Literal["system", "user"]
    unit_path: Path
    environ: Mapping[str, str]

    def ctl(self, *arguments: str, deadline_s: float = _QUICK_S) -> Finished:
        scope = ("--user",) if self.kind == "user" else ()
        return run_program(
            ("systemctl", *scope, "--no-ask-password", *arguments), deadline_s=deadline_s, environ=self.environ
        )

    def must(self, *arguments: str, deadline_s: float = _SLOW_S) -> None:
        """Raises HostError `host.systemctl_failed` with what it said."""
        done = self.ctl(*arguments, deadline_s=deadline_s)
        if done.returncode:
            raise HostError(
                "host.systemctl_failed",
                f"systemctl {arguments[0]} failed: {done.tail() or f'status {done.returncode}'}",
                place=str(self.unit_path),
                next_step=f"look at: systemctl {'--user ' if self.kind == 'user' else ''}status {UNIT_NAME}",
            )

    def is_active(self) -> bool:
        return self.ctl("is-active", "--quiet", UNIT_NAME).returncode == 0

    def install(self, unit: bytes) -> bool:
        """Put the unit in place when it differs, verified first; True when it did. Enabling and reloading are separate."""
        if self.installed() == unit:
            return False
        fs.ensure_directory(self.unit_path.parent, mode=0o755)
        self._verify(unit)
        fs.write_atomic(self.unit_path, unit, mode=0o644)
        return True

    def installed(self) -> bytes | None:
        if not self.unit_path.is_file() or self.unit_path.is_symlink():
            return None
        return fs.read_bounded(self.unit_path, max_bytes=1 << 20)

    def _verify(self, unit: bytes) -> None:
        """systemd-analyze judges the file under its own name, in a directory that goes away; hosts without it skip this."""
        directory = self.unit_path.parent / f".sbctl-tmp-{secrets.token_hex(8)}"
        fs.ensure_directory(directory, mode=0o700)
        try:
            fs.write_atomic(directory / UNIT_NAME, unit, mode=0o644)
            scope = ("--user",) if self.kind == "user" else ()
            argv = (
                "systemd-analyze",
                *scope,
                "verify",
                "--man=no",
                "--recursive-errors=no",
                str(directory / UNIT_NAME),
            )
            done = run_program(argv, deadline_s=_QUICK_S, environ=self.environ)
        except HostError as error:
            if error.code == "host.program_missing":
                return
            raise
        finally:
            fs.remove_tree(directory)
        if done.returncode:
            raise HostError(
                "runtime.unit_invalid", f"systemd refuses the unit: {done.tail()}", place=str(self.unit_path)
            )

    def why(self) -> str:
        """The last lines of the unit's journal; empty when it cannot be read."""
        scope = ("--user",) if self.kind == "user" else ()
        argv = ("journalctl", *scope, "--unit", UNIT_NAME, "--lines", "20", "--no-pager", "--output", "cat")
        try:
            return run_program(argv, deadline_s=_QUICK_S, environ=self.environ).tail(8)
        except HostError:
            return ""


def systemd_of(init: str, environ: Mapping[str, str], uid: int) -> Systemd | None:
    """The manager that the host's facts name (`systemd_system`, `systemd_user`); None for `none`."""
    if init == "systemd_system":
        return Systemd("system", Path("/etc/systemd/system") / UNIT_NAME, {})
    if init == "systemd_user":
        home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
        kept = {name: environ[name] for name in ("HOME", "DBUS_SESSION_BUS_ADDRESS") if environ.get(name)}
        kept["XDG_RUNTIME_DIR"] = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
        return Systemd("user", home / "systemd" / "user" / UNIT_NAME, kept)
    return None
