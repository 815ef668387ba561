"""Desired, for a node of a cluster: what its runtime is told of it, and how that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.engine_policy import engine_policy
from sbctl.base.display import format_duration_s
from sbctl.base.limits import LEAVE_DEADLINE_S
from sbctl.config.cluster_shape import peer_address
from sbctl.config.compiled import CompiledCluster, CompiledConfig, CompiledHost
from sbctl.engines.detect import PROGRAM_NAME
from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer, PeerPort

__all__ = ["cluster_fields", "leaving_note", "left_authorities", "node_config"]

_MS = 1000


def node_config(config: CompiledConfig, cluster: CompiledCluster, host: CompiledHost) -> ClusterConfig:
    """Who the host is in its cluster, and where the others are."""
    written = host.proxy.cluster
    assert written is not None, "a cluster has no hosts beside it"
    servers = (config.hosts[name] for name in cluster.authorities)
    return ClusterConfig(
        cluster_id=cluster.cluster_id,
        node_id=host.name,
        roles=tuple(role for role in ("gateway", "worker", "authority") if role in host.roles),
        labels=dict(host.labels),
        store=tuple(
            ClusterStoreServer(node_id=one.name, address=one.data_address, port=written.store.port) for one in servers
        ),
        peer=_peer(host) if "worker" in host.roles else None,
        programs=_programs(cluster) if "worker" in host.roles else (),
        expected_nodes=cluster.workers if "authority" in host.roles else (),
        publish_interval_ms=written.publish_interval_secs * _MS,
        snapshot_ttl_ms=written.snapshot_ttl_secs * _MS,
    )


def _programs(cluster: CompiledCluster) -> tuple[str, ...]:
    """Any worker may be assigned any deployment."""
    policies = (engine_policy(deployment) for deployment in cluster.deployments.values())
    return tuple(sorted({policy.path or PROGRAM_NAME for policy in policies if policy.launch == "binary"}))


def _peer(host: CompiledHost) -> PeerPort:
    bind, port, advertise = peer_address(host)
    return PeerPort(bind=bind, port=port, advertise=advertise)


def cluster_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of the cluster, as the reader knows it; nothing for a host that serves by itself. Who else belongs to it is not shown: each
    has a row."""
    cluster = config.get("cluster")
    if cluster is None:
        return {}
    shown = {
        name: value for name, value in cluster.items() if name not in ("store", "peer", "expected_nodes", "node_id")
    }
    shown["store"] = {one["node_id"]: f"{one['address']}:{one['port']}" for one in cluster["store"]}
    shown["expected_workers"] = len(cluster["expected_nodes"]) or None
    peer = cluster["peer"]
    if peer is not None:
        shown |= {"peer_bind": f"{peer['bind']}:{peer['port']}", "peer_address": f"{peer['advertise']}:{peer['port']}"}
    return {"cluster": {name: value for name, value in shown.items() if value not in (None, {}, [])}}


def left_authorities(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Authorities of the cluster that a host is no worker of any more; none where it stays one, or never was, or its whole fleet goes back to
    hosts on their own."""
    was = before["config"].get("cluster")
    if was is None or "worker" not in was["roles"]:
        return ()
    now = None if after is None else after["config"].get("cluster")
    if after is not None and (now is None or "worker" in now["roles"]):
        return ()
    return tuple(one["node_id"] for one in was["store"])


def leaving_note(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> tuple[str, ...]:
    """For the reader of a plan."""
    if not left_authorities(before, after):
        return ()
    most = format_duration_s(LEAVE_DEADLINE_S)
    return (f"what it runs is placed on other workers first, and serves until that is ready: at most {most}",)
