"""What the store's server reads: its configuration, and the names of the other members. Pure; without timestamps, so that an unchanged one is the same bytes.

    every node           a user, whom the certificate names, in an account beside the store's; only some names lead from there into the store
    members              routes with certificates of members only: the server takes no route from anybody whose name is not among its own routes
    group                who the members are is part of the name of the cluster and of the data directory: other members begin an empty store,
                         which authorities and nodes fill again, so that no membership has to be operated on

The file is JSON, which the server's language contains; nothing that comes from outside can end a string in it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError
from sbctl.base.limits import MIB
from sbctl.node.store_messages import StoreInstall, StoreMember, StoreNode
from sbctl.runtime.cluster.buckets import STORE_MAX_BYTES
from sbctl.runtime.cluster.store import Bucket
from sbctl.runtime.cluster.subjects import (
    API,
    CHANGED,
    READ_API,
    api_subject,
    inbox_prefix,
    server_subject,
    writable_subjects,
    write_subject,
)

__all__ = ["MESSAGE_MAX_BYTES", "Places", "check_names", "group_of", "hosts_file", "render_config", "without_users"]

MESSAGE_MAX_BYTES: Final = 8 * MIB
_HEAD: Final = "# Written by sbctl apply, which replaces it when it differs.\n"
_STORE: Final = "STORE"
_NODES: Final = "NODES"
_AUTHORITIES: Final = "AUTHORITIES"
_TLS_TIMEOUT_S: Final = 5
_SUBSCRIPTIONS_MAX: Final = 256
_CONNECTIONS_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class Places:
    """Where the server finds its certificate, and may write. `by_name`: members' names lead to their addresses (`hosts_file`); without it, all of
    them are on this machine, whose name their certificates must carry."""

    identity: PurePath
    data: PurePath
    pid_file: PurePath | None
    by_name: bool


def group_of(params: StoreInstall) -> str:
    """A name of the set of members."""
    return fingerprint(sorted(member.node_id for member in params.members))[:12]


def check_names(params: StoreInstall) -> None:
    """Raises InputError `store.name_taken`, `store.members`."""
    names = [node.node_id for node in params.nodes]
    taken = params.server_name in names or len(set(names)) != len(names)
    if taken:
        raise InputError(
            "store.name_taken",
            f'"{params.server_name}" is in every certificate of the cluster, so no host may be called that',
            next_step="rename the host",
        )
    members = [member.node_id for member in params.members]
    if params.node_id not in members or len(set(members)) != len(members) or len(members) not in (1, 3):
        raise InputError(
            "store.members",
            f"a store has one member or three, each once and this host among them; these are {', '.join(members)}",
            next_step="give the role authority to one host or to three",
        )


def hosts_file(params: StoreInstall) -> bytes:
    """Names of the members, as the server resolves them."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{member.address} {member.node_id}" for member in params.members]
    return ("\n".join(lines) + "\n").encode()


def render_config(params: StoreInstall, places: Places) -> bytes:
    own = next(member for member in params.members if member.node_id == params.node_id)
    tls = _tls(places)
    document: dict[str, Any] = {
        "server_name": params.node_id,
        "host": params.bind_address,
        "port": params.port,
        "http": f"127.0.0.1:{params.monitor_port}",
        "max_payload": MESSAGE_MAX_BYTES,
        "max_connections": _CONNECTIONS_MAX,
        "max_subscriptions": _SUBSCRIPTIONS_MAX,
        "tls": {**tls, "verify_and_map": True, "handshake_first": True},
        "jetstream": {
            "store_dir": str(places.data / group_of(params)),
            "sync_interval": "always",
            "max_file_store": STORE_MAX_BYTES,
            "max_memory_store": 0,
        },
        "system_account": "SYS",
        "accounts": _accounts(params),
    }
    if places.pid_file is not None:
        document["pid_file"] = str(places.pid_file)
    if len(params.members) > 1:
        document["cluster"] = {
            "name": f"{params.cluster_id}-{group_of(params)}",
            "host": params.bind_address,
            "port": own.port,
            "advertise": _route(own, places),
            "no_advertise": True,
            "tls": {**tls, "verify_cert_and_check_known_urls": True},
            "routes": [
                f"tls://{_route(member, places)}"
                for member in sorted(params.members, key=lambda member: member.node_id)
                if member.node_id != params.node_id
            ],
        }
    return (_HEAD + json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def without_users(config: bytes) -> bytes:
    """What of a configuration the server takes up only at its start."""
    document = json.loads(config.decode().removeprefix(_HEAD))
    document.pop("accounts")
    return json.dumps(document, sort_keys=True).encode()


def _tls(places: Places) -> dict[str, Any]:
    return {
        "cert_file": str(places.identity / "node.pem"),
        "key_file": str(places.identity / "node-key.pem"),
        "ca_file": str(places.identity / "ca.pem"),
        "min_version": "1.3",
        "timeout": _TLS_TIMEOUT_S,
    }


def _route(member: StoreMember, places: Places) -> str:
    if places.by_name:
        return f"{member.node_id}:{member.port}"
    if not ipaddress.ip_address(member.address).is_loopback:
        raise InputError(
            "store.no_names",
            f"without systemd all members of a store have to be on this machine; {member.node_id} is at {member.address}",
            next_step="use hosts with systemd that are reached as root or by sudo",
        )
    return f"localhost:{member.port}"


def _accounts(params: StoreInstall) -> dict[str, Any]:
    nodes = sorted(params.nodes, key=lambda node: node.node_id)
    return {
        "SYS": {},
        _STORE: {"jetstream": "enabled", "exports": _exports()},
        _NODES: _account(READ_API, [Bucket.NODES], [node for node in nodes if not node.is_authority]),
        _AUTHORITIES: _account(tuple(API), list(Bucket), [node for node in nodes if node.is_authority]),
    }


def _exports() -> list[Mapping[str, Any]]:
    writes = [{"service": write_subject(bucket, ">"), "response_type": "singleton"} for bucket in Bucket]
    questions = [
        # A listing answers with many messages.
        {"service": server_subject(what, bucket), "response_type": "stream" if what == "list" else "singleton"}
        for bucket in Bucket
        for what in API
    ]
    return [*writes, *questions, {"stream": f"{CHANGED}.>"}]


def _account(api: Sequence[str], written: Sequence[Bucket], nodes: Sequence[StoreNode]) -> dict[str, Any]:
    """What leads from here into the store, and for each user what of it is his own."""
    asked = [(what, bucket) for bucket in Bucket for what in api]
    imports: list[Mapping[str, Any]] = [
        {"service": {"account": _STORE, "subject": write_subject(bucket, ">")}} for bucket in written
    ]
    imports += [
        {"service": {"account": _STORE, "subject": server_subject(what, bucket)}, "to": api_subject(what, bucket)}
        for what, bucket in asked
    ]
    imports.append({"stream": {"account": _STORE, "subject": f"{CHANGED}.>"}})
    questions = [api_subject(what, bucket) for what, bucket in asked]
    return {"imports": imports, "users": [_user(node, questions) for node in nodes]}


def _user(node: StoreNode, questions: Sequence[str]) -> dict[str, Any]:
    """The certificate's name is the user's. A node hears answers to its own questions only."""
    return {
        "user": node.node_id,
        "permissions": {
            "publish": {"allow": [*writable_subjects(node.node_id, is_authority=node.is_authority), *questions]},
            "subscribe": {"allow": [f"{inbox_prefix(node.node_id)}.>", f"{CHANGED}.>"]},
        },
    }
