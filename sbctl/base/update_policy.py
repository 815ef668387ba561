"""How a change rolls over the hosts of a fleet: `fleet.update`, as planning tells it and an apply follows it."""

from __future__ import annotations

from dataclasses import dataclass

from sbctl.base.display import plural

__all__ = ["UpdatePolicy"]


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """`max_unavailable`: how many hosts may be out at once, a count or a share ("25%") of the fleet's hosts. `pause_secs` lies between
    batches; after `max_failures` hosts that did not come through, nobody else is started. `canary` goes first and alone."""

    max_unavailable: int | str = 1
    canary: str | None = None
    pause_secs: int = 0
    max_failures: int = 1

    def hosts_at_once(self, hosts: int) -> int:
        """The count for a fleet of so many hosts, at least 1; a share is rounded down."""
        if isinstance(self.max_unavailable, int):
            return self.max_unavailable
        return max(1, hosts * int(self.max_unavailable.rstrip("%")) // 100)

    def described(self, hosts: int) -> str:
        """`one host at a time, gpu-a first, 30 s pause, stops after 1 failed host`."""
        at_once = self.hosts_at_once(hosts)
        words = ["one host at a time" if at_once == 1 else f"up to {at_once} hosts at a time"]
        words += [f"{self.canary} first"] if self.canary else []
        words += [f"{self.pause_secs} s pause"] if self.pause_secs else []
        words.append(f"stops after {plural(self.max_failures, 'failed host')}")
        return ", ".join(words)
