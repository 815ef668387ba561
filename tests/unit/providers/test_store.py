"""`store.H` over a life: one authority, three, other nodes, other settings, drift, an old program, and none any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError
from sbctl.base.ids import Address
from sbctl.engines.store_pins import STORE_DEFAULT, store_pin
from sbctl.node.snapshot import StoreProgramFact
from sbctl.plan.model import Change
from sbctl.trust.authority import Authority
from sbctl.trust.identity import Grant
from tests.simulators.provider_world import ProviderWorld

pytestmark = pytest.mark.flow

PIN = "SHA256:" + "A" * 43
HOSTS = ("gw-a", "gw-b", "gw-c", "gpu-a", "gpu-b")


def text(authorities: int = 1, workers: int = 1, store: str = "{}", address: str = "10.0.0.2") -> str:
    roles = dict.fromkeys(HOSTS[:authorities], "gateway, authority") | dict.fromkeys(HOSTS[3 : 3 + workers], "worker")
    listed = {
        name: (address if name == "gw-b" else f"10.0.0.{at}", role) for at, (name, role) in enumerate(roles.items(), 1)
    }
    hosts = ", ".join(f'{n}: {{address: {a}, host_key: "{PIN}", roles: [{role}]}}' for n, (a, role) in listed.items())
    return (
        f"fleet: {{identity: {{directory: ./cluster}}, ssh: {{identity_file: /k}}, hosts: {{{hosts}}}}}\n"
        f"proxy: {{http_bind_port: 8080, cluster: {{cluster_id: prod, store: {store}}}}}\n"
    )


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    world = ProviderWorld(tmp_path, *HOSTS)
    grant = Grant(node_id="authority", roles=("authority",))
    world.authority = Authority.create(
        tmp_path / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=world.fleet.clock.now()
    )
    return world


def applied(world: ProviderWorld, written: str) -> None:
    world.configure(written)
    result = world.apply()
    assert [str(one.cause) for one in result.changes if getattr(one, "cause", None) is not None] == []
    assert world.settled()


def change_of(world: ProviderWorld, host: str = "gw-a") -> Change:
    return next(one for one in world.plan().changes if one.address == Address("store", host))


def test_one_authority_gets_the_pinned_store_and_everybody_of_the_cluster_may_use_it(world: ProviderWorld) -> None:
    applied(world, text())
    request = world.host("gw-a").store.request
    assert request is not None
    assert request.wheel is not None
    pin = store_pin(STORE_DEFAULT, "x86_64")
    assert (request.wheel.version, request.wheel.sha256, request.wheel.member_sha256) == (
        STORE_DEFAULT, pin.sha256, pin.member_sha256,
    )  # fmt: skip
    assert [(node.node_id, node.is_authority) for node in request.nodes] == [("gpu-a", False), ("gw-a", True)]
    assert [member.node_id for member in request.members] == ["gw-a"]
    assert (request.server_name, request.expects_quorum, request.port, request.monitor_port) == (
        "mesh",
        True,
        4222,
        8222,
    )
    assert world.host("gpu-a").store.request is None


def test_three_are_made_one_after_another_and_only_the_first_expects_nobody(world: ProviderWorld) -> None:
    applied(world, text(3))
    requests = [world.host(name).store.request for name in HOSTS[:3]]
    assert [request is not None and request.expects_quorum for request in requests] == [False, True, True]
    assert requests[0] is not None
    assert [(m.node_id, m.address, m.port) for m in requests[0].members] == [
        ("gw-a", "10.0.0.1", 6222), ("gw-b", "10.0.0.2", 6222), ("gw-c", "10.0.0.3", 6222),
    ]  # fmt: skip
    order = [call.host for call in world.fleet.calls if call.method == "store.install"]
    assert order == ["gw-a", "gw-b", "gw-c"]


def test_another_node_is_no_restart_and_the_next_store_waits_for_the_one_before(world: ProviderWorld) -> None:
    applied(world, text(3))
    world.configure(text(3, workers=2))
    change = change_of(world)
    assert [leaf.path for leaf in change.leaves] == ["users.gpu-b"]
    assert change.blast_radius.name == "HITLESS"
    assert "nobody who is connected notices" in change.reason
    world.host("gw-b").store.at_risk = True
    world.apply()
    assert [world.host(name).store.installs for name in HOSTS[:3]] == [2, 1, 1], "gw-c waits for gw-b"
    world.host("gw-b").store.at_risk = False
    world.apply()
    assert [world.host(name).store.installs for name in HOSTS[:3]] == [2, 2, 2]
    assert world.settled()


@pytest.mark.parametrize(
    ("store", "path"),
    [("{port: 4333}", "port"), ("{monitor_port: 8333}", "monitor_port"), ("{cluster_port: 6333}", "members.gw-a")],
)
def test_other_settings_restart_it(world: ProviderWorld, store: str, path: str) -> None:
    applied(world, text())
    world.configure(text(store=store))
    change = change_of(world)
    assert [leaf.path for leaf in change.leaves] == [path]
    assert (change.action, change.blast_radius.name, change.downtime) == ("update", "HITLESS", "none")
    applied(world, text(store=store))


@pytest.mark.parametrize(
    ("drift", "path"),
    [
        ({"content_sha256": "0" * 64}, "files"),
        ({"unit_sha256": None}, "unit"),
        ({"running": False}, "running"),
        ({"up_to_date": False}, "up_to_date"),
    ],
)
def test_what_is_changed_behind_our_back_is_mended(world: ProviderWorld, drift: dict[str, object], path: str) -> None:
    applied(world, text())
    store = world.host("gw-a").store
    assert store.state is not None
    store.state = store.state.model_copy(update=drift)
    change = change_of(world)
    assert ([leaf.path for leaf in change.leaves], change.drifted) == ([path], True)
    applied(world, text())


def test_an_old_program_of_the_host_is_refused_by_name_while_planning(world: ProviderWorld) -> None:
    applied(world, text())
    world.host("gw-a").store_program = StoreProgramFact(path="/usr/sbin/nats-server", version="2.9.10")
    world.configure(text(store="{path: nats-server}"))
    change = change_of(world)
    assert change.blocked_code == "store.too_old"
    assert change.blocked is not None
    assert "2.9.10" in change.blocked
    assert "sync_interval" in change.blocked
    world.host("gw-a").store_program = StoreProgramFact(path="/usr/sbin/nats-server", version="2.14.0")
    applied(world, text(store="{path: nats-server}"))
    request = world.host("gw-a").store.request
    assert request is not None
    assert (request.program, request.wheel) == ("nats-server", None)
    world.host("gw-a").store_program = None
    world.configure(text(store="{path: nats-server, port: 4333}"))
    assert change_of(world).blocked_code == "store.no_program"


def test_a_version_without_a_pin_is_refused(world: ProviderWorld) -> None:
    applied(world, text())
    world.configure(text(store="{version: 2.12.0}"))
    assert change_of(world).blocked_code == "store.not_pinned"


def test_a_number_that_is_no_quorum_and_a_name_for_an_address_are_refused(world: ProviderWorld) -> None:
    with pytest.raises(ConfigError, match="one authority, or three"):
        world.configure(text(2))
    world.configure(text(3, address="gw-b.corp"))
    with pytest.raises(ConfigError, match="its certificate does not name"):
        world.plan()


def test_from_one_to_three_and_back_and_to_none(world: ProviderWorld) -> None:
    applied(world, text(1))
    applied(world, text(3))
    applied(world, text(1))
    assert world.host("gw-b").store.state is None
    request = world.host("gw-a").store.request
    assert request is not None
    assert len(request.members) == 1
    world.configure(text(1).replace(", cluster: {cluster_id: prod, store: {}}", ""))
    assert change_of(world).action == "delete"
    world.apply()
    assert world.host("gw-a").store.state is None
    assert world.settled()
