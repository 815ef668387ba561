"""Desired: where the server listens, how long what it issues is good, whose word it has, and what hosts trust, believe and refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.resource import desired_resource
from sbctl import __version__
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig

__all__ = ["desired", "fields_for_reader", "restored"]

_OF_TODAY: Final = (
    "cluster_id",
    "server_name",
    "ca",
    "issuer",
    "authority_keys",
    "revocations",
    "rotation",
    "reserved",
)
"""What the authority and sb.yml's hosts say now, which no rollback brings back."""
_SHOWN: Final = (
    "bind_address", "port", "validity_hours", "issuer", "revocations", "rotation", "server_name", "cluster_id", "version"
)  # fmt: skip


def desired(config: CompiledConfig) -> Iterator[Desired]:
    identity, authority = config.identity, config.authority
    if identity is None or authority is None or identity.enroll is None:
        return
    enroll = identity.enroll
    if enroll.host not in config.hosts or not config.has_identity(enroll.host):
        return
    node = authority.nodes.get(enroll.host)
    spec = {
        "lineage": config.lineage,
        "node_id": enroll.host,
        "cluster_id": authority.cluster_id,
        "server_name": authority.server_name,
        "bind_address": enroll.bind_address,
        "port": enroll.port,
        "validity_hours": enroll.validity_hours,
        "reserved": sorted(config.hosts),
        "ca": list(authority.ca),
        "issuer": authority.issuer,
        "authority_keys": list(authority.authority_keys),
        "revocations": authority.revocations,
        "rotation": node.rotation if node is not None else 0,
        "validity_days": identity.validity_days,
        "version": config.runtime_version or __version__,
    }
    after = frozenset(Address(kind, enroll.host) for kind in ("host", "certificate", "runtime"))
    host = config.hosts[enroll.host]
    yield desired_resource(config, host, Address("enrollment", enroll.host), spec, after=after)


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are compared, as the reader knows them."""
    return {
        **{name: spec[name] for name in _SHOWN},
        "issuer": spec["issuer"][:16],
        "ca": {fingerprint[:16]: "trusted" for fingerprint in spec["ca"]},
        "signers": dict.fromkeys(spec["authority_keys"], "trusted"),
        "reserved": dict.fromkeys(spec["reserved"], "reserved"),
    }


def restored(snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollback brings back where it listens, never old trust or an old revocation list."""
    return {**snapshot_spec, **{name: recorded_spec[name] for name in _OF_TODAY}}
