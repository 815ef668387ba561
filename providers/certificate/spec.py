"""Desired: what a host's identity says, which CAs it trusts and which revocations it knows. A revoked host desires none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.resource import desired_resource
from providers.standalone_python import standalone_spec
from sbctl import __version__
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig

__all__ = ["desired", "fields_for_reader", "issued_fields", "restored", "surrounding_fields"]

_ISSUED: Final = ("cluster_id", "server_name", "roles", "labels", "issuer", "authority_key", "rotation")
"""What stands in the certificate or in the signed document: another value is another certificate."""
_OF_TODAY: Final = (
    "cluster_id", "server_name", "ca", "issuer", "authority_key", "authority_keys", "revocations", "rotation"
)  # fmt: skip
"""What the authority says now, which no rollback brings back."""


def desired(config: CompiledConfig) -> Iterator[Desired]:
    identity, authority = config.identity, config.authority
    if identity is None or authority is None:
        return
    for host in config.hosts.values():
        if not config.has_identity(host.name):
            continue
        node = authority.nodes.get(host.name)
        spec = {
            "lineage": config.lineage,
            "cluster_id": authority.cluster_id,
            "node_id": host.name,
            "server_name": authority.server_name,
            "roles": sorted(host.roles),
            "labels": dict(host.labels),
            "ca": list(authority.ca),
            "issuer": authority.issuer,
            "authority_key": authority.authority_key,
            "authority_keys": list(authority.authority_keys),
            "revocations": authority.revocations,
            "rotation": node.rotation if node is not None else 0,
            "validity_days": identity.validity_days,
            "renew_before_days": identity.renew_before_days,
            "version": config.runtime_version or __version__,
            "python": host.python,
            "standalone": standalone_spec(host),
        }
        after = frozenset({Address("host", host.name)})
        yield desired_resource(config, host, Address("certificate", host.name), spec, after=after)


def issued_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: spec[name] for name in _ISSUED}
    return {**fields, "issuer": spec["issuer"][:16]}


def surrounding_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is installed beside the certificate, and may change without another one."""
    return {
        "ca": {fingerprint[:16]: "trusted" for fingerprint in spec["ca"]},
        "signers": dict.fromkeys(spec["authority_keys"], "trusted"),
        "revocations": spec["revocations"],
    }


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are compared. How long the next certificate is valid matters when it is issued; how programs get there, to `runtime.H`."""
    return {**issued_fields(spec), **surrounding_fields(spec)}


def restored(snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollback brings back roles and labels, never an old CA, an old revocation list or a revoked epoch."""
    return {**snapshot_spec, **{name: recorded_spec[name] for name in _OF_TODAY}}
