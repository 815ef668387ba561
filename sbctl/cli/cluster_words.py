"""What a host's snapshot says of its cluster, and of the store on it, in sentences: for `status` and for `doctor`; and that nobody who was asked
of the cluster gave an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.node.snapshot import ClusterState, StoreState
from sbctl.views.host_views import Check

__all__ = ["cluster_check", "cluster_problems", "nobody_answered", "store_checks", "store_notes", "store_problems"]


def cluster_problems(cluster: ClusterState | None) -> Iterator[str]:
    """Why the host stands alone, with what to do about it; nothing on a host without a cluster."""
    if cluster is not None and cluster.problem:
        yield f"it stands alone in its cluster: {cluster.problem}"


def cluster_check(name: str, cluster: ClusterState | None) -> Iterator[Check]:
    """For doctor."""
    for said in cluster_problems(cluster):
        yield Check("cluster", "fail", said, host=name)


def store_problems(store: StoreState | None) -> Iterator[str]:
    """What is wrong with it now; nothing on a host without one."""
    if store is None:
        return
    if store.stuck:
        yield f"the cluster's store takes no writes here: {store.problem or 'its disk was full'}; what runs goes on"
    elif not store.running:
        yield "the cluster's store does not run here: systemctl status sbctl-store, sbctl apply"
    elif not store.whole:
        yield f"the cluster's store runs here and is not whole: {store.problem or 'no leader'}; what runs goes on"


def store_notes(store: StoreState | None) -> Iterator[str]:
    """What it went through."""
    if store is not None and store.restarts and not store.stuck:
        times = "once" if store.restarts == 1 else f"{store.restarts} times"
        yield f"the cluster's store started anew by itself {times}, last at {store.restarted_at}: its disk was full"


def store_checks(name: str, store: StoreState | None) -> Iterator[Check]:
    """For doctor."""
    if store is None:
        return
    problems, notes = tuple(store_problems(store)), tuple(store_notes(store))
    for said in problems:
        remedy = "make room on its disk" if store.stuck else "sbctl plan shows it"
        yield Check("store", "fail", said, remedy, name)
    for said in notes:
        yield Check("store", "warn", said, "give /var/lib/sbctl-store more room, or a disk of its own", name)
    if not problems and not notes:
        yield Check(
            "store", "pass", f"nats-server {store.version}, whole, led by {store.leader or 'itself'}", host=name
        )


def nobody_answered(said: str, asked: Sequence[str], silent: Mapping[str, SbctlError]) -> UnreachableError:
    """With each reason once, and whom it is of."""
    reasons: dict[str, list[str]] = {}
    for host, error in silent.items():
        reasons.setdefault(error.message, []).append(host)
    told = "; ".join(f"{', '.join(hosts)}: {reason}" for reason, hosts in reasons.items())
    return UnreachableError(
        "cluster.no_answer",
        f"nobody answered for the cluster, {said}: {told}",
        place=", ".join(asked),
        next_step="where nothing is installed yet: sbctl apply; else sbctl status shows what each host says, and sbctl doctor "
        "who cannot be reached",
        retryable=True,
    )
