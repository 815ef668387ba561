"""Ports of the peer plane and of the store: asked of the hosts that need them, told with their holders, and never those that are ours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.cli.port_plan import holders_of_changed, taken_ports
from sbctl.cli.ports import port_checks, wanted_ports
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.node.snapshot import ClusterState, NodePathsState, NodeSnapshot, PortHolder, RuntimeState, StoreState
from sbctl.plan.model import Plan
from sbctl.remote.observe import FleetObservation

PIN = "SHA256:" + "A" * 43
SERVES = {"running": True, "healthy": True, "pid": 9, "http_url": "http://0.0.0.0:8080"}
STORE_UNIT = "sbctl-store.service"


def config(directory: Path, *, authorities: int = 1, store: str = "{}") -> CompiledConfig:
    roles = {f"auth-{at}": "authority" for at in range(authorities)} | {"gw": "gateway", "gpu": "worker"}
    hosts = ", ".join(
        f'{name}: {{address: 10.0.0.{at}, host_key: "{PIN}", roles: [{role}]}}'
        for at, (name, role) in enumerate(roles.items(), 1)
    )
    file = directory / "sb.yml"
    file.write_text(
        f"fleet: {{identity: {{directory: ./cluster}}, ssh: {{identity_file: /k}}, hosts: {{{hosts}}}}}\n"
        f"proxy: {{cluster: {{cluster_id: prod, store: {store}}}, model_host: {{deployments: {{chat: {{model: smollm2-135m-instruct}}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}\n"
    )
    return load(file, environ={})


def told(*, store: StoreState | None = None, cluster: bool = False, **runtime: Any) -> NodeSnapshot:
    return NodeSnapshot(
        bootstrapped=True,
        paths=NodePathsState(etc="/e", state="/s", cache="/c", opt="/o", staging="/s/staging"),
        runtime=RuntimeState(**runtime),
        store=store,
        cluster=ClusterState(cluster_id="prod") if cluster else None,
    )


@pytest.mark.parametrize(
    ("authorities", "host", "ports"),
    [
        (1, "auth-0", [8080, 4222, 8222]),
        (3, "auth-1", [8080, 4222, 8222, 6222]),
        (1, "gpu", [8080, 9443]),
        (1, "gw", [8080]),
    ],
)
def test_each_role_wants_its_ports(tmp_path: Path, authorities: int, host: str, ports: list[int]) -> None:
    made = config(tmp_path, authorities=authorities)
    wanted = wanted_ports(made.hosts[host], made.cluster)
    assert sorted(one.port for one in wanted if "admin" not in one.name) == sorted(ports)


def holder(port: int, **more: Any) -> PortHolder:
    return PortHolder(
        **{"port": port, "address": "0.0.0.0", "pid": 77, "program": "nats-server", "user": "root", **more}
    )


FOREIGN_UNIT = {"unit": "nats-server.service", "started_as": "/usr/sbin/nats-server"}


@pytest.mark.parametrize(
    ("host", "seen", "listens", "said"),
    [
        ("auth-0", {}, holder(4222, **FOREIGN_UNIT), "port of the store: 0.0.0.0:4222 is held by nats-server"),
        ("auth-0", {}, holder(8222, address="127.0.0.1", **FOREIGN_UNIT), "127.0.0.1:8222 is held by"),
        ("auth-0", {}, holder(8222, address="10.0.0.1", **FOREIGN_UNIT), ""),
        ("auth-0", {}, holder(6222, **FOREIGN_UNIT), ""),
        ("auth-0", {"store": StoreState()}, holder(4222, **FOREIGN_UNIT), "systemctl stop nats-server.service"),
        ("auth-0", {"store": StoreState(running=True)}, holder(4222, unit=STORE_UNIT), ""),
        ("auth-0", {"store": StoreState(stuck=True)}, holder(4222, unit=STORE_UNIT), ""),
        ("auth-0", {}, holder(4222, started_as="/o/store/2.15.1/nats-server"), ""),
        ("auth-0", {"store": StoreState(running=True)}, holder(4222, started_as="/usr/sbin/nats-server"), ""),
        ("auth-0", {"store": StoreState()}, holder(4222, started_as="/usr/sbin/nats-server"), "is held by"),
        ("gpu", {}, holder(9443, program="nginx"), "port for gateways: 0.0.0.0:9443 is held by nginx"),
        ("gpu", {**SERVES, "cluster": True}, holder(9443, pid=9, program="python"), ""),
        ("gpu", {**SERVES, "cluster": True}, holder(9443, pid=None, program="", user="sbctl"), ""),
        ("gpu", SERVES, holder(9443, pid=None, program="", user="sbctl"), "is held by"),
        ("gpu", {**SERVES, "cluster": True}, holder(9443, pid=None, program="", user="www"), "which only root may see"),
        ("gw", {}, holder(9443), ""),
    ],
)
def test_a_port_of_the_cluster_that_others_hold_is_told(
    tmp_path: Path, host: str, seen: dict[str, Any], listens: PortHolder, said: str
) -> None:
    checks = list(taken_ports(config(tmp_path), {host: told(**seen)}, {host: (listens,)}))
    assert len(checks) == bool(said)
    assert said in " ".join(f"{check.name}: {check.detail}; {check.next_step}" for check in checks)


def test_what_is_ours_is_not_called_free(tmp_path: Path) -> None:
    made = config(tmp_path)
    seen, store = told(store=StoreState(running=True)), holder(4222, unit=STORE_UNIT)
    checks = {check.name: check.verdict for check in port_checks(made.hosts["auth-0"], made.cluster, seen, [store])}
    assert checks == {"port of the API": "pass", "the store's port for the host": "pass"}


def test_the_field_to_change_is_named(tmp_path: Path) -> None:
    (check,) = taken_ports(config(tmp_path), {"auth-0": told()}, {"auth-0": (holder(4222),)})
    assert "proxy.cluster.store.port" in check.next_step


@pytest.mark.parametrize(
    ("kind", "action", "asked"),
    [("store", "create", True), ("runtime", "update", True), ("store", "delete", False), ("bundle", "update", False)],
)
def test_hosts_are_asked_where_a_runtime_or_a_store_is_made_or_changed(
    tmp_path: Path, kind: str, action: str, asked: bool
) -> None:
    questions: list[list[int]] = []

    def port_holders(ports: list[int], _deadline_s: float) -> tuple[PortHolder, ...]:
        questions.append(ports)
        return (holder(4222),)

    change = SimpleNamespace(host="auth-0", action=action, address=SimpleNamespace(kind=kind))
    plan = cast("Plan", SimpleNamespace(mode="apply", offline=False, changes=[change]))
    session = SimpleNamespace(port_holders=port_holders)
    fleet = cast("FleetObservation", SimpleNamespace(snapshots={"auth-0": told()}, sessions={"auth-0": session}))
    found = holders_of_changed(plan, fleet, config(tmp_path))
    assert questions == [[4222, 8080, 8222]] * asked
    assert found == ({"auth-0": (holder(4222),)} if asked else {})
