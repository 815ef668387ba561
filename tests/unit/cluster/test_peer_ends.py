"""A node's ends of the peer plane follow its roles: a worker has a port, a gateway has whom to ask, others have neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sbctl.node.cluster_config import PeerPort
from sbctl.node.cluster_documents import ClusterRole
from sbctl.runtime.cluster.peer_ends import PeerEnds
from tests.simulators.cluster_nodes import clustered
from tests.simulators.cluster_world import ClusterWorld, SimNode, run_in_cluster
from tests.simulators.engine_world import facts, until
from tests.simulators.ports import free_port
from tests.simulators.runtime_world import member

pytestmark = pytest.mark.flow


def _ends(at: SimNode, *, advertise: str = "127.0.0.1") -> PeerEnds:
    config = at.node.config.model_copy(
        update={"peer": PeerPort(port=free_port(), bind="127.0.0.1", advertise=advertise)}
    )
    return PeerEnds(at.node.host, config, at.node.trust, at.node.fences, boot_epoch=1)


@pytest.mark.parametrize(("advertise", "before_the_port"), [("127.0.0.1", "127.0.0.1:"), ("fd00::7", "[fd00::7]:")])
def test_a_worker_has_a_port_at_which_gateways_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advertise: str, before_the_port: str
) -> None:
    async def scenario(world: ClusterWorld) -> None:
        _, w1 = await world.build(a=("authority",), w1=("worker",))
        ends = _ends(w1, advertise=advertise)
        assert (ends.address, ends.is_open) == (None, False)
        port = ends.port(w1.node.obedience)
        assert port is not None
        listener, sock, _ = port
        with sock:
            assert ends.address == f"{before_the_port}{sock.getsockname()[1]}"
            assert not ends.is_open, "bound, and nobody answers yet"
            monkeypatch.setattr(type(listener), "is_bound", True)
            assert ends.is_open
            ends.stop_admitting()
            assert not ends.is_open
        ends.close()

    run_in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("roles", [("authority",), ("authority", "gateway"), ("authority", "worker")])
def test_only_a_gateway_answers_callers_and_only_a_worker_has_a_port(
    tmp_path: Path, roles: tuple[ClusterRole, ...]
) -> None:
    async def scenario(world: ClusterWorld) -> None:
        (a,) = await world.build(a=roles)
        ends, anything = _ends(a), cast("Any", None)
        assert (ends.gateway(anything, anything, bound_to_loopback=True) is not None) is ("gateway" in roles)
        port = ends.port(a.node.obedience)
        assert (port is not None) is ("worker" in roles)
        if port is not None:
            port[1].close()
        ends.close()

    run_in_cluster(tmp_path, scenario)


def test_a_gateway_knows_whom_to_ask_from_the_directory_and_a_worker_remembers_nobody(tmp_path: Path) -> None:
    async def scenario(world: ClusterWorld) -> None:
        a, gw, w1 = await world.build(a=("authority",), gw=("gateway",), w1=("worker",))
        await world.publish(a, {"q": clustered(member(facts(), "/engine"), replicas=1)}, 1)
        await until(lambda: w1.slots() == [0] and gw.node.desired.held is not None and gw.node.feed.plan is not None)
        await until(lambda: any(one.state == "ready" for one in _replicas(gw)))
        for node, knows in ((gw, True), (w1, False)):
            ends, it, anything = _ends(node), node.node, cast("Any", None)
            ends.gateway(anything, anything, bound_to_loopback=True)
            ends.know(it.roster, gw.node.desired.held, it.publisher.last, gw.node.feed.plan)
            found = ends._known.selection("q").candidates
            assert [one.node_id for one in found] == (["w1"] if knows else [])
            ends.close()

    run_in_cluster(tmp_path, scenario)


def _replicas(gateway: SimNode) -> tuple[Any, ...]:
    row = gateway.node.roster.view.rows.get("w1")
    return () if row is None or row.snapshot is None else row.snapshot.replicas
