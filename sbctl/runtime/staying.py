"""Which running replicas are what is wanted already: the same engine, and on the devices that a cluster says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from sbctl.base.digests import fingerprint
from sbctl.base.once import once_per_object
from sbctl.trust.bundle import DeploymentMember

if TYPE_CHECKING:
    from sbctl.runtime.replica import Replica

__all__ = ["AssignedAs", "devices_of", "launch_identity", "staying"]

_POLICY_FIELDS: Final = frozenset(
    {"pull", "warm", "cold_start", "keep_alive_secs", "max_queue_depth", "queue_timeout_ms", "rollout", "memory_bytes"}
)
_WEIGHT_FIELDS: Final = frozenset({"artifact", "format", "files"})


@once_per_object
def launch_identity(member: DeploymentMember) -> str:
    """Equal for two members exactly when a running engine of the one serves the other.

    Where weights may be fetched from, what they are called and every field that only the gate reads are not part of it.
    """
    facts = member.model_dump(mode="json")
    artifact = _weights_only(facts.pop("artifact"))
    adapters = [{**each, "artifact": _weights_only(each["artifact"])} for each in facts.pop("adapters")]
    kept = {key: value for key, value in facts.items() if key not in _POLICY_FIELDS | {"model", "variant"}}
    return fingerprint({**kept, "artifact": artifact, "adapters": adapters})


def _weights_only(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key in _WEIGHT_FIELDS}


@dataclass(frozen=True, slots=True)
class AssignedAs:
    """How a cluster names a generation: its number there, which of the deployment's replicas these are, and on which devices each is to lie,
    by their ids; on none: where its host chooses."""

    generation: int
    slots: tuple[int, ...]
    devices: tuple[tuple[str, ...], ...] = ()


def devices_of(assigned: AssignedAs | None, position: int) -> tuple[str, ...]:
    """Where one of the replicas is to lie; nowhere in particular by default."""
    return () if assigned is None or position >= len(assigned.devices) else assigned.devices[position]


class _Had(Protocol):
    """A generation as far as it is compared."""

    member: DeploymentMember
    assigned: AssignedAs | None

    @property
    def own(self) -> tuple[Replica, ...]: ...


def staying(before: _Had | None, member: DeploymentMember, assigned: AssignedAs | None) -> tuple[Replica | None, ...]:
    """For each replica that is wanted, in order, the one of `before` that is it already: the same slot on the same devices first, then
    whichever lies on them, one that runs before one that does not."""
    found: list[Replica | None] = [None] * member.replicas
    if before is None or _of_one(before.member) != _of_one(member):
        return tuple(found)
    had = before.assigned.slots if before.assigned is not None else ()
    left = {replica: had[index] if index < len(had) else None for index, replica in enumerate(before.own)}
    slots = assigned.slots if assigned is not None else ()
    for same_slot in (True, False):
        for index in range(member.replicas):
            if found[index] is not None or (same_slot and index >= len(slots)):
                continue
            fitting = [
                replica
                for replica, slot in left.items()
                if (not same_slot or slot == slots[index]) and _lies_on(replica, devices_of(assigned, index))
            ]
            if fitting:
                chosen = found[index] = min(fitting, key=lambda replica: (replica.engine is None, not replica.is_ready))
                del left[chosen]
    return tuple(found)


@once_per_object
def _of_one(member: DeploymentMember) -> str:
    return launch_identity(member if member.replicas == 1 else member.model_copy(update={"replicas": 1}))


def _lies_on(replica: Replica, devices: tuple[str, ...]) -> bool:
    """Whether it is where it should be, or free to go there with its next start."""
    here = replica.place.devices
    return not devices or not here or sorted(here) == sorted(devices) or not replica.place.is_taken
