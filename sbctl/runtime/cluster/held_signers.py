"""Whose bundles this node accepts: the signer set that an apply installed, or a later one that the cluster's store showed.

A later set is signed by a member of the one that is held, wherever it comes from, and has a higher key epoch; so hosts that no apply reaches
follow a change of operators, and a set never becomes older. It is kept in the node's own memory, where it was put after that check: by the
time of the next start the members who signed it may be gone.
"""

from __future__ import annotations

from sbctl.base.errors import RefusedError
from sbctl.node.paths import NodePaths
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.log import get_log
from sbctl.runtime.settings import load_trust
from sbctl.trust.bundle import TrustSet
from sbctl.trust.verifier import verify_trust

__all__ = ["HeldSigners"]


class HeldSigners:
    """`trust` is None on a node that no operator gave a set yet: it accepts no bundle."""

    def __init__(self, paths: NodePaths, fences: ClusterFences) -> None:
        """Raises as `load_trust`."""
        self._paths = paths
        self._fences = fences
        self.trust: TrustSet | None = None
        self.reload()

    def reload(self) -> None:
        """Take up what an apply installed. Raises as the constructor."""
        installed, _digest = load_trust(self._paths)
        self.trust = _newer(installed, self._fences.signers())

    def offer(self, text: str) -> bool:
        """A set that the store shows. Durable before it counts. False: it is the one that is held.

        Raises RefusedError `trust.none_here` where none is held: the first set comes over a login, from nowhere else; and as `verify_trust`.
        """
        if self.trust is None:
            raise RefusedError(
                "trust.none_here",
                "this node has no signer set, and takes its first one from an apply alone",
                next_step="run sbctl apply for this host",
            )
        proposed = verify_trust(text, current=self.trust, lineage=self.trust.lineage)
        if proposed == self.trust:
            return False
        self._fences.keep_signers(proposed)
        self.trust = proposed
        get_log("cluster").info("signer set taken up", key_epoch=proposed.key_epoch, signers=sorted(proposed.signers))
        return True


def _newer(installed: TrustSet | None, kept: TrustSet | None) -> TrustSet | None:
    """A set of another fleet is of the host's life before this one. Of two with one key epoch, that of the login counts."""
    if installed is None or kept is None or kept.lineage != installed.lineage:
        return installed
    return kept if kept.key_epoch > installed.key_epoch else installed
