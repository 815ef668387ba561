"""The store on three hosts with systemd: made by one apply, confined, without its leader, changed one by one under writes, and gone."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError
from sbctl.runtime.cluster.nats_store import NatsStore, StoreServer, StoreTiming
from sbctl.runtime.cluster.store import Bucket
from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world
from tests.simulators.store_contract import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

IDENTITY = "/etc/sbctl/identity"
UNIT = "sbctl-store.service"
PROBE = "probe"
"""A key that no runtime writes."""


def sbctl(world: OperatorWorld, *arguments: str, expect: int = 0) -> str:
    world.save()
    done = subprocess.run(
        [SBCTL, *arguments],
        cwd=world.fleet, env=world.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == expect, (
        f"{arguments} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[tuple[LabHost, ...]]:
    for host in lab.hosts:
        lab.pristine(host)
    yield lab.hosts
    for host in lab.hosts:
        lab.pristine(host)


@pytest.fixture(scope="module")
def fleet(hosts: tuple[LabHost, ...]) -> Iterator[OperatorWorld]:
    with new_world() as world:
        world.config = {
            "fleet": {
                "name": "lab",
                "identity": {"directory": "./cluster"},
                "ssh": {"user": "root", "identity_file": hosts[0].identity_file},
                "defaults": {"delivery": "push", "roles": ["gateway", "worker", "authority"]},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint} for host in hosts},
            },
            "proxy": {"http_bind_port": 8080, "cluster": {"cluster_id": "lab", "store": {}}},
        }
        sbctl(world, "cluster", "init", "--cluster-id", "lab")
        sbctl(world, "apply", "--yes")
        yield world


def client(fleet: OperatorWorld, hosts: tuple[LabHost, ...]) -> NatsStore:
    """As the runtime of the first host would use it."""
    directory = fleet.fleet / "client"
    directory.mkdir(exist_ok=True)
    for name in ("node.pem", "node-key.pem", "ca.pem"):
        (directory / name).write_text(hosts[0].ssh("cat", f"{IDENTITY}/{name}"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(directory / "ca.pem")
    context.load_cert_chain(directory / "node.pem", directory / "node-key.pem")
    servers = [StoreServer(host.name, host.address, 4222) for host in hosts]
    timing = StoreTiming(first_pause_s=0.1, longest_pause_s=1.0, probe_s=1.0)
    return NatsStore(lambda: servers, lambda: context, node_id=hosts[0].name, clock=SYSTEM_CLOCK, timing=timing)


def leader(hosts: tuple[LabHost, ...]) -> LabHost:
    told = json.loads(hosts[0].ssh("curl -s '127.0.0.1:8222/jsz'"))
    return next(host for host in hosts if host.name == told["meta_cluster"]["leader"])


def show(host: LabHost, name: str) -> str:
    return host.ssh(f"systemctl show --value -p {name} {UNIT}").strip()


def test_one_apply_makes_a_whole_store_of_three_confined_servers(
    fleet: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    sbctl(fleet, "plan", expect=0)
    for host in hosts:
        assert json.loads(host.ssh("curl -s 127.0.0.1:8222/healthz")) == {"status": "ok"}
        shown = host.ssh(f"systemd-analyze security --no-pager {UNIT} | tail -2")
        score = re.search(r"exposure level for sbctl-store.service: ([0-9.]+)", shown)
        assert score is not None
        assert float(score[1]) <= 2.0
        status = host.ssh(f"cat /proc/{show(host, 'MainPID')}/status")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert int(fields["CapEff"], 16) == 0
        assert fields["Uid"].split()[0] not in ("0", host.ssh("id -u sbctl").strip())
        assert host.ssh("stat", "-c", "%a", "/run/sbctl-store", "/run/sbctl-store/node-key.pem").split() == [
            "700",
            "400",
        ]
        assert host.ssh("stat", "-c", "%a:%U", "/etc/sbctl/store").strip() == "700:root"
        listens = host.ssh("ss -Hltn")
        assert re.search(r"127\.0\.0\.1:8222\s", listens)
        assert not re.search(r"(0\.0\.0\.0|\*|\[::\]|10\.78\.\d+\.\d+):8222\s", listens)
    assert hosts[0].ssh("runuser -u sbctl -- cat /run/sbctl-store/node-key.pem", check=False) == ""


@pytest.mark.soak
async def test_power_loss_of_the_leader_takes_no_acknowledged_write(
    fleet: OperatorWorld, hosts: tuple[LabHost, ...], lab: Lab
) -> None:
    store = client(fleet, hosts)
    await store.start()
    try:
        await store.prepare(replicas=3)
        await store.put(Bucket.DESIRED, PROBE, b"acknowledged")
        lost = leader(hosts)
        await asyncio.to_thread(lab.kill, lost)
        try:
            entry = await eventually(lambda: store.get(Bucket.DESIRED, PROBE))
            assert entry.value == b"acknowledged"
            await eventually(lambda: store.put(Bucket.DESIRED, PROBE, b"without it"))
        finally:
            await asyncio.to_thread(lab.start, lost)

        async def whole() -> bool | None:
            said = await asyncio.to_thread(lost.ssh, "curl -s 127.0.0.1:8222/healthz", check=False)
            return True if '"ok"' in said else None

        await eventually(whole)
    finally:
        await store.close()


@pytest.mark.soak
async def test_stores_restart_one_after_another_while_somebody_writes(
    fleet: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    store = client(fleet, hosts)
    await store.start()
    acknowledged = 0
    stop = asyncio.Event()

    async def write() -> None:
        nonlocal acknowledged
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(SbctlError):
                await store.put(Bucket.DESIRED, PROBE, str(number).encode())
                acknowledged = number
            await asyncio.sleep(0.05)

    writing = asyncio.create_task(write())
    try:
        fleet.config["proxy"]["cluster"]["store"] = {"monitor_port": 8223}
        await asyncio.to_thread(sbctl, fleet, "apply", "--yes")
        stop.set()
        await writing
        entry = await eventually(lambda: store.get(Bucket.DESIRED, PROBE))
        assert int(entry.value) >= acknowledged > 0
    finally:
        stop.set()
        await store.close()
    for host in hosts:
        assert json.loads(host.ssh("curl -s 127.0.0.1:8223/healthz")) == {"status": "ok"}


DATA = "/var/lib/private/sbctl-store"


@pytest.mark.soak
async def test_a_store_whose_disk_was_full_comes_back_by_itself_and_with_no_more_rights(
    fleet: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    host, store = hosts[2], client(fleet, hosts)
    health = f"curl -s 127.0.0.1:{fleet.config['proxy']['cluster']['store'].get('monitor_port', 8222)}/healthz"
    await store.start()

    async def told(wanted: str) -> bool | None:
        with suppress(SbctlError):
            await store.put(Bucket.DESIRED, PROBE, bytes(200_000))
        return True if wanted in await asyncio.to_thread(host.ssh, health, check=False) else None

    host.ssh(f"systemctl stop {UNIT} && mount -t tmpfs -o size=32m tmpfs {DATA} && systemctl start {UNIT}")
    try:
        await eventually(lambda: told('"ok"'))
        pid = show(host, "MainPID")
        host.ssh(f"dd if=/dev/zero of={DATA}/filler bs=64k 2>/dev/null", check=False)
        await eventually(lambda: told("JetStream not enabled"))

        async def status_says(wanted: str, expect: int) -> bool | None:
            said = await asyncio.to_thread(sbctl, fleet, "status", expect=expect)
            return True if wanted in " ".join(said.split()) else None

        # A server that began some seconds ago may still be opening its data.
        await eventually(lambda: status_says("its disk is full", 8))
        assert show(host, "MainPID") == pid

        owners = host.ssh(f"ps -o uid= -p {pid}; ps -o uid= -p $(pgrep -f '[s]tore-keeper')").split()
        assert owners[0] == owners[1] != "0"
        host.ssh(f"rm {DATA}/filler")
        await eventually(lambda: told('"ok"'))
        assert show(host, "MainPID") != pid
        assert "there is room again: the store starts anew" in host.ssh(f"journalctl -u {UNIT} --no-pager")
        assert await status_says("started anew by itself once", 0)
        await asyncio.to_thread(sbctl, fleet, "plan", expect=0)
    finally:
        await store.close()
        host.ssh(f"systemctl stop {UNIT} && umount {DATA} && systemctl start {UNIT}")


def test_a_new_identity_is_taken_up_without_a_restart(fleet: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    host = hosts[0]
    before = host.ssh("cat", f"{IDENTITY}/node.pem")
    pids = [show(each, "MainPID") for each in hosts]
    sbctl(fleet, "cluster", "rotate", host.name)
    sbctl(fleet, "apply", "--yes")
    assert host.ssh("cat", f"{IDENTITY}/node.pem") != before
    assert host.ssh("cat /run/sbctl-store/node.pem") == host.ssh("cat", f"{IDENTITY}/node.pem")
    assert [show(each, "MainPID") for each in hosts] == pids
    sbctl(fleet, "plan", expect=0)


def test_destroy_leaves_nothing_of_it(fleet: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    sbctl(fleet, "destroy", "--yes")
    for host in hosts:
        found = host.ssh(
            "find / -xdev '(' -path /proc -o -path /sys ')' -prune -o -name '*sbctl-store*' -print 2>/dev/null",
            check=False,
        )
        assert [line for line in found.splitlines() if not line.startswith(("/var/log", "/proc"))] == []
        assert host.ssh("ls /opt/sbctl /etc/sbctl 2>/dev/null", check=False).strip() == ""
        assert host.ssh("pgrep -x nats-server", check=False).strip() == ""
