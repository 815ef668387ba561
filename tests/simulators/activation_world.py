"""A host under systemd without one: units are read by `daemon-reload`, a runtime is what its unit and files say when it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.digests import canonical_json
from sbctl.node.messages import RuntimeActivate, RuntimeConfig
from sbctl.node.paths import PREFIX_VARIABLE, node_paths
from sbctl.node.snapshot import HostFacts
from sbctl.runtime.nodeops import running, runtime_ops
from sbctl.runtime.nodeops.activation_end import settle
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.programs import Finished
from sbctl.runtime.nodeops.running import LocalRuntime
from sbctl.runtime.nodeops.snapshot import stored_config
from sbctl.runtime.nodeops.units import SOCKET_NAME, UNIT_NAME, Systemd, socket_addresses
from sbctl.runtime.settings import load_trust
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.fleet import ManualClock
from tests.simulators.state_victim import CountingFiles

__all__ = ["LINEAGE", "ActivationWorld", "Died", "strike_at"]

LINEAGE = "L"
_VERSION = re.compile(r"^ExecStart=\S*/opt/([^/]+)/bin/python ", re.MULTILINE)


class Died(BaseException):
    """The node process is gone: no handler of it runs."""


@dataclass
class Process:
    """A runtime as it read its files when it started."""

    pid: int
    version: str
    config_sha256: str
    trust_digest: str
    password: bytes
    addresses: frozenset[str]


class _Manager(Systemd):
    world: ActivationWorld

    def ctl(self, *arguments: str, deadline_s: float = 30.0) -> Finished:
        return self.world.systemctl(arguments)

    def verify(self, units: Mapping[str, bytes]) -> None:
        """systemd-analyze is not asked for each of some hundred activations."""

    def why(self, name: str = UNIT_NAME) -> str:
        return "it exploded"


class _Control(ControlClient):
    world: ActivationWorld

    def status(self, *, timeout_s: float = 5.0) -> dict[str, Any] | None:
        running = self.world.running
        if running is None:
            return None
        return {
            "healthy": running.version not in self.world.hanging,
            "pid": running.pid,
            "version": running.version,
            "config_sha256": running.config_sha256,
            "trust_digest": running.trust_digest,
            "http_url": "http://127.0.0.1:1",
            "admin_url": None,
            "started_by_hand": False,
        }


class ActivationWorld:
    """`tick` is called before every systemctl command, so that a fault can strike between any two steps."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        environ = {PREFIX_VARIABLE: str(root), "HOME": str(root), "PATH": "/nonexistent"}
        self.paths = node_paths(os.getuid(), environ)
        self.context = NodeContext(
            self.paths, environ, os.getuid(), clock=ManualClock(datetime(2100, 1, 1, tzinfo=UTC))
        )
        for directory in (self.paths.etc, self.paths.state, self.paths.opt):
            directory.mkdir(parents=True)
        self.paths.marker.write_text('{"lineage": "L", "host": "h"}')
        manager = _Manager("system", root / "units", {})
        object.__setattr__(manager, "world", self)
        control = _Control(self.paths.control_socket)
        control.world = self
        self.systemd = manager
        self.runtime = LocalRuntime(self.paths, environ, manager, control, self.context.clock)
        self.key = SigningKey.generate()
        self.running: Process | None = None
        self.loaded: dict[str, bytes] = {}
        self.socket: frozenset[str] = frozenset()
        self.exploding: set[str] = set()
        self.hanging: set[str] = set()
        self.tick: Callable[[], None] = lambda: None
        self.commands: list[tuple[str, ...]] = []
        self._pids = 100
        monkeypatch.setattr(runtime_ops, "local_runtime", lambda _context, _init: self.runtime)
        monkeypatch.setattr(runtime_ops, "host_facts", self._facts)
        monkeypatch.setattr(runtime_ops, "ensure_users", lambda: None)
        monkeypatch.setattr(runtime_ops, "install_launcher", lambda *_: False)
        monkeypatch.setattr(runtime_ops, "launcher_files", lambda _paths: ())
        monkeypatch.setattr(running, "find_users", lambda: None)
        monkeypatch.setattr(runtime_ops, "refuse_taken_ports", lambda _config, _ours, **_: None)

    def _facts(self, _context: NodeContext) -> dict[str, Any]:
        versions = [name for name in os.listdir(self.paths.opt) if (self.paths.opt / name / "bin").is_dir()]
        return {
            "marker": {"lineage": LINEAGE, "host": "h"},
            "runtime": {"installed_versions": versions},
            "host": HostFacts(init="systemd_system").model_dump(mode="json"),
        }

    def install(self, *versions: str) -> None:
        for version in versions:
            program = self.paths.version(version) / "bin" / "sbctl-runtime"
            program.parent.mkdir(parents=True)
            program.write_text("")

    def activate(self, version: str, **config: Any) -> dict[str, Any]:
        trust = TrustSet(lineage=LINEAGE, key_epoch=0, signers={"ops": self.key.public_text})
        envelope = sign_envelope(TRUST_PAYLOAD_TYPE, canonical_json(trust.model_dump(mode="json")), self.key, "ops")
        wanted = RuntimeConfig(lineage=LINEAGE, host="h", **config)
        return runtime_ops.activate(
            self.context, RuntimeActivate(version=version, config=wanted, trust_envelope=envelope)
        )

    def guard(self) -> str | None:
        """What the guard does once nobody holds the lock."""
        return settle(self.runtime)

    def reboot(self) -> None:
        """Everything in memory is gone; systemd reads its units and starts what is enabled."""
        self.running = None
        self.loaded = dict(self.systemd.installed())
        self.socket = socket_addresses(self.loaded)
        self._start()

    def systemctl(self, arguments: tuple[str, ...]) -> Finished:
        self.tick()
        self.commands.append(arguments)
        match arguments:
            case ("daemon-reload",):
                self.loaded = dict(self.systemd.installed())
            case ("restart", name) if name == UNIT_NAME:
                self.running = None
                return self._start()
            case ("start", name) if name == UNIT_NAME:
                return Finished(0, "") if self.running is not None else self._start()
            case ("start", name) if name == SOCKET_NAME:
                if self.running is not None:
                    return Finished(1, "Socket service already active, refusing.")
                self.socket = socket_addresses(self.loaded)
            case ("stop", *names):
                if UNIT_NAME in names:
                    self.running = None
                if SOCKET_NAME in names:
                    self.socket = frozenset()
            case ("is-active", _, name) if name == SOCKET_NAME:
                return Finished(0 if self.socket else 3, "")
        return Finished(0, "")

    def _start(self) -> Finished:
        found = _VERSION.search(self.loaded[UNIT_NAME].decode())
        assert found is not None
        if found[1] in self.exploding:
            return Finished(1, "exploded")
        self._pids += 1
        config = stored_config(self.paths)[1]
        trust = load_trust(self.paths)[1]
        assert config is not None
        assert trust is not None
        password = (self.paths.secrets / "admin_password").read_bytes()
        self.running = Process(self._pids, found[1], config, trust, password, self.socket)
        return Finished(0, "")

    def facts(self) -> dict[str, Any]:
        """What stands on the disk and what runs, apart from process ids and the inside of locks."""
        files = {
            str(path.relative_to(self.paths.etc.parent)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for directory in (self.paths.etc, self.systemd.directory, self.paths.current, self.paths.proven)
            for path in ([directory] if directory.is_symlink() else sorted(directory.rglob("*")))
            if path.is_symlink() or (path.is_file() and path.suffix != ".lock")
        }
        running = self.running
        return {
            "files": files,
            "running": None if running is None else (running.version, running.config_sha256, running.password),
        }

    def leftovers(self) -> list[str]:
        """Temporary names and journals."""
        found = [path.name for path in self.paths.etc.parent.rglob(".sbctl-tmp-*")]
        return found + ([self.paths.activation.name] if self.paths.activation.exists() else [])


def strike_at(world: ActivationWorld, when: int, strike: Callable[[], None]) -> CountingFiles:
    """File operations and systemctl commands, counted together; `strike` is called before the one number `when`."""
    files = CountingFiles(when, strike)
    world.tick = files._tick
    return files
