"""Desired: which hosts run the store, where its members reach each other, who may use it, and which program it is."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from providers.resource import desired_resource
from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.engines.store_pins import STORE_DEFAULT

__all__ = ["desired", "fields_for_reader", "restored", "users_only"]

_OF_TODAY: Final = ("cluster_id", "server_name", "members", "nodes")
"""What the cluster is now, which no rollback brings back."""
_SHOWN: Final = ("port", "monitor_port", "bind_address", "version", "program", "cluster_id", "server_name")


def desired(config: CompiledConfig) -> Iterator[Desired]:
    """Raises ConfigError `config.rule` for addresses that no certificate can stand for."""
    hosts = sorted(
        (host for host in config.hosts.values() if host.proxy.cluster is not None and config.has_identity(host.name)),
        key=lambda host: host.name,
    )
    members = [host for host in hosts if "authority" in host.roles]
    if not members:
        return
    _check(members)
    listed = {host.name: _member(host, alone=len(members) == 1) for host in members}
    nodes = {host.name: "authority" if "authority" in host.roles else "node" for host in hosts}
    before: frozenset[Address] = frozenset()
    for at, host in enumerate(members):
        spec = _spec(config, host, at, listed, nodes)
        after = frozenset(Address(kind, host.name) for kind in ("host", "certificate", "runtime")) | before
        before = frozenset({Address("store", host.name)})
        yield desired_resource(config, host, Address("store", host.name), spec, after=after)


def _spec(
    config: CompiledConfig,
    host: CompiledHost,
    at: int,
    members: Mapping[str, Mapping[str, Any]],
    nodes: Mapping[str, str],
) -> dict[str, Any]:
    cluster = host.proxy.cluster
    assert cluster is not None
    store = cluster.store
    return {
        "lineage": config.lineage,
        "cluster_id": cluster.cluster_id,
        "server_name": _server_name(config, host.name),
        "node_id": host.name,
        "bind_address": store.bind_address,
        "port": store.port,
        "monitor_port": store.monitor_port,
        "members": members,
        "nodes": nodes,
        "program": store.path,
        "version": None if store.path is not None else store.version or STORE_DEFAULT,
        "delivery": host.delivery,
        # The first of three has nobody to agree with yet.
        "completes_quorum": at >= len(members) // 2,
    }


def _server_name(config: CompiledConfig, host: str) -> str:
    if config.own_identities is not None:
        return config.own_identities[host].server_name
    assert config.authority is not None, "a host has an identity, and nobody gives it"
    return config.authority.server_name


def _member(host: CompiledHost, *, alone: bool) -> dict[str, Any]:
    assert host.proxy.cluster is not None
    return {"address": "127.0.0.1" if alone else host.data_address, "port": host.proxy.cluster.store.cluster_port}


def _check(members: Sequence[CompiledHost]) -> None:
    if len(members) == 1:
        return
    for host in members:
        try:
            ipaddress.ip_address(host.data_address)
        except ValueError:
            raise _refused(
                f'the authority {host.name} is reached at "{host.data_address}", which its certificate does not name',
                f"write its IP address: fleet.hosts.{host.name}.data_address",
            ) from None


def _refused(message: str, note: str) -> ConfigError:
    return ConfigError([Diagnostic("config.rule", message, notes=(note,))])


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are compared, as the reader knows them."""
    return {
        **{name: spec[name] for name in _SHOWN if spec[name] is not None},
        "members": {name: f"{one['address']}:{one['port']}" for name, one in spec["members"].items()},
        "users": dict(spec["nodes"]),
    }


def users_only(paths: Sequence[str]) -> bool:
    """Whether leaves of these paths are taken up without a restart."""
    return all(path == "users" or path.startswith("users.") for path in paths)


def restored(snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollback brings back ports and program, never former members or nodes that were removed."""
    return {**snapshot_spec, **{name: recorded_spec[name] for name in _OF_TODAY}}
