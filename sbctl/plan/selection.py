"""Which desired state a plan compares: by mode, then by --target, --exclude and --replace.

A plan in part is never a set of ignored changes: what is not selected is desired exactly as it is recorded, so every digest, bundle and
check downstream sees one consistent desired state. A target brings what it needs; what is removed brings what used it. An exclusion
also excludes what cannot be done without it. Members are selected one by one: their bundle becomes the recorded one with the selected
members as desired. Where several hosts hold one document, what is selected at one of them is selected at each that is selected at all: they
never get two contents in one run.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sbctl.base.digests import fingerprint
from sbctl.base.display import display_safe, plural
from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.base.patterns import AddressPattern
from sbctl.plan.inputs import MergesSpecs, PlanInputs, Planners, RestoresSpecs, SharesDocument
from sbctl.plan.model import Desired, Recorded
from sbctl.plan.order import address_key

__all__ = ["Selection", "effective_desired", "match_addresses", "merge_member_maps", "nearest_pattern"]

_MEMBER_MAPS: Final = {"deployment": "deployments", "origin": "origins"}
"""Where a bundle's spec keeps its members, by kind and then by name."""
_SUGGEST_MAX_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Selection:
    """What a plan compares. `planned`: what gets a row; the rest is desired as recorded and is not looked at."""

    desired: Mapping[Address, Desired]
    planned: frozenset[Address]
    replaced: frozenset[Address]
    notes: tuple[str, ...] = ()


def effective_desired(inputs: PlanInputs, planners: Planners) -> Selection:
    """What is desired after mode, targets and exclusions. Raises InputError for a pattern without a match or an address given twice."""
    desired, notes = _desired_by_mode(inputs, planners)
    world = _World(desired, inputs.recorded, planners)
    replaced = match_addresses(inputs.replaces, world.addresses, "--replace")
    targets = match_addresses(inputs.targets, world.addresses, "--target")
    excludes = match_addresses(inputs.excludes, world.addresses, "--exclude")
    if not inputs.targets and not inputs.excludes:
        return Selection(desired, world.addresses, replaced, notes)
    selected = world.needed_by(targets) if inputs.targets else set(world.addresses)
    if inputs.targets:
        selected = world.needed_by(targets | world.alike(targets, selected))
    selected -= world.stopped_by(excludes | world.alike(excludes, world.addresses))
    merged, planned = _substituted(world, selected, planners)
    return Selection(merged, planned, replaced & planned, (*notes, *_partial_notes(inputs, world, planned)))


def match_addresses(patterns: Iterable[str], addresses: Collection[Address], option: str) -> frozenset[Address]:
    """Addresses that match any pattern. Raises InputError `pattern.invalid`, `plan.unmatched_pattern` with the nearest address."""
    found: set[Address] = set()
    for text in patterns:
        try:
            pattern = AddressPattern(text)
        except InputError as error:
            error.place = option
            raise
        matched = {address for address in addresses if pattern.matches(address)}
        if not matched:
            near = nearest_pattern(text, addresses)
            raise InputError(
                "plan.unmatched_pattern",
                f'{option} "{display_safe(text, max_chars=200)}" matches no resource',
                next_step=f'did you mean "{near}"?' if near else "list the resources: sbctl state list, sbctl plan",
            )
        found |= matched
    return frozenset(found)


def nearest_pattern(text: str, addresses: Iterable[Address]) -> str | None:
    """What somebody who wrote `text` probably meant: an address, all of a kind, or all of a host."""
    candidates: set[str] = set()
    for address in addresses:
        candidates |= {str(address), f"*.{address.scope}", f"{address.kind}.*"}
    near = difflib.get_close_matches(text[:_SUGGEST_MAX_CHARS], sorted(candidates), n=1, cutoff=0.5)
    return near[0] if near else None


def merge_member_maps(
    recorded_spec: Mapping[str, Any] | None,
    desired_spec: Mapping[str, Any] | None,
    selected_members: Collection[Address],
    own_fields: bool,
) -> dict[str, Any]:
    """`MergesSpecs.merge_spec` for a spec that holds its members as `deployments` and `origins`, each a map by name."""
    base = recorded_spec if recorded_spec is not None else desired_spec
    own = desired_spec if own_fields and desired_spec is not None else base
    merged = {key: value for key, value in (own or {}).items() if key not in _MEMBER_MAPS.values()}
    for kind, key in _MEMBER_MAPS.items():
        wanted = dict((desired_spec or {}).get(key) or {})
        entries = dict((recorded_spec or {}).get(key) or {})
        for member in selected_members:
            if member.kind != kind or member.name is None:
                continue
            entries.pop(member.name, None)
            if member.name in wanted:
                entries[member.name] = wanted[member.name]
        if entries or key in (base or {}):
            merged[key] = entries
    return merged


