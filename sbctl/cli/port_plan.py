"""Ports that a runtime or a store is to have and somebody else has, before anything is begun: asked of the hosts where a plan makes or changes
one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sbctl.base.errors import SbctlError
from sbctl.base.limits import CONNECT_MAX_PARALLEL, SNAPSHOT_DEADLINE_S
from sbctl.cli.ports import port_checks, wanted_ports
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot, PortHolder
from sbctl.plan.model import Plan
from sbctl.remote.observe import FleetObservation
from sbctl.views.host_views import Check

__all__ = ["Holders", "asked_holders", "holders_of_changed", "taken_ports", "with_ports"]

Holders = Mapping[str, tuple[PortHolder, ...]]
"""By host, who listens on the ports that its runtime and its store are to have; hosts that were not asked, or could not tell, are not in it."""

_MAKES = ("create", "update", "replace")
_LISTENERS = ("runtime", "store")


def holders_of_changed(plan: Plan, fleet: FleetObservation, config: CompiledConfig | None) -> Holders:
    """Of the hosts whose runtime or store an apply of the plan would make or change. A plan that changes none asks nobody."""
    if config is None or plan.mode != "apply" or plan.offline:
        return {}
    made = {change.host for change in plan.changes if change.address.kind in _LISTENERS and change.action in _MAKES}
    return asked_holders(fleet, config, made)


def asked_holders(fleet: FleetObservation, config: CompiledConfig, hosts: Collection[str]) -> Holders:
    """Of those of `hosts` that answered, at the same time."""
    asked = sorted(set(hosts) & fleet.snapshots.keys() & config.hosts.keys())
    found: dict[str, tuple[PortHolder, ...]] = {}

    def ask(name: str) -> None:
        ports = sorted({wanted.port for wanted in wanted_ports(config.hosts[name], config.cluster)})
        with contextlib.suppress(SbctlError):
            found[name] = fleet.sessions[name].port_holders(ports, SNAPSHOT_DEADLINE_S)

    if asked:
        with ThreadPoolExecutor(CONNECT_MAX_PARALLEL, thread_name_prefix="ports") as pool:
            list(pool.map(ask, asked))
    return found


def taken_ports(
    config: CompiledConfig | None, snapshots: Mapping[str, NodeSnapshot | None], holders: Holders
) -> Iterator[Check]:
    """Doctor's blockers of ports, of the hosts in `holders`. `snapshots` are as the hosts told: also one that is planned as bare may have a
    runtime of ours. Pure."""
    for name in sorted(holders):
        host, snapshot = None if config is None else config.hosts.get(name), snapshots.get(name)
        if config is not None and host is not None and snapshot is not None:
            checks = port_checks(host, config.cluster, snapshot, holders[name])
            yield from (check for check in checks if check.verdict == "fail")


def with_ports(
    plan: Plan, config: CompiledConfig | None, snapshots: Mapping[str, NodeSnapshot | None], holders: Holders
) -> Plan:
    """The plan with one sentence for each port that its host will not get. Pure."""
    taken = tuple(
        f"{check.host}: {check.name}: {check.detail}; {check.next_step}"
        for check in taken_ports(config, snapshots, holders)
    )
    return replace(plan, taken=taken) if taken else plan
