"""In which order changes can run, and what waits for what.

Creates and updates follow their `after` edges; deletes follow the recorded edges backwards, after everything that used them has changed.
Members travel with their bundle: it waits for what they wait for, and they stand right behind it. Ties are broken by host, then by
kind (base.ids.KINDS; backwards for deletes), then by name, so the order depends on nothing but the changes.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from sbctl.base.errors import InputError
from sbctl.base.ids import KINDS, Address
from sbctl.plan.model import Change

__all__ = ["Graph", "address_key", "dependants_of", "execution_graph", "run_order"]

Graph = Mapping[Address, frozenset[Address]]
"""Change → the changes that must be done before it."""

_KIND_INDEX: Final = {kind: index for index, kind in enumerate(KINDS)}


def address_key(address: Address) -> tuple[int, str, str]:
    """Sorts addresses by kind in creation order, scope and name."""
    return _KIND_INDEX[address.kind], address.scope, address.name or ""


def execution_graph(changes: Mapping[Address, Change]) -> Graph:
    """Edges between these changes; an edge to anything else is dropped."""
    before: dict[Address, set[Address]] = {address: set() for address in changes}
    for address, change in changes.items():
        for needed in change.after:
            target = changes.get(needed)
            if target is None or needed == change.member_of or target.member_of == address:
                continue
            if not _removes(change) and not _removes(target):
                before[address].add(needed)
        bundle = change.member_of
        if bundle in before:
            before[bundle].add(address)
        for used in change.recorded.after if change.recorded else ():
            target = changes.get(used)
            if target is not None and _removes(target) and used != bundle and target.member_of != address:
                before[used].add(address)
                if bundle in before and target.member_of != bundle:
                    before[used].add(bundle)
    return {address: frozenset(needs) for address, needs in before.items()}


def run_order(changes: Mapping[Address, Change], graph: Graph) -> tuple[Change, ...]:
    """All changes in an order in which they can run. Raises InputError `plan.cycle` naming the cycle."""
    sorter: TopologicalSorter[Address] = TopologicalSorter()
    for address in sorted(changes, key=address_key):
        sorter.add(address, *sorted(graph[address], key=address_key))
    try:
        sorter.prepare()
    except CycleError as error:
        raise _cycle(error.args[1]) from None
    members = _members_by_bundle(changes)
    ordered: list[Change] = []
    ready: list[tuple[tuple[str, int, int, str], Address]] = []
    while sorter.is_active():
        for address in sorter.get_ready():
            heapq.heappush(ready, (_run_key(changes[address]), address))
        _, address = heapq.heappop(ready)
        sorter.done(address)
        change = changes[address]
        if change.member_of not in changes:
            ordered.append(change)
            ordered.extend(members.get(address, ()))
    return tuple(ordered)


def dependants_of(roots: Iterable[Address], graph: Graph, changes: Mapping[Address, Change]) -> dict[Address, Address]:
    """What cannot be done when the roots are not: change → the root that it waits for. A member waits for its bundle."""
    after: defaultdict[Address, list[Address]] = defaultdict(list)
    for address, needs in graph.items():
        for needed in needs:
            after[needed].append(address)
    members = _members_by_bundle(changes)
    waiting: dict[Address, Address] = {}
    for root in sorted(roots, key=address_key):
        frontier = [root]
        while frontier:
            address = frontier.pop()
            for next_one in (*after[address], *(member.address for member in members.get(address, ()))):
                if next_one not in waiting and next_one != root:
                    waiting[next_one] = root
                    frontier.append(next_one)
    return waiting


def _members_by_bundle(changes: Mapping[Address, Change]) -> Mapping[Address, list[Change]]:
    members: defaultdict[Address, list[Change]] = defaultdict(list)
    for change in changes.values():
        if change.member_of is not None:
            members[change.member_of].append(change)
    for listed in members.values():
        listed.sort(key=lambda change: address_key(change.address))
    return members


def _removes(change: Change) -> bool:
    return change.action in ("delete", "forget")


def _run_key(change: Change) -> tuple[str, int, int, str]:
    index = _KIND_INDEX[change.address.kind]
    name = f"{change.address.scope}/{change.address.name or ''}"
    return (change.host, 1, -index, name) if _removes(change) else (change.host, 0, index, name)


def _cycle(nodes: list[Address]) -> InputError:
    ring = [str(node) for node in nodes[:-1]]
    start = ring.index(min(ring))
    ring = [*ring[start:], *ring[:start]]
    return InputError(
        "plan.cycle",
        f"{' → '.join([*ring, ring[0]])} wait for each other",
        next_step="remove one of these dependencies",
    )
