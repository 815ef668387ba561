"""How files get onto a host: by digest, one after another, stopped between two of them when the apply is."""

from __future__ import annotations

from collections.abc import Mapping

from sbctl.base.errors import InterruptedBySignal
from sbctl.base.file_slice import ByteSource
from sbctl.provider import PerformContext, Progress

__all__ = ["put_files", "stop_if_cancelled"]


def stop_if_cancelled(context: PerformContext) -> None:
    """Between two pieces of work: what is on the host stays and is found again. Raises InterruptedBySignal."""
    if context.cancelled():
        raise InterruptedBySignal("apply.interrupted", "stopped between two files", next_step="run apply again")


def put_files(context: PerformContext, files: Mapping[str, ByteSource], *, deadline_s: float) -> None:
    """Leave files on the host under their digests (`files`: digest → source); progress is over all of them together."""
    sizes = {digest: path.stat().st_size for digest, path in files.items()}
    total = sum(sizes.values())
    done = 0
    for digest, path in files.items():
        stop_if_cancelled(context)
        context.node.put(digest, path, deadline_s=deadline_s, progress=_within(context.progress, done, total))
        done += sizes[digest]
        context.progress(done, total)


def _within(progress: Progress, before: int, total: int) -> Progress:
    def report(done: int, _: int | None) -> None:
        progress(before + done, total)

    return report
