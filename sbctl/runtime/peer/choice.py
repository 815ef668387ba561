"""Which replica a request goes to. Pure: candidates in, one out.

In this order: ready before starting before cold, a healthy peer plane, the gateway's own region, the shortest queue, the fewest running
requests, the least busy device, the emptiest memory (both in tenths: noise decides nothing), here before elsewhere, the prompt's own node, then by name. A node with several
replicas counts by the load of one.

A prompt's beginning has a node of its own (rendezvous hashing), where its prefix is in the engine's cache. That node is preferred, but only
among candidates of the same state, health and region, while nobody waits there, and while it would run no more than two requests a replica or
a quarter above the mean.

A deployment that is cold everywhere is woken in one place: for cold candidates load says nothing, so all requests and all gateways that
see the same directory choose the same one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sbctl.trust.peer_documents import Peer

__all__ = ["ATTEMPTS_MAX", "Candidate", "ReplicaKind", "choose", "order_key", "prefix_score"]

ATTEMPTS_MAX: Final = 8
"""Of one request, before its first byte."""
ReplicaKind = Literal["ready", "starting", "cold"]
_STATES: Final[Mapping[ReplicaKind, int]] = {"ready": 0, "starting": 1, "cold": 2}
_ABOVE_MEAN: Final = 1.25
_ALWAYS_FITS: Final = 2.0
_TENTH: Final = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """The replicas of one deployment's generation on one node. Loads are sums over `replicas`; utilisations are thousandths."""

    node_id: str
    generation: int
    state: ReplicaKind
    is_local: bool = False
    plane_is_ready: bool = True
    region: str = ""
    replicas: int = 1
    queue_depth: int = 0
    active: int = 0
    compute_utilization_millis: int = 0
    memory_occupancy_millis: int = 0
    address: str = ""
    """`host:port` of its peer plane."""
    certificate_sha256: str = ""
    """Of the certificate that its snapshot was signed with."""
    boot_epoch: int = 1
    """Of its present process, as far as the directory knows."""
    peer: Peer | None = field(default=None, compare=False)
    """Who it is, as its snapshot proved."""

    @property
    def key(self) -> tuple[str, int]:
        return self.node_id, self.generation


def prefix_score(prefix: bytes, node_id: str) -> int:
    """Higher is nearer: the rendezvous hash of a prompt's beginning and a node."""
    return int.from_bytes(hashlib.sha256(prefix + b"\x00" + node_id.encode()).digest()[:8], "big")


def _rank(candidate: Candidate, region: str) -> tuple[int, bool, bool]:
    """What no preference of a prompt overrides."""
    return _STATES[candidate.state], not candidate.plane_is_ready, bool(region) and candidate.region != region


def order_key(
    candidate: Candidate, *, region: str, prefix: bytes, active: int | None = None
) -> tuple[int | bool | float | str, ...]:
    """The smallest first. `active`: what runs there by the better of two accounts, the node's own and ours; default the node's."""
    rank = _rank(candidate, region)
    nearness = -prefix_score(prefix, candidate.node_id) if prefix else 0
    if candidate.state != "ready":
        return (*rank, candidate.node_id, candidate.generation)
    running = candidate.active if active is None else active
    return (
        *rank,
        candidate.queue_depth / candidate.replicas,
        running / candidate.replicas,
        candidate.compute_utilization_millis // _TENTH,
        candidate.memory_occupancy_millis // _TENTH,
        not candidate.is_local,
        nearness,
        candidate.node_id,
        -candidate.generation,
    )


def choose(
    candidates: Iterable[Candidate],
    *,
    region: str = "",
    prefix: bytes = b"",
    tried: Collection[tuple[str, int]] = (),
    running: Callable[[Candidate], int] = lambda candidate: candidate.active,
) -> Candidate | None:
    """The best that was not tried (`Candidate.key`); None when there is none left. `running`: requests there, by the better account."""
    left = [candidate for candidate in candidates if candidate.key not in tried]
    if not left:
        return None
    best = min(left, key=lambda each: order_key(each, region=region, prefix=prefix, active=running(each)))
    if not prefix or best.state != "ready":
        return best
    equals = [candidate for candidate in left if _rank(candidate, region) == _rank(best, region)]
    own = max(equals, key=lambda each: (prefix_score(prefix, each.node_id), each.generation))
    replicas = sum(each.replicas for each in equals)
    bound = _ABOVE_MEAN * (sum(running(each) for each in equals) + 1) / replicas
    fits = not own.queue_depth and (running(own) + 1) / own.replicas <= max(_ALWAYS_FITS, bound)
    return own if fits else best