class _World:
    """Edges among everything desired or recorded."""

    def __init__(
        self, desired: Mapping[Address, Desired], recorded: Mapping[Address, Recorded], planners: Planners
    ) -> None:
        self.desired = desired
        self.recorded = recorded
        self.addresses = frozenset(desired.keys() | recorded.keys())
        self.members: defaultdict[Address, set[Address]] = defaultdict(set)
        self.carried: set[Address] = set()
        """Bundles that are selected only because a member is."""
        self._users: defaultdict[Address, set[Address]] = defaultdict(set)
        self._recorded_users: defaultdict[Address, set[Address]] = defaultdict(set)
        for address in self.addresses:
            bundle = self.bundle_of(address)
            if bundle is not None:
                self.members[bundle].add(address)
        self._holders: defaultdict[str, set[Address]] = defaultdict(set)
        """Of documents that several hosts hold."""
        for bundle in self.members:
            document = _document_of(bundle, desired, recorded, planners)
            if document is not None:
                self._holders[document].add(bundle)
        for address, one in desired.items():
            for needed in self._own_edges(address, one.after):
                self._users[needed].add(address)
        for address, was in recorded.items():
            for needed in self._own_edges(address, was.after):
                self._recorded_users[needed].add(address)

    def bundle_of(self, address: Address) -> Address | None:
        one = self.desired.get(address) or self.recorded[address]
        return one.member_of if one.member_of in self.addresses else None

    def alike(self, chosen: Collection[Address], among: Collection[Address]) -> set[Address]:
        """What has to be chosen with `chosen`, so that all holders of one document that are in `among` come to the same."""
        found: set[Address] = set()
        for holders in self._holders.values():
            present = [bundle for bundle in holders if bundle in among]
            if any(bundle in chosen for bundle in present):
                found.update(present)
            names = {(one.kind, one.name) for bundle in present for one in self.members[bundle] if one in chosen}
            found.update(one for bundle in present for one in self.members[bundle] if (one.kind, one.name) in names)
        return found

    def newest(self, bundle: Address, planner: object) -> Recorded | None:
        """What was recorded last of its document: by another holder, where this one was left out of a run."""
        holders = next((found for found in self._holders.values() if bundle in found), {bundle})
        known = [self.recorded[one] for one in sorted(holders, key=address_key) if one in self.recorded]
        own = self.recorded.get(bundle)
        if not isinstance(planner, SharesDocument) or own is None or own.pending_delete:
            return own
        return max(known, key=lambda one: (planner.revision_of(one.record), one is own))

    def _own_edges(self, address: Address, after: frozenset[Address]) -> frozenset[Address]:
        """A bundle's edges less those that its members have: they belong to the members."""
        theirs: set[Address] = set()
        for member in self.members.get(address, ()):
            one = self.desired.get(member) or self.recorded[member]
            theirs |= one.after
        return frozenset(after & self.addresses) - theirs - self.members.get(address, set())

    def needed_by(self, targets: Iterable[Address]) -> set[Address]:
        """Targets, what they need, and for what is removed, what used it."""
        direct = set(targets)
        for target in targets:
            direct |= self.members.get(target, set())
        by_edge: set[Address] = set()

        def neighbours(address: Address) -> Iterable[Address]:
            one = self.desired.get(address)
            if one is not None:
                edges = self._own_edges(address, one.after)
            else:
                edges = frozenset(self._recorded_users[address])
                for bundle in edges & self.members.keys():
                    edges |= self.members[bundle]
            by_edge.update(edges)
            bundle_of_it = self.bundle_of(address)
            return edges if bundle_of_it is None else edges | {bundle_of_it}

        reached = _reach(direct, neighbours)
        self.carried = {bundle for bundle in self.members if bundle in reached and bundle not in direct | by_edge}
        return reached

    def stopped_by(self, excluded: Iterable[Address]) -> set[Address]:
        """Exclusions and what cannot be done without them."""

        def neighbours(address: Address) -> Iterable[Address]:
            if address in self.desired:
                return self._users[address] | self.members.get(address, set())
            # It stays, so what it stands on stays; a member keeps its bundle, and that stands on things of its own.
            edges = set(self._own_edges(address, self.recorded[address].after))
            bundle = self.bundle_of(address)
            if bundle is not None and bundle in self.recorded:
                edges |= self._own_edges(bundle, self.recorded[bundle].after)
            return {edge for edge in edges if edge not in self.desired} | self.members.get(address, set())

        return _reach(excluded, neighbours)


def _reach(start: Iterable[Address], neighbours: Callable[[Address], Iterable[Address]]) -> set[Address]:
    reached: set[Address] = set()
    frontier = list(start)
    while frontier:
        address = frontier.pop()
        if address not in reached:
            reached.add(address)
            frontier.extend(neighbours(address))
    return reached


