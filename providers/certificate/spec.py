"""Desired: what a host's identity says, which CAs it trusts and which revocations it knows. A revoked host desires none.

Of a PKI of the user's own the certificate is there already, so its fingerprint and epoch are desired, too; nothing is issued or renewed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from providers.resource import desired_resource
from providers.standalone_python import standalone_spec
from sbctl import __version__
from sbctl.base.clock import rfc3339
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig
from sbctl.trust.own_pki import OwnIdentity

__all__ = ["desired", "fields_for_reader", "is_own", "issued_fields", "restored", "surrounding_fields"]

_ISSUED: Final = ("cluster_id", "server_name", "roles", "labels", "issuer", "authority_key", "rotation", "attestation")
_OWN: Final = ("fingerprint", "identity_epoch", "not_after", "key")
"""What stands in the certificate or in the signed document: another value is another certificate."""
_OF_TODAY: Final = (
    "cluster_id", "server_name", "ca", "issuer", "authority_key", "authority_keys", "revocations", "rotation"
)  # fmt: skip
"""What the authority says now, which no rollback brings back."""


def desired(config: CompiledConfig) -> Iterator[Desired]:
    for host in config.hosts.values():
        if not config.has_identity(host.name):
            continue
        own = None if config.own_identities is None else config.own_identities[host.name]
        said = _own(own) if own is not None else _issued(config, host.name)
        spec = {
            "lineage": config.lineage,
            "node_id": host.name,
            "roles": sorted(host.roles),
            "labels": dict(host.labels),
            **said,
            "version": config.runtime_version or __version__,
            "python": host.python,
            "standalone": standalone_spec(host),
        }
        after = frozenset({Address("host", host.name)})
        yield desired_resource(config, host, Address("certificate", host.name), spec, after=after)


def _issued(config: CompiledConfig, host: str) -> dict[str, Any]:
    identity, authority = config.identity, config.authority
    assert identity is not None
    assert authority is not None
    node = authority.nodes.get(host)
    return {
        "attestation": "enrolled",
        "cluster_id": authority.cluster_id,
        "server_name": authority.server_name,
        "ca": list(authority.ca),
        "issuer": authority.issuer,
        "authority_key": authority.authority_key,
        "authority_keys": list(authority.authority_keys),
        "revocations": authority.revocations,
        "rotation": node.rotation if node is not None else 0,
        "validity_days": identity.validity_days,
        "renew_before_days": identity.renew_before_days,
    }


def _own(own: OwnIdentity) -> dict[str, Any]:
    return {
        "attestation": "manual_pki",
        "cluster_id": own.cluster_id,
        "server_name": own.server_name,
        "ca": list(own.ca),
        "issuer": own.issuer,
        "authority_key": "",
        "authority_keys": [],
        "revocations": 0,
        "rotation": 0,
        "fingerprint": own.fingerprint,
        "identity_epoch": own.identity_epoch,
        "not_after": rfc3339(own.not_after),
        "key": own.key,
    }


def is_own(spec: Mapping[str, Any]) -> bool:
    """Whether a PKI of the user's own issued it."""
    return bool(spec["attestation"] == "manual_pki")


def issued_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: spec[name] for name in (*_ISSUED, *(_OWN if is_own(spec) else ()))}
    if is_own(spec):
        fields["fingerprint"] = spec["fingerprint"][:16]
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
    """A rollback brings back roles and labels, never an old CA, an old revocation list or a revoked epoch. What an own PKI issued stays: its
    files say all of it."""
    if is_own(snapshot_spec) or is_own(recorded_spec):
        return recorded_spec
    return {**snapshot_spec, **{name: recorded_spec[name] for name in _OF_TODAY}}
