"""What the store's server is told: the same bytes for the same wish, nothing that could end a string, and nobody in who is not listed."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest

from sbctl.base.errors import InputError
from sbctl.node.store_messages import StoreInstall, StoreMember, StoreNode
from sbctl.node.store_server import lacks, parse_version
from sbctl.runtime.nodeops.store_config import Places, check_names, group_of, hosts_file, render_config, without_users

PLACES = Places(PurePosixPath("/run/sbctl-store"), PurePosixPath("/var/lib/sbctl-store"), None, by_name=True)


def request(members: str = "abc", nodes: str = "w", **more: Any) -> StoreInstall:
    settings: dict[str, Any] = {
        "lineage": "l",
        "cluster_id": "prod",
        "server_name": "mesh",
        "node_id": "a",
        "bind_address": "0.0.0.0",
        "port": 4222,
        "monitor_port": 8222,
        "members": tuple(StoreMember(node_id=n, address=f"10.0.0.{i}", port=6222) for i, n in enumerate(members, 1)),
        "nodes": (
            *(StoreNode(node_id=n, is_authority=True) for n in members),
            *(StoreNode(node_id=n) for n in nodes),
        ),
    }
    return StoreInstall(**{**settings, **more})


def document(install: StoreInstall, places: Places = PLACES) -> dict[str, Any]:
    text = render_config(install, places).decode()
    found: dict[str, Any] = json.loads(text.partition("\n")[2])
    return found


def test_it_is_the_same_bytes_whatever_the_order() -> None:
    one = request(nodes="vw")
    other = one.model_copy(update={"nodes": one.nodes[::-1], "members": one.members[::-1]})
    assert render_config(one, PLACES) == render_config(other, PLACES)


def test_it_is_durable_closed_and_looked_at_from_loopback_only() -> None:
    told = document(request())
    assert told["jetstream"]["sync_interval"] == "always"
    assert told["http"] == "127.0.0.1:8222"
    assert told["tls"]["verify_and_map"] is told["tls"]["handshake_first"] is True
    assert told["tls"]["min_version"] == told["cluster"]["tls"]["min_version"] == "1.3"
    assert told["cluster"]["tls"]["verify_cert_and_check_known_urls"] is True
    assert told["cluster"]["routes"] == ["tls://b:6222", "tls://c:6222"]
    assert told["cluster"]["advertise"] == "a:6222"
    assert hosts_file(request()).decode().splitlines()[2:] == ["10.0.0.1 a", "10.0.0.2 b", "10.0.0.3 c"]
    assert "cluster" not in document(request("a"))


def test_a_node_may_write_one_key_and_the_store_itself_has_no_users() -> None:
    accounts = document(request())["accounts"]
    assert "users" not in accounts["STORE"]
    (worker,) = accounts["NODES"]["users"]
    assert worker["user"] == "w"
    written = [name for name in worker["permissions"]["publish"]["allow"] if name.startswith("$")]
    assert written == ["$KV.sbctl_nodes.w.snapshot"]
    assert worker["permissions"]["subscribe"]["allow"] == ["_INBOX_w.>", "sbctl.changed.>"]
    led_in = [each["service"]["subject"] for each in accounts["NODES"]["imports"] if "service" in each]
    assert [name for name in led_in if name.startswith("$KV")] == ["$KV.sbctl_nodes.>"]
    assert not any(what in name for name in led_in for what in ("CREATE", "UPDATE", "DELETE", "PURGE", "CONSUMER"))
    assert [one["user"] for one in accounts["AUTHORITIES"]["users"]] == ["a", "b", "c"]


def test_a_dot_in_a_name_is_no_way_into_another_key() -> None:
    nodes = (StoreNode(node_id="a", is_authority=True), StoreNode(node_id="w.x"))
    users = document(request("a").model_copy(update={"nodes": nodes}))
    (worker,) = users["accounts"]["NODES"]["users"]
    assert worker["permissions"]["publish"]["allow"][0] == "$KV.sbctl_nodes.w=2Ex.snapshot"


def test_other_users_are_no_other_start() -> None:
    one, two = render_config(request(nodes="v"), PLACES), render_config(request(nodes="vw"), PLACES)
    assert one != two
    assert without_users(one) == without_users(two)
    assert without_users(one) != without_users(render_config(request(port=4333), PLACES))


def test_other_members_are_another_store() -> None:
    assert group_of(request("abc")) != group_of(request("abd"))
    assert group_of(request("abc")) == group_of(request("cab"))
    assert group_of(request()) in document(request())["cluster"]["name"]
    assert group_of(request()) in document(request())["jetstream"]["store_dir"]


@pytest.mark.parametrize(
    ("install", "code"),
    [
        (request("ab"), "store.members"),
        (request("bcd"), "store.members"),
        (request(server_name="w"), "store.name_taken"),
        (request(nodes="ww"), "store.name_taken"),
    ],
)
def test_what_is_no_store_is_refused(install: StoreInstall, code: str) -> None:
    with pytest.raises(InputError) as refused:
        check_names(install)
    assert refused.value.code == code


def test_without_names_members_elsewhere_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        render_config(request(), Places(PLACES.identity, PLACES.data, None, by_name=False))
    assert refused.value.code == "store.no_names"


@pytest.mark.parametrize(
    ("said", "version", "missing"),
    [
        ("nats-server: v2.9.10", (2, 9, 10), "sync_interval"),
        ("nats-server: v2.10.29", (2, 10, 29), "time to live"),
        ("nats-server: v2.11.0", (2, 11, 0), None),
        ("nats-server: v2.15.1", (2, 15, 1), None),
        ("<nats server v2.15.1>", (2, 15, 1), None),
    ],
)
def test_versions(said: str, version: tuple[int, int, int], missing: str | None) -> None:
    found = parse_version(said)
    assert found == version
    told = lacks(found)
    assert told is None if missing is None else missing in str(told)
    assert parse_version("something else") is None
