"""What the state has to remember anew of resources that are as desired.

How a host is reached, what is protected and what is kept are no part of a spec, so an edit of them changes nothing on any host. The state must
learn of it all the same: `destroy` and the removal of a host go by the state alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sbctl.plan.model import Change, Recorded

__all__ = ["outdated"]


def outdated(changes: Iterable[Change]) -> Iterator[Recorded]:
    """For every change that is a no-op and whose record says something else than is desired: the record as it should be."""
    for change in changes:
        desired, recorded = change.desired, change.recorded
        if change.action != "no-op" or desired is None or recorded is None:
            continue
        current = replace(
            recorded,
            connection=desired.connection,
            keep=desired.keep,
            prevent_destroy=desired.prevent_destroy,
            pending_delete=False,
        )
        if current != recorded:
            yield current
