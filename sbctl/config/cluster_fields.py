"""Fields of `proxy.cluster` that SBproxy's gossip needs and a store does not: named once; and what would weaken it: refused.

SBproxy's nodes find each other by gossip and copy state among themselves. Here they meet in one store on the authorities, and every node has an
identity of its cluster, so seeds, gossip addresses, replication and shared keys have nothing to do.
"""

from __future__ import annotations

from typing import Final

from sbctl.config.cluster import ClusterModel
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.layers import View

__all__ = ["check_cluster_fields"]

_UNUSED: Final[tuple[str, ...]] = (
    "seeds", "gossip_port", "transport_port", "advertise_addr", "transport_advertise_addr", "dead_peer_gc_secs", "replication"
)  # fmt: skip
_OF_IDENTITY: Final = (
    "shared_key",
    "cert_file",
    "key_file",
    "ca_file",
    "server_name",
    "key_derivation",
    "development",
    "mode",
)
_WHERE: Final[Path] = ("cluster",)


def check_cluster_fields(report: Report, cluster: ClusterModel, view: View) -> None:
    """One note for all that is kept and not used; an error for shared keys."""
    security = cluster.security
    if security is not None and security.mode == "shared_key":
        report.add(
            "config.rule",
            "a cluster with a shared key is not made: whoever has the key could speak as any node",
            view.key_span((*_WHERE, "security")),
            notes=(
                "sbctl cluster init gives every host a certificate of its own in a second: then add fleet.identity",
            ),
        )
    written = [name for name in _UNUSED if name in cluster.model_fields_set]
    if security is not None and security.mode == "mtls":
        written += [f"security.{name}" for name in _OF_IDENTITY if name in security.model_fields_set]
    for name in ("enrollment", "deployment_authority"):
        if getattr(cluster, name) is not None:
            written.append(name)
    if written:
        report.note(
            "config.no_effect",
            f"kept, and not used: {', '.join(written)}; the cluster's nodes meet in the store on its authorities (proxy.cluster.store), "
            "with the identities of fleet.identity",
            view.key_span(_WHERE),
        )
