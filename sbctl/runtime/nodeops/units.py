"""The runtime's systemd units: rendered, verified, installed together; and the few questions asked of systemctl.

    sbctl-runtime.service            the daemon
    sbctl-runtime.socket             its ports, which systemd keeps open while the daemon restarts; none where every port is chosen by the kernel
    sbctl-activation-guard.service   ends an activation whose node process died, or that a reboot cut

A unit has no timestamps and nothing that changes by itself, so its digest differs only when it does. Whatever is put into it passes
`unit_value`: a newline would begin a directive, `%` a specifier, `$` an expansion.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sbctl.base import fs
from sbctl.base.digests import fingerprint, sha256_bytes
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.resources import data_path
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.launcher.site import SOCKET_PATH as LAUNCHER_SOCKET_PATH
from sbctl.runtime.nodeops.programs import Finished, run_program
from sbctl.runtime.nodeops.users import RUNTIME_USER
from sbctl.runtime.public_tls_files import PAIR_NAME

if TYPE_CHECKING:
    import jinja2

__all__ = [
    "GUARD_NAME",
    "SOCKET_NAME",
    "UNIT_NAME",
    "Systemd",
    "Units",
    "refused_by_systemd",
    "render_units",
    "socket_addresses",
    "systemd_of",
    "templates",
    "unit_value",
    "units_digest",
]

UNIT_NAME: Final = "sbctl-runtime.service"
SOCKET_NAME: Final = "sbctl-runtime.socket"
GUARD_NAME: Final = "sbctl-activation-guard.service"

Units = Mapping[str, bytes]
"""File name → content."""

_OURS: Final = (UNIT_NAME, SOCKET_NAME, GUARD_NAME)
_LISTEN: Final = re.compile(rb"^ListenStream=(\S+)$", re.MULTILINE)
_QUICK_S: Final = 30.0
_SLOW_S: Final = 180.0
_VALUE: Final = re.compile(r"[A-Za-z0-9_./@:+,=\[\]-]{1,4096}")
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


def templates() -> jinja2.Environment:
    """The units' templates. One that is rendered raises HostError `runtime.unit_value_refused`."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(str(data_path("templates", "systemd"))),
        undefined=jinja2.StrictUndefined,
        finalize=unit_value,
        autoescape=False,  # noqa: S701 - not HTML; `finalize` refuses what a unit cannot hold
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def refused_by_systemd(
    directory: Path, units: Units, *, scope: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> str | None:
    """What systemd-analyze has against these files, under their own names in a directory below `directory` that goes away.

    None: nothing, or it is not on this host. Raises HostError `host.program_timeout`, `host.program_failed`, SbctlError `disk.*`.
    """
    stage = directory / f".sbctl-tmp-{secrets.token_hex(8)}"
    fs.ensure_directory(stage, mode=0o700)
    try:
        for name, content in units.items():
            fs.write_atomic(stage / name, content, mode=0o644)
        files = [str(stage / name) for name in sorted(units)]
        argv = ("systemd-analyze", *scope, "verify", "--man=no", "--recursive-errors=no", *files)
        done = run_program(argv, deadline_s=_QUICK_S, environ=environ)
    except HostError as error:
        if error.code == "host.program_missing":
            return None
        raise
    finally:
        fs.remove_tree(stage)
    return done.tail() if done.returncode else None


def render_units(
    kind: Literal["system", "user"], paths: NodePaths, version_directory: Path, config: RuntimeConfig
) -> Units:
    """The units of one version with one configuration. Raises HostError `runtime.unit_value_refused`."""
    environment = templates()
    addresses = _listen_addresses(config)
    values: dict[str, dict[str, Any]] = {
        UNIT_NAME: {
            "python": version_directory / "bin" / "python",
            "state": paths.state,
            "cache": Path(config.cache_directory) if config.cache_directory else paths.models,
            "user": RUNTIME_USER,
            "launcher": LAUNCHER_SOCKET_PATH,
            "secrets": paths.secrets,
            "fetching_secrets": (*config.egress.secrets, *config.provider_keys),
            "certificate": PAIR_NAME if config.has_tls else "",
            "sockets": bool(addresses),
            "socket_name": SOCKET_NAME,
            "stop_s": config.shutdown_deadline_ms // 1000 + _STOP_MARGIN_S,
        },
        GUARD_NAME: {"python": paths.proven / "bin" / "python", "activation": paths.activation},
    }
    if addresses:
        values[SOCKET_NAME] = {"addresses": addresses}
    return {
        name: environment.get_template(f"{name}.j2").render(kind=kind, **given).encode("ascii")
        for name, given in values.items()
    }


def _listen_addresses(config: RuntimeConfig) -> list[str]:
    """As ListenStream= takes them; a port that the kernel chooses is bound by the daemon."""
    bound = [(config.http_bind_address, config.http_bind_port)]
    if config.https_bind_port is not None:
        bound.append((config.http_bind_address, config.https_bind_port))
    if config.admin_enabled:
        bound.append((config.admin_bind, config.admin_port))
    return [f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address, port in bound if port]


def socket_addresses(units: Units) -> frozenset[str]:
    """What the socket unit among `units` listens on; nothing without one."""
    return frozenset(found.decode("ascii", "replace") for found in _LISTEN.findall(units.get(SOCKET_NAME, b"")))


def units_digest(units: Units) -> str | None:
    """One digest of all; None when there are none."""
    return fingerprint({name: sha256_bytes(content) for name, content in units.items()}) if units else None


@dataclass(frozen=True, slots=True)
class Systemd:
    """The system's manager, or one user's."""

    kind: Literal["system", "user"]
    directory: Path
    environ: Mapping[str, str]

    @property
    def unit_path(self) -> Path:
        return self.directory / UNIT_NAME

    def unit_paths(self) -> tuple[Path, ...]:
        """Where units of ours stand or may stand."""
        return tuple(self.directory / name for name in _OURS)

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

    def is_active(self, name: str = UNIT_NAME) -> bool:
        return self.ctl("is-active", "--quiet", name).returncode == 0

    def restarts(self) -> int:
        """How often the runtime was started anew by itself since somebody started it; 0 when nobody can tell."""
        told = self.ctl("show", "--property=NRestarts", "--value", UNIT_NAME).output.strip()
        return int(told) if told.isdigit() else 0

    def installed(self) -> Units:
        """The units of ours that stand there."""
        return {
            path.name: fs.read_bounded(path, max_bytes=1 << 20)
            for path in self.unit_paths()
            if path.is_file() and not path.is_symlink()
        }

    def install(self, units: Units) -> bool:
        """Put the units in place when they differ; True when they did. All are verified first, and systemd has read them on return.

        When it cannot read them the former ones are back. Raises HostError `runtime.unit_invalid`, `host.systemctl_failed`, SbctlError `disk.*`.
        """
        former = self.installed()
        if former == units:
            return False
        fs.ensure_directory(self.directory, mode=0o755)
        self.verify(units)
        try:
            self._write(units)
            self.must("daemon-reload")
        except SbctlError:
            self._write(former)
            self.ctl("daemon-reload")
            raise
        return True

    def _write(self, units: Units) -> None:
        found = self.installed()
        for name in _OURS:
            content = units.get(name)
            if content is None:
                fs.remove_file(self.directory / name)
            elif found.get(name) != content:
                fs.write_atomic(self.directory / name, content, mode=0o644)

    def verify(self, units: Units) -> None:
        """Raises HostError `runtime.unit_invalid`, and as `refused_by_systemd`."""
        scope = ("--user",) if self.kind == "user" else ()
        said = refused_by_systemd(self.directory, units, scope=scope, environ=self.environ)
        if said is not None:
            raise HostError(
                "runtime.unit_invalid",
                f"systemd refuses the units: {said}",
                place=str(self.unit_path),
                next_step="nothing was changed; this is a fault of sbctl unless a drop-in of yours is named",
            )

    def why(self, name: str = UNIT_NAME) -> str:
        """The last lines of a unit's journal; empty when it cannot be read."""
        scope = ("--user",) if self.kind == "user" else ()
        argv = ("journalctl", *scope, "--unit", name, "--lines", "20", "--no-pager", "--output", "cat")
        try:
            return run_program(argv, deadline_s=_QUICK_S, environ=self.environ).tail(8)
        except HostError:
            return ""


def systemd_of(init: str, environ: Mapping[str, str], uid: int) -> Systemd | None:
    """The manager that the host's facts name (`systemd_system`, `systemd_user`); None for `none`."""
    if init == "systemd_system":
        return Systemd("system", Path("/etc/systemd/system"), {})
    if init == "systemd_user":
        home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
        kept = {name: environ[name] for name in ("HOME", "DBUS_SESSION_BUS_ADDRESS") if environ.get(name)}
        kept["XDG_RUNTIME_DIR"] = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
        return Systemd("user", home / "systemd" / "user", kept)
    return None
