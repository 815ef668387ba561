"""A lease on a host, as its taker asks for it: two operators never change one host at once.

taken       by one process on the host for each run, under a kernel lock, before the run's first change of the host
renewed     by the operator's side, every quarter of `ttl_s`
given back  when the run is done with the host; by the kernel when that process dies or the host restarts;
            by that process when its connection ends, or when nothing was heard of the operator for `ttl_s`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LEASE_TTL_S", "LeaseClaim"]

LEASE_TTL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Who wants a host and for what. `run` names one run of one process: the same run takes its own lease over."""

    owner: str
    """`user@machine`"""
    purpose: str
    """In words: `apply serial 12`."""
    lineage: str
    run: str
    ttl_s: float = LEASE_TTL_S
