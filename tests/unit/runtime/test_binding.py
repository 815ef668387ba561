"""Ports of the runtime: taken from the service manager, bound, or refused with the name of who has them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from sbctl.base.errors import HostError
from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer, PeerPort
from sbctl.node.messages import RuntimeConfig
from sbctl.runtime.binding import HandedOver, bind_tcp, refuse_taken_ports

FIRST_FD = 200


@pytest.fixture
def handed_over() -> Iterator[list[tuple[str, int]]]:
    """Two listening sockets, of IPv4 and of IPv6, at the descriptors where a service manager puts them."""
    addresses = []
    for number, address in enumerate(("127.0.0.1", "::1")):
        sock = bind_tcp(address, 0)
        sock.listen()
        addresses.append((address, int(sock.getsockname()[1])))
        os.dup2(sock.fileno(), FIRST_FD + number, inheritable=True)
        sock.close()
    yield addresses
    for number in range(2):
        try:
            os.close(FIRST_FD + number)
        except OSError:
            continue


def environ(**changes: str) -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "PATH": "/bin", **changes}


def test_each_socket_is_found_by_its_address_once_and_goes_to_no_child(handed_over: list[tuple[str, int]]) -> None:
    given = environ()
    ours = HandedOver.from_environ(given, first_fd=FIRST_FD)
    assert given == {"PATH": "/bin"}
    (_, four), (_, six) = handed_over
    assert ours.take("127.0.0.1", six) is None
    found = ours.take("0:0:0:0:0:0:0:1", six)
    assert found is not None
    assert not os.get_inheritable(found.fileno())
    found.close()
    assert ours.take("::1", six) is None
    ours.close()
    assert ours.take("127.0.0.1", four) is None
    bind_tcp("127.0.0.1", four).close()


@pytest.mark.parametrize(
    "changes",
    [{"LISTEN_PID": "1"}, {"LISTEN_FDS": "0"}, {"LISTEN_FDS": "x"}, {"LISTEN_FDS": "-1"}, {"LISTEN_PID": ""}],
)
def test_what_is_meant_for_another_process_is_not_taken(
    handed_over: list[tuple[str, int]], changes: dict[str, str]
) -> None:
    ours = HandedOver.from_environ(environ(**changes), first_fd=FIRST_FD)
    assert ours.take(*handed_over[0]) is None


def test_a_taken_port_names_who_has_it() -> None:
    with bind_tcp("127.0.0.1", 0) as other:
        other.listen()
        port = int(other.getsockname()[1])
        config = RuntimeConfig(lineage="L", host="h", http_bind_port=port)
        with pytest.raises(HostError) as caught:
            refuse_taken_ports(config, ())
        assert caught.value.code == "runtime.port_in_use"
        assert f"(pid {os.getpid()}) listens there" in caught.value.message
        refuse_taken_ports(config, [f"127.0.0.1:{port}"])
    refuse_taken_ports(config, ())


def test_the_port_for_gateways_is_looked_at_as_well_and_a_runtime_has_its_own() -> None:
    with bind_tcp("127.0.0.1", 0) as other:
        other.listen()
        port = int(other.getsockname()[1])
        store = ClusterStoreServer(node_id="a", address="127.0.0.1", port=4222)
        peer = PeerPort(bind="0.0.0.0", port=port, advertise="127.0.0.1")
        cluster = ClusterConfig(cluster_id="prod", node_id="w", roles=("worker",), store=(store,), peer=peer)
        config = RuntimeConfig(lineage="L", host="w", http_bind_port=0, admin_enabled=False, cluster=cluster)
        with pytest.raises(HostError) as caught:
            refuse_taken_ports(config, (), pid=os.getpid() + 1)
        assert caught.value.code == "runtime.port_in_use"
        assert f"0.0.0.0:{port}: " in caught.value.message
        assert f"(pid {os.getpid()}) listens there" in caught.value.message
        refuse_taken_ports(config, (), pid=os.getpid())


@pytest.mark.parametrize(("held", "asked"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
def test_our_own_listener_on_another_address_of_the_port_is_not_in_the_way(held: str, asked: str) -> None:
    with bind_tcp(held, 0) as ours:
        ours.listen()
        port = int(ours.getsockname()[1])
        config = RuntimeConfig(lineage="L", host="h", http_bind_port=port, http_bind_address=asked)
        refuse_taken_ports(config, [f"{held}:{port}"])
        with pytest.raises(HostError):
            refuse_taken_ports(config, [f"127.0.0.9:{port}"])
    with bind_tcp("127.0.0.1", 0) as ours, bind_tcp("127.0.0.2", port := int(ours.getsockname()[1])) as other:
        ours.listen()
        other.listen()
        config = RuntimeConfig(lineage="L", host="h", http_bind_port=port, http_bind_address="0.0.0.0")
        with pytest.raises(HostError) as caught:
            refuse_taken_ports(config, [f"127.0.0.1:{port}"])
        assert caught.value.code == "runtime.port_in_use"


def test_a_handed_over_socket_that_is_no_ip_socket_is_left_alone() -> None:
    left, right = socket.socketpair()
    ours = HandedOver([left])
    assert ours.take("127.0.0.1", 80) is None
    ours.close()
    assert right.recv(1) == b""
    right.close()