def _desired_by_mode(inputs: PlanInputs, planners: Planners) -> tuple[dict[Address, Desired], tuple[str, ...]]:
    match inputs.mode:
        case "destroy":
            return {}, ()
        case "drift":
            return {
                address: _as_desired(recorded)
                for address, recorded in inputs.recorded.items()
                if not recorded.pending_delete
            }, ()
        case "rollback":
            return _restored(inputs, planners)
        case _:
            return _by_address(inputs.desired), ()


def _by_address(desired: Iterable[Desired]) -> dict[Address, Desired]:
    found: dict[Address, Desired] = {}
    for one in desired:
        if one.address in found:
            raise InputError("plan.duplicate_address", f"{one.address} is desired twice")
        found[one.address] = one
    return found


def _restored(inputs: PlanInputs, planners: Planners) -> tuple[dict[Address, Desired], tuple[str, ...]]:
    """An old desired state on today's hosts: no removed host comes back, and no removed key where the kind knows keys."""
    found: dict[Address, Desired] = {}
    gone: set[str] = set()
    for address, old in _by_address(inputs.desired).items():
        connection = inputs.hosts.get(old.host)
        if connection is None:
            gone.add(old.host)
            continue
        planner: object = planners.get(address.kind)
        recorded = inputs.recorded.get(address)
        one = replace(old, connection=connection)
        if isinstance(planner, RestoresSpecs) and recorded is not None:
            one = _with_spec(one, planner.restore_spec(old.spec, recorded.spec))
        found[address] = one
    notes = (f"removed since and not brought back: {', '.join(sorted(gone))}",) if gone else ()
    return found, notes


def _substituted(
    world: _World, selected: Collection[Address], planners: Planners
) -> tuple[dict[Address, Desired], frozenset[Address]]:
    """Desired for what is selected, recorded for the rest, merged bundles between them."""
    merged: dict[Address, Desired] = {}
    planned = set(selected)
    for address in world.addresses:
        if address in selected:
            if address in world.desired:
                merged[address] = world.desired[address]
        elif address in world.recorded and not world.recorded[address].pending_delete:
            merged[address] = _as_desired(world.recorded[address])
    for bundle, members in world.members.items():
        chosen = members.intersection(selected)
        own_fields = bundle not in world.carried
        if bundle in selected and not (own_fields and chosen == members):
            merged[bundle] = _merged_bundle(world, bundle, chosen, own_fields, planners)
            planned.update(member for member in members if member in merged or member in world.recorded)
    return merged, frozenset(planned)


def _merged_bundle(
    world: _World, bundle: Address, chosen: Collection[Address], own_fields: bool, planners: Planners
) -> Desired:
    desired, recorded = world.desired.get(bundle), world.recorded.get(bundle)
    planner: object = planners.get(bundle.kind)
    base = world.newest(bundle, planner)
    merge = planner.merge_spec if isinstance(planner, MergesSpecs) else merge_member_maps
    spec = merge(
        base.spec if base else None,
        desired.spec if desired else None,
        sorted(chosen, key=address_key),
        own_fields or base is None,
    )
    if desired is None:
        assert recorded is not None
        return _with_spec(_as_desired(recorded), spec)
    after = desired.after | (recorded.after if recorded else frozenset())
    return replace(_with_spec(desired, spec), after=after)


def _document_of(
    bundle: Address, desired: Mapping[Address, Desired], recorded: Mapping[Address, Recorded], planners: Planners
) -> str | None:
    planner: object = planners.get(bundle.kind)
    one = desired.get(bundle) or recorded.get(bundle)
    return planner.document_of(one.spec) if one is not None and isinstance(planner, SharesDocument) else None


def _with_spec(desired: Desired, spec: Mapping[str, Any]) -> Desired:
    return replace(desired, spec=spec, fingerprint=fingerprint(spec))


def _as_desired(recorded: Recorded) -> Desired:
    return Desired(
        address=recorded.address,
        spec=recorded.spec,
        fingerprint=recorded.fingerprint,
        host=recorded.host,
        connection=recorded.connection,
        after=recorded.after,
        member_of=recorded.member_of,
        prevent_destroy=recorded.prevent_destroy,
        keep=recorded.keep,
    )


def _partial_notes(inputs: PlanInputs, world: _World, planned: frozenset[Address]) -> Iterable[str]:
    left = len(world.addresses) - len(planned)
    rest = f"; {plural(left, 'resource')} not looked at" if left else ""
    if inputs.targets:
        yield f"partial: only {', '.join(inputs.targets)} and what it needs{rest}"
    if inputs.excludes:
        yield f"partial: without {', '.join(inputs.excludes)} and what needs it{rest}"
