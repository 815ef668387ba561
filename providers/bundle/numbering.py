"""What holds for every signed bundle: its number is above all that the node knows, and it is not too large."""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import RefusedError
from sbctl.base.limits import BUNDLE_ENVELOPE_MAX_BYTES
from sbctl.provider import Services

__all__ = ["next_revision", "refuse_too_large"]

_REVISIONS_SKIPPED_MAX: Final = 10_000


def next_revision(services: Services, scope: str, above: int) -> int:
    """The next revision that the node can accept. A state older than the host catches up by skipping numbers.

    Raises RefusedError `bundle.revision_far_ahead`.
    """
    for _ in range(_REVISIONS_SKIPPED_MAX):
        revision = services.next_revision(scope)
        if revision > above:
            return revision
    raise RefusedError(
        "bundle.revision_far_ahead",
        f"the host holds revision {above}, more than {_REVISIONS_SKIPPED_MAX} ahead of the state",
        next_step="restore the state that belongs to this fleet, or raise the key epoch (sbctl key add)",
    )


def refuse_too_large(envelope: str, what: str) -> None:
    """Raises RefusedError `bundle.too_large`."""
    if len(envelope) > BUNDLE_ENVELOPE_MAX_BYTES:
        raise RefusedError(
            "bundle.too_large",
            f"{what} has {len(envelope)} bytes; a runtime takes {BUNDLE_ENVELOPE_MAX_BYTES}",
            next_step="spread its deployments over more hosts, those of a cluster over two clusters",
        )
