"""The store as an apply installs it on hosts: here below prefixes on one machine, where a small parent keeps it running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.digests import sha256_file
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.engines.store_pins import STORE_DEFAULT, store_pin
from sbctl.node.paths import node_paths
from sbctl.node.store_messages import StoreInstall, StoreMember, StoreNode, StoreRemove, StoreWheel
from sbctl.runtime.cluster.nats_store import NatsStore, StoreServer
from sbctl.runtime.cluster.store import BUNDLE_KEY, Bucket
from sbctl.runtime.cluster.store_tls import store_context
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.store_health import look
from sbctl.runtime.nodeops.store_ops import install_store, refresh_store, remove_store, store_state
from sbctl.runtime.supervise import STORE, stop_supervised
from tests.simulators.nats_cluster import ServerIdentities, pinned_wheel, store_program
from tests.simulators.ports import free_port, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


class Host:
    def __init__(self, base: Path, name: str, identities: ServerIdentities) -> None:
        self.name = name
        self.prefix = base / name
        environ = {"SBCTL_NODE_PREFIX": str(self.prefix), "PATH": os.environ["PATH"], "HOME": str(base)}
        self.context = NodeContext(node_paths(os.getuid(), environ), environ, os.getuid())
        self.port, self.route, self.monitor = free_ports(3)
        identities.give(name, "authority")
        self.context.paths.etc.mkdir(parents=True)
        (self.context.paths.etc / "identity").symlink_to(identities.directory / name)

    def request(self, hosts: list[Host], *workers: str, **more: Any) -> StoreInstall:
        settings: dict[str, Any] = {
            "lineage": "11111111-1111-4111-8111-111111111111",
            "cluster_id": "test",
            "server_name": "localhost",
            "node_id": self.name,
            "bind_address": "127.0.0.1",
            "port": self.port,
            "monitor_port": self.monitor,
            "members": tuple(StoreMember(node_id=h.name, address="127.0.0.1", port=h.route) for h in hosts),
            "nodes": (
                *(StoreNode(node_id=host.name, is_authority=True) for host in hosts),
                *(StoreNode(node_id=worker) for worker in workers),
            ),
            "program": str(store_program()),
        }
        return StoreInstall(**{**settings, **more})

    def pid(self) -> int:
        return int((self.context.paths.state / "store" / "nats.pid").read_text())

    def left(self) -> list[str]:
        """Files below the prefix that are the store's."""
        found = (str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*"))
        return [path for path in found if "store" in path and not path.endswith(".log")]


@pytest.fixture
def identities(tmp_path: Path) -> ServerIdentities:
    return ServerIdentities(tmp_path / "identities")


@pytest.fixture
def hosts(tmp_path: Path, identities: ServerIdentities) -> Iterator[list[Host]]:
    made = [Host(tmp_path, name, identities) for name in ("a", "b", "c")]
    try:
        yield made
    finally:
        for host in made:
            remove_store(host.context, StoreRemove(lineage="11111111-1111-4111-8111-111111111111"))


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path], None]]:
    """Puts 24 MiB of memory in the place of a directory."""
    mounted: list[Path] = []

    def mount(directory: Path) -> None:
        directory.mkdir(parents=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", str(directory)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no filesystem of its own can be mounted here: {done.stderr.strip()}")
        mounted.append(directory)

    yield mount
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=False)


def wheel() -> StoreWheel:
    pin = store_pin(STORE_DEFAULT, os.uname().machine)
    names = ("project", "version", "filename", "sha256", "member", "member_sha256")
    return StoreWheel(**{name: getattr(pin, name) for name in names})


async def _use(host: Host, *, replicas: int = 1) -> None:
    """As the host's own runtime does, with the identity that the host holds."""
    store = NatsStore(
        lambda: [StoreServer(host.name, "127.0.0.1", host.port)],
        lambda: store_context(IdentityFiles(host.context.paths)),
        node_id=host.name,
        clock=SYSTEM_CLOCK,
    )
    await store.start()
    try:
        await store.prepare(replicas=replicas)
        await store.put(Bucket.DESIRED, BUNDLE_KEY, b"x")
        entry = await store.get(Bucket.DESIRED, BUNDLE_KEY)
        assert entry is not None
        assert entry.value == b"x"
    finally:
        await store.close()


