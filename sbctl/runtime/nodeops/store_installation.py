"""The store's server of one host, brought to what is wanted: checked, written, reloaded or restarted, and seen to be whole.

The places of its files, and `applied.json`: digests of what the running server took up, written last.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.digests import canonical_json, fingerprint, sha256_bytes
from sbctl.base.errors import HostError, InputError, RefusedError
from sbctl.node.store_messages import StoreInstall
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.programs import run_program
from sbctl.runtime.nodeops.side_units import STORE_UNIT, install_units, render
from sbctl.runtime.nodeops.store_config import Places, group_of, hosts_file, render_config, without_users
from sbctl.runtime.nodeops.store_health import Health, look
from sbctl.runtime.nodeops.store_program import StoreProgram, programs_directory, remove_other_programs
from sbctl.runtime.nodeops.units import Systemd, Units, units_digest
from sbctl.runtime.store_exec import PROGRAM_FILE
from sbctl.runtime.supervise import STORE, start_supervised, stop_supervised, supervisor_of

__all__ = ["STATES", "Installation", "applied_before", "content_digest", "signal_reload", "store_data", "store_home"]

STATES: Final = (Path("/var/lib/sbctl-store"), Path("/var/lib/private/sbctl-store"))
_IDENTITY: Final = ("node.pem", "node-key.pem", "ca.pem")
_RUN: Final = Path("/run/sbctl-store")
_APPLIED: Final = "applied.json"
_LOW_PORTS: Final = 1024
_CHECK_S: Final = 30.0
_PEERS_S: Final = 60.0
_START_S: Final = 60.0
_WHOLE_S: Final = 120.0
_RELOAD_S: Final = 20.0
_LISTENS_S: Final = 3.0
_POLL_S: Final = 0.1


def store_home(context: NodeContext) -> Path:
    return context.paths.etc / "store"


def store_data(context: NodeContext, systemd: Systemd | None) -> Path:
    return STATES[0] if systemd is not None else context.paths.state / "store"


def applied_before(context: NodeContext) -> dict[str, Any] | None:
    try:
        document = json.loads(fs.read_bounded(store_home(context) / _APPLIED, max_bytes=65_536))
    except (InputError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def content_digest(config: bytes, hosts: bytes, program: bytes) -> str:
    return fingerprint([sha256_bytes(each) for each in (config, hosts, program)])


def signal_reload(context: NodeContext, systemd: Systemd | None) -> None:
    if systemd is not None:
        systemd.must("reload", STORE_UNIT)
        return
    with suppress(OSError, ValueError, InputError):
        pid = int(fs.read_bounded(store_data(context, None) / "nats.pid", max_bytes=32))
        program = fs.read_bounded(store_home(context) / PROGRAM_FILE, max_bytes=4096).decode()
        if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(program):
            os.kill(pid, signal.SIGHUP)


class Installation:
    """One call's work."""

    def __init__(
        self, context: NodeContext, params: StoreInstall, systemd: Systemd | None, program: StoreProgram
    ) -> None:
        self._context = context
        self._params = params
        self._systemd = systemd
        self._program = program
        self._home = store_home(context)
        self._others = frozenset(member.node_id for member in params.members) - {params.node_id}
        self._config = render_config(params, self._places(context.paths.etc / "identity" if systemd is None else _RUN))
        self._hosts = hosts_file(params)
        self._units: Units = {} if systemd is None else self._render_units()
        self.wanted = self._wanted()

    def _places(self, identity: Path) -> Places:
        data = store_data(self._context, self._systemd)
        pid_file = None if self._systemd is not None else data / "nats.pid"
        return Places(identity, data, pid_file, by_name=self._systemd is not None)

    def _render_units(self) -> Units:
        params = self._params
        return render(
            [STORE_UNIT],
            {
                "program": self._program.path,
                "python": self._context.paths.current / "bin" / "python",
                "etc": self._context.paths.etc,
                "store": self._home,
                "identity": _IDENTITY,
                "hosts": len(params.members) > 1,
                "low_port": min(params.port, *(member.port for member in params.members)) < _LOW_PORTS,
                **{name: f"/usr/bin/{name}" for name in ("install", "chown", "kill")},
            },
        )

    def check(self) -> None:
        """The server itself judges the configuration, before anything is replaced."""
        fs.ensure_directory(self._home)
        os.chmod(self._home, 0o700)
        staged = fs.temporary_path(self._home)
        try:
            fs.write_atomic(staged, render_config(self._params, self._places(self._context.paths.etc / "identity")))
            done = run_program((str(self._program.path), "-t", "--config", str(staged)), deadline_s=_CHECK_S)
        finally:
            fs.remove_file(staged)
        if done.returncode:
            raise HostError(
                "store.config_refused",
                f"nats-server {self._program.version} refuses its configuration: {done.tail(3)}"[:1000],
                place=str(self._program.path),
                next_step="nothing was changed; use the version that sbctl installs (leave proxy.cluster.store.path out)",
            )

    def _wanted(self) -> dict[str, Any]:
        """Digests of what is wanted: of all of it, and of what only a start takes up."""
        program = str(self._program.path)
        static = {
            "config": sha256_bytes(without_users(self._config)),
            "hosts": sha256_bytes(self._hosts),
            "units": units_digest(self._units),
            "program": program,
            "version": self._program.version,
        }
        return {
            "content": content_digest(self._config, self._hosts, program.encode()),
            "static": fingerprint(static),
            "group": group_of(self._params),
            "members": sorted(member.node_id for member in self._params.members),
            "node": self._params.node_id,
            "monitor_port": self._params.monitor_port,
            "version": self._program.version,
        }

    def remember(self, health: Health) -> None:
        """The running server has taken up what is wanted."""
        fs.write_atomic(self._home / _APPLIED, canonical_json({**self.wanted, "config": health.config}))

    def write(self) -> None:
        fs.write_atomic(self._home / "hosts", self._hosts, mode=0o644)
        fs.write_atomic(self._home / PROGRAM_FILE, str(self._program.path).encode())
        fs.write_atomic(self._home / "nats.conf", self._config)
        if self._systemd is not None:
            install_units(self._systemd, self._units)

    def is_at_work(self) -> bool:
        """It runs, and takes writes as far as it says."""
        if self._systemd is not None:
            is_running = self._systemd.is_active(STORE_UNIT)
        else:
            is_running = supervisor_of(self._context.paths, STORE) is not None
        health = self.look() if is_running else None
        return is_running and (health is None or not health.is_stuck)

    def look(self) -> Health | None:
        return look(self._params.monitor_port, others=self._others)

    def await_peers(self) -> None:
        """Before a member of a group goes down: the others are there and up to date, or it takes no part anyway.

        Raises RefusedError `store.quorum_at_risk`.
        """
        applied = applied_before(self._context) or {}
        port = int(applied.get("monitor_port", self._params.monitor_port))
        missing: frozenset[str] = frozenset()

        def may_go() -> bool:
            nonlocal missing
            health = look(port, others=self._others)
            if health is None or health.leader is None:
                return True
            missing = (self._others - health.connected) | (health.behind & self._others)
            return not missing

        if not self._await(may_go, _PEERS_S):
            names = " and ".join(sorted(missing))
            raise RefusedError(
                "store.quorum_at_risk",
                f"{names} is not there or not up to date, so without this member the store would stop",
                place=self._params.node_id,
                next_step=f"bring {names} back first: sbctl apply --target store.{min(missing)}",
                retryable=True,
            )

    def restart(self) -> None:
        self._context.report(0, None, "starting the store")
        if self._systemd is None:
            data = store_data(self._context, None)
            fs.ensure_directory(self._context.paths.state)
            fs.ensure_directory(data)
            stop_supervised(self._context.paths, what=STORE)
            start_supervised(self._context.paths, Path(sys.executable), self._context.environ, STORE)
            return
        self._systemd.must("enable", STORE_UNIT)
        done = self._systemd.ctl("restart", STORE_UNIT, deadline_s=150.0)
        if done.returncode:
            raise self._not_started(done.tail())

    def await_start(self, *, whole: bool) -> Health:
        """The server answers; with `whole`, it also is an up-to-date member of a group that has a leader.

        Where no other member listens there is no group to be whole with, and theirs is the next turn.
        """
        found: list[Health] = []

        def answers() -> bool:
            health = self.look()
            found[:] = [] if health is None else [health]
            return health is not None and health.version == self._program.version

        if not self._await(answers, _START_S):
            raise self._not_started("it does not answer")
        others = [(each.address, each.port) for each in self._params.members if each.node_id != self._params.node_id]
        if not whole or (others and not any(_listens(*each) for each in others)):
            return found[0]
        self._context.report(0, None, "waiting until the store is whole")
        if not self._await(lambda: answers() and found[0].is_whole and found[0].leader is not None, _WHOLE_S):
            problem = found[0].problem if found else "it stopped"
            raise HostError(
                "store.not_whole",
                f"the store runs, and is not an up-to-date member after {_WHOLE_S:.0f} s: {problem}",
                place=self._params.node_id,
                next_step="see that the members reach each other on the store's cluster port, then run sbctl apply again",
                retryable=True,
            )
        return found[0]

    def reload(self) -> Health:
        """Who may use the store changes; nothing else. Raises HostError `store.not_reloaded`."""
        before = self.look()
        signal_reload(self._context, self._systemd)
        found: list[Health] = []

        def has_read() -> bool:
            health = self.look()
            found[:] = [] if health is None else [health]
            return health is not None and (before is None or health.loaded_at != before.loaded_at)

        if not self._await(has_read, _RELOAD_S):
            raise HostError(
                "store.not_reloaded",
                f"the store goes on with the users that it had: {self._why()}"[:1000],
                place=self._params.node_id,
                next_step="run sbctl apply again; look at: systemctl status sbctl-store",
                retryable=True,
            )
        return found[0]

    def tidy(self) -> None:
        """Programs and data that nothing uses any more. Data of other members of the group that this one was in is no use to anybody."""
        if self._params.wheel is not None:
            remove_other_programs(self._context, self._program.path)
        elif programs_directory(self._context).is_dir():
            fs.remove_tree(programs_directory(self._context))
        data = store_data(self._context, self._systemd)
        group = group_of(self._params)
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(data)):
                if name != group and (data / name).is_dir():
                    fs.remove_tree(data / name)

    def _await(self, holds: Callable[[], bool], deadline_s: float) -> bool:
        clock = self._context.clock
        end_s = clock.monotonic_s() + deadline_s
        while not holds():
            self._context.cancellation.check()
            if clock.monotonic_s() > end_s:
                return False
            clock.sleep_s(_POLL_S)
        return True

    def _why(self) -> str:
        if self._systemd is not None:
            return self._systemd.why(STORE_UNIT)
        with suppress(OSError):
            lines = (self._context.paths.logs / STORE.log).read_text(encoding="utf-8", errors="replace").splitlines()
            return "; ".join(lines[-4:])
        return ""

    def _not_started(self, said: str) -> HostError:
        return HostError(
            "store.not_started",
            f"the store does not start: {self._why() or said}"[:1000],
            place=self._params.node_id,
            next_step=f"look at: systemctl status {STORE_UNIT}",
        )


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_LISTENS_S):
            return True
    except OSError:
        return False
