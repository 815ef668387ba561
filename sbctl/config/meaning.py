"""What of a configuration can matter to a plan, as JSON: the part of `CompiledConfig` that its digest covers.

Comments, notes, the order of keys, names of catalog files and who accepts what unenforced are not in it. No secret is: a password is its
reference and its keyed fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sbctl.base.digests import fingerprint
from sbctl.config.compiled import CompiledDeployment, CompiledEgress, CompiledHost, CompiledOrigin
from sbctl.config.models import ProxyModel
from sbctl.trust.bundle import ApiKeyEntry

__all__ = ["host_meaning", "keys_meaning", "served_meaning"]


def served_meaning(
    proxy: ProxyModel, deployments: Mapping[str, CompiledDeployment], origins: Mapping[str, CompiledOrigin]
) -> str:
    """64 hex characters over what hosts that see the same share."""
    return fingerprint(
        {
            "proxy": proxy.model_dump(mode="json", exclude={"model_host": {"catalog_file", "deployments"}}),
            "deployments": {
                name: {
                    "model": each.model.model_dump(mode="json"),
                    "artifact": each.artifact.artifact,
                    "sources": [each.artifact.source, each.artifact.revision, *each.artifact.mirrors],
                    "engine": each.engine,
                    "policy": each.engine_policy.model_dump(mode="json"),
                    "context_length": each.context_length,
                    "mode": each.mode,
                    "adapters": [[adapter.artifact.artifact, adapter.scale] for adapter in each.adapters],
                    **_alternatives_meaning(each),
                }
                for name, each in deployments.items()
            },
            "origins": {
                name: {
                    "default": each.default_model,
                    "force_ssl": each.force_ssl,
                    "routes": {route.model: route.deployment for route in each.routes},
                    "stand_ins": [asdict(stand_in) for stand_in in each.stand_ins],
                }
                for name, each in origins.items()
            },
        }
    )


def _alternatives_meaning(each: CompiledDeployment) -> dict[str, Any]:
    """Nothing where there are none."""
    found = [[one.artifact.variant, one.artifact.artifact, one.context_length] for one in each.alternatives]
    return {"alternatives": found} if found else {}


def keys_meaning(api_keys: Mapping[str, ApiKeyEntry]) -> dict[str, Any]:
    """The callers, as JSON."""
    return {name: key.model_dump(mode="json") for name, key in api_keys.items()}


def host_meaning(host: CompiledHost, served: str) -> dict[str, Any]:
    """One host; `served` is the digest of what it serves."""
    password, connection = host.admin_password, host.connection
    certificate = None if host.tls is None or host.tls.certificate is None else host.tls.certificate.fingerprint
    return {
        "connection": asdict(connection),
        "roles": sorted(host.roles),
        "labels": dict(host.labels),
        "served": served,
        "admin_password": None if password is None else [password.reference, password.fingerprint],
        "certificate": certificate,
        **_egress_meaning(host.egress),
        "delivery": host.delivery,
        "python": host.python if host.standalone is None else {"standalone": host.standalone.sha256},
        "keep_weights": host.keep_weights,
        "data_address": host.data_address,
    }  # fmt: skip


def _egress_meaning(egress: CompiledEgress | None) -> dict[str, Any]:
    """Nothing where sb.yml says nothing of it."""
    if egress is None:
        return {}
    secrets = {name: [held.reference, held.fingerprint] for name, held in egress.secrets.items()}
    return {"egress": {**egress.config.model_dump(mode="json"), "secrets": secrets}}