def test_one_store_from_its_wheel_to_nothing(hosts: list[Host]) -> None:
    host = hosts[0]
    context = host.context
    pin = store_pin(STORE_DEFAULT, os.uname().machine)
    context.paths.blobs.mkdir(parents=True)
    shutil.copy(pinned_wheel(), context.paths.blobs / pin.sha256)
    sent: dict[str, Any] = {"program": "", "wheel": wheel(), "delivery": "push", "expects_quorum": True}
    first = install_store(context, host.request([host], "w1", **sent))
    state = store_state(context)
    assert (state["version"], state["running"], state["up_to_date"], state["whole"], state["leader"]) == (
        STORE_DEFAULT, True, True, True, "a",
    )  # fmt: skip
    program = context.paths.opt / "store" / STORE_DEFAULT / "nats-server"
    assert sha256_file(program) == pin.member_sha256
    assert not (context.paths.blobs / pin.sha256).exists()
    pid = host.pid()

    assert install_store(context, host.request([host], "w1", **sent)) == first
    assert host.pid() == pid, "nothing changed, nothing was touched"

    asyncio.run(_use(host))
    loaded = look(host.monitor, others=())
    second = install_store(context, host.request([host], "w1", "w2", **sent))
    assert second["content_sha256"] != first["content_sha256"]
    assert host.pid() == pid, "another user is no reason to restart"
    reloaded = look(host.monitor, others=())
    assert loaded is not None
    assert reloaded is not None
    assert reloaded.loaded_at != loaded.loaded_at
    assert store_state(context)["up_to_date"]

    refresh_store(context)
    assert host.pid() == pid, "a renewed certificate is no reason to restart"

    monitor = free_port()
    host.monitor = monitor
    install_store(context, host.request([host], "w1", "w2", **sent))
    assert host.pid() != pid, "a port is taken up at the start only"
    assert store_state(context)["whole"]

    assert remove_store(context, StoreRemove(lineage="11111111-1111-4111-8111-111111111111")) == {"removed": True}
    assert host.left() == []
    assert look(host.monitor, others=()) is None
    assert remove_store(context, StoreRemove(lineage="11111111-1111-4111-8111-111111111111")) == {"removed": False}


