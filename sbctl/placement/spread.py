"""Who is taken, one replica after another: the failure domain that has the fewest, then the node that has the fewest, then the best way, then
the highest score, then the lower node id.

`spread_by` is an ordered list of labels: the domain of the first label decides, the second where the first leaves a tie, and so on. For the
first label this greedy rule is exact: no other choice of places is more even over its domains. A node is a domain of its own behind
all of them, so a second replica comes to a node only when that leaves no domain emptier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

__all__ = ["Candidate", "Spread", "evenness"]

Candidate = tuple[int, float, int]
"""Number of the way, score with its sign turned, index of the node: the least is the best."""


class Spread:
    """How one deployment's replicas lie now. `domains`: of each node, its value of each label of `spread_by`."""

    def __init__(self, domains: list[tuple[str, ...]]) -> None:
        self._domains = domains
        self._depth = len(domains[0]) if domains else 0
        self._levels: list[Counter[str]] = [Counter() for _ in range(self._depth)]
        self._nodes: Counter[int] = Counter()

    def add(self, index: int) -> None:
        """One replica lies on this node."""
        for level, value in zip(self._levels, self._domains[index], strict=True):
            level[value] += 1
        self._nodes[index] += 1

    def choose(self, candidates: Iterable[Candidate], fits: Callable[[Candidate], bool]) -> Iterator[Candidate]:
        """The next one, and the next, as long as anybody fits. A candidate that was taken stays one for more."""
        rounds: dict[tuple[str, ...], dict[int, list[Candidate]]] = {}
        for one in candidates:
            rounds.setdefault(self._domains[one[2]], {}).setdefault(self._nodes[one[2]], []).append(one)
        for by_round in rounds.values():
            for heap in by_round.values():
                heapify(heap)
        heads = {domain: self._head(by_round, fits) for domain, by_round in rounds.items()}
        while True:
            best: tuple[tuple[int, ...], int, Candidate] | None = None
            for domain, head in heads.items():
                if head is None:
                    continue
                counts = tuple(level[value] for level, value in zip(self._levels, domain, strict=True))
                if best is None or (counts, *head) < best:
                    best = (counts, *head)
            if best is None:
                return
            self.add(best[2][2])
            yield best[2]
            taken = self._domains[best[2][2]]
            heads[taken] = self._head(rounds[taken], fits)

    def _head(
        self, by_round: dict[int, list[Candidate]], fits: Callable[[Candidate], bool]
    ) -> tuple[int, Candidate] | None:
        """The best of one domain, and how many replicas its node has; what does not fit is forgotten."""
        while by_round:
            number = min(by_round)
            heap = by_round[number]
            while heap:
                one = heap[0]
                if (now := self._nodes[one[2]]) != number:
                    heappush(by_round.setdefault(now, []), heappop(heap))
                elif fits(one):
                    return number, one
                else:
                    heappop(heap)
            del by_round[number]
        return None


def evenness(domains: list[tuple[str, ...]], indexes: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """How uneven a choice of nodes is, less is better: of each label, and last of nodes, the crowds from the largest down."""
    chosen = list(indexes)
    depth = len(domains[0]) if domains else 0
    levels = [Counter(domains[index][level] for index in chosen) for level in range(depth)]
    return (
        *(tuple(sorted(level.values(), reverse=True)) for level in levels),
        tuple(sorted(Counter(chosen).values(), reverse=True)),
    )