def test_three_stores_change_one_by_one_and_only_with_quorum(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, host in enumerate(hosts):
        install_store(host.context, host.request(hosts, "w1", expects_quorum=at > 0))
    assert [store_state(host.context)["whole"] for host in hosts[1:]] == [True, True]
    a, b, c = hosts

    a.port = free_port()
    install_store(a.context, a.request(hosts, "w1"))
    assert store_state(a.context)["whole"]

    monkeypatch.setattr("sbctl.runtime.nodeops.store_installation._PEERS_S", 1.0)
    remove_store(c.context, StoreRemove(lineage="11111111-1111-4111-8111-111111111111"))
    before = b.pid()
    b.port = free_port()
    with pytest.raises(RefusedError) as refused:
        install_store(b.context, b.request(hosts, "w1"))
    assert refused.value.code == "store.quorum_at_risk"
    assert "store.c" in str(refused.value.next_step)
    assert b.pid() == before
    monkeypatch.undo()

    install_store(c.context, c.request(hosts, "w1", expects_quorum=True))
    install_store(b.context, b.request(hosts, "w1"))
    assert [store_state(host.context)["whole"] for host in hosts] == [True, True, True]

    # Other members: a store of its own, and the data of the group that was is gone.
    install_store(a.context, a.request([a], "w1", expects_quorum=True))
    data = a.context.paths.state / "store"
    assert len([path for path in data.iterdir() if path.is_dir()]) == 1
    assert store_state(a.context)["leader"] == "a"


def test_three_stores_that_all_stopped_come_back_one_after_another(hosts: list[Host]) -> None:
    for at, host in enumerate(hosts):
        install_store(host.context, host.request(hosts, "w1", expects_quorum=at > 0))
    for host in hosts:
        stop_supervised(host.context.paths, what=STORE)
    for host in hosts:
        install_store(host.context, host.request(hosts, "w1", expects_quorum=True))
    assert [store_state(host.context)["whole"] for host in hosts[1:]] == [True, True]


def test_a_store_that_is_killed_comes_back_and_its_parent_takes_it_along(hosts: list[Host]) -> None:
    host = hosts[0]
    install_store(host.context, host.request([host], expects_quorum=True))
    pid = host.pid()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not store_state(host.context)["whole"] or host.pid() == pid:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("members", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_store_whose_disk_was_full_starts_anew_by_itself_once_there_is_room(
    hosts: list[Host], small_disk: Callable[[Path], None], members: int
) -> None:
    """Of a group, the one with the full disk; the others go on meanwhile."""
    group, full = hosts[:members], hosts[members - 1]
    small_disk(full.context.paths.state / "store")
    for at, host in enumerate(group):
        install_store(host.context, host.request(group, expects_quorum=2 * at + 1 >= members))
    asyncio.run(_use(group[0], replicas=members))
    pid = full.pid()
    filler = full.context.paths.state / "store" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    asyncio.run(_write_until(group, lambda: store_state(full.context)["stuck"]))
    told = store_state(full.context)
    assert (told["running"], told["whole"]) == (False, False)
    assert "its disk is full: 0 B free" in told["problem"]
    assert full.pid() == pid, "without room a start would help nobody"

    filler.unlink()
    asyncio.run(_write_until(group, lambda: full.pid() != pid and store_state(full.context)["whole"]))
    told = store_state(full.context)
    assert (told["restarts"], told["stuck"], told["problem"]) == (1, False, None)
    assert "the store starts anew" in (full.context.paths.logs / "store.log").read_text()


async def _write_until(hosts: list[Host], holds: Callable[[], bool]) -> None:
    """Each host writes, whatever comes of it."""
    store = NatsStore(
        lambda: [StoreServer(host.name, "127.0.0.1", host.port) for host in hosts],
        lambda: store_context(IdentityFiles(hosts[0].context.paths)),
        node_id=hosts[0].name,
        clock=SYSTEM_CLOCK,
    )
    await store.start()
    try:
        async with asyncio.timeout(150):
            while not await asyncio.to_thread(holds):
                with contextlib.suppress(SbctlError):
                    await store.put(Bucket.DESIRED, BUNDLE_KEY, os.urandom(300_000))
                await asyncio.sleep(0.1)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("version", "code"), [("2.9.10", "store.too_old"), ("2.10.29", "store.too_old"), ("", "store.not_runnable")]
)
def test_an_old_server_is_refused_by_name_before_anything_changes(
    hosts: list[Host], tmp_path: Path, version: str, code: str
) -> None:
    program = tmp_path / "nats-server"
    program.write_text(f"#!/bin/sh\necho 'nats-server: v{version}'\n")
    program.chmod(0o755)
    host = hosts[0]
    with pytest.raises(SbctlError) as refused:
        install_store(host.context, host.request([host], program=str(program)))
    assert refused.value.code == code
    if version.startswith("2.9"):
        assert "sync_interval" in refused.value.message
        assert "2.9.10" in refused.value.message
    assert host.left() == []


def test_a_configuration_that_the_server_refuses_replaces_nothing(hosts: list[Host]) -> None:
    host = hosts[0]
    install_store(host.context, host.request([host], expects_quorum=True))
    pid, before = host.pid(), store_state(host.context)
    (host.context.paths.etc / "identity" / "ca.pem").write_text("not a certificate")
    with pytest.raises(SbctlError) as refused:
        install_store(host.context, host.request([host], "w3"))
    assert refused.value.code == "store.config_refused"
    assert (host.pid(), store_state(host.context)) == (pid, before)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"nodes": (StoreNode(node_id="localhost"),)}, "store.name_taken"),
        ({"nodes": (StoreNode(node_id="w"), StoreNode(node_id="w"))}, "store.name_taken"),
        ({"node_id": "b"}, "store.members"),
        ({"members": tuple(StoreMember(node_id=n, address="127.0.0.1", port=1) for n in ("a", "b"))}, "store.members"),
    ],
)
def test_what_cannot_be_a_store_is_refused(hosts: list[Host], change: dict[str, Any], code: str) -> None:
    host = hosts[0]
    with pytest.raises(SbctlError) as refused:
        install_store(host.context, host.request([host], **change))
    assert refused.value.code == code


def test_without_an_identity_there_is_no_store(hosts: list[Host]) -> None:
    host = hosts[0]
    (host.context.paths.etc / "identity").unlink()
    with pytest.raises(SbctlError) as refused:
        install_store(replace(host.context), host.request([host]))
    assert refused.value.code == "store.no_identity"
