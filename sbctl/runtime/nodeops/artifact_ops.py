"""`artifact.*`: the host's model cache, by the calls of the node interface.

Root's node interface works on the cache as the account that owns it, the runtime's: both use the same files and locks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.artifacts.pull import PullResult, import_files
from sbctl.base import fs
from sbctl.node.artifact_messages import (
    ArtifactImport,
    ArtifactList,
    ArtifactPrune,
    ArtifactPull,
    ArtifactRemove,
    ArtifactVerify,
)
from sbctl.node.records import EventKind
from sbctl.runtime.assigned import assigned_artifacts
from sbctl.runtime.egress import host_fetch_settings
from sbctl.runtime.event_log import record_event
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.snapshot import cache_root, stored_config
from sbctl.runtime.nodeops.users import acting_as_owner, hand_over, own_cache

__all__ = [
    "import_artifact",
    "list_artifacts",
    "prune_artifacts",
    "pull_artifact",
    "remove_artifact",
    "verify_artifact",
]


def pull_artifact(context: NodeContext, params: ArtifactPull) -> dict[str, Any]:
    """Raises what `artifacts.pull.pull` raises."""
    config, _ = stored_config(context.paths)
    settings = host_fetch_settings(config, context.paths, context.environ)
    calls, facts = replace(_calls(context), settings=settings), params.artifact
    reporter = _Reporter(context, facts.model)
    own_cache(calls.cache.root, context.paths.state)
    with acting_as_owner(calls.cache.root):
        pulled = calls.pull(
            facts,
            lambda work: run_cancellable(context, _coroutine(work)),
            progress=reporter.progress,
            note=reporter.note,
            offline=params.offline,
            pinned=params.pinned,
        )
    return pulled.model_dump(mode="json")


async def _coroutine(work: Awaitable[PullResult]) -> PullResult:
    return await work


def import_artifact(context: NodeContext, params: ArtifactImport) -> dict[str, Any]:
    """Raises ArtifactError `artifact.file_missing` when a file was not put, and what publishing raises. Put files go once they are published."""
    facts = params.artifact
    put = {file.sha256: context.paths.blobs / file.sha256 for file in facts.files}
    there = {digest: path for digest, path in put.items() if path.is_file()}
    calls = _calls(context)
    root = calls.cache.root
    own_cache(root, context.paths.state)
    for path in there.values():
        hand_over(path, root)
    with acting_as_owner(root):
        work = import_files(calls.cache, facts, there, progress=_Reporter(context, facts.model).progress)
        result = run_cancellable(context, work)
        pulled = calls.settled(facts, result, pinned=params.pinned)
    for path in there.values():
        fs.remove_file(path)
    imported = 0 if result.was_present else facts.total_bytes
    return {**pulled.model_dump(mode="json"), "imported_bytes": imported}


def list_artifacts(context: NodeContext, params: ArtifactList) -> dict[str, Any]:
    """Reads names, sizes and locks, no weights."""
    calls = _calls(context)
    with acting_as_owner(calls.cache.root):
        return calls.listing(params.wanted).model_dump(mode="json")


def verify_artifact(context: NodeContext, params: ArtifactVerify) -> dict[str, Any]:
    """Bad bytes are set aside, and each deployment that serves them is told by an event. Raises ArtifactError `artifact.missing`."""
    calls = _calls(context)
    with acting_as_owner(calls.cache.root):
        verified = calls.verify(params.artifact)
    deployments = (assigned_artifacts(context.paths.bundle) or {}).get(params.artifact, ())
    if not verified.is_good:
        said = f"weights that changed after they were published were set aside: {'; '.join(verified.reasons)}"
        for name in deployments or (None,):
            record_event(context.paths.database, context.clock, EventKind.WEIGHTS_QUARANTINED, said, deployment=name)
    return verified.model_copy(update={"deployments": tuple(deployments)}).model_dump(mode="json")


def remove_artifact(context: NodeContext, params: ArtifactRemove) -> dict[str, Any]:
    """Raises RefusedError `artifact.in_use` while it is leased."""
    calls = _calls(context)
    with acting_as_owner(calls.cache.root):
        return calls.remove(params.artifact).model_dump(mode="json")


def prune_artifacts(context: NodeContext, params: ArtifactPrune) -> dict[str, Any]:
    """What nothing names, and what the host's budget has no room for."""
    calls = _calls(context)
    with acting_as_owner(calls.cache.root):
        return calls.prune(dry_run=params.dry_run, everything=params.everything).model_dump(mode="json")


def _calls(context: NodeContext) -> CacheCalls:
    config, _ = stored_config(context.paths)
    cache = ArtifactCache(cache_root(context.paths), context.clock)
    return CacheCalls(
        cache,
        context.environ,
        configured=_configured(context),
        budget_bytes=None if config is None else config.cache_budget_bytes,
        offline=config is not None and config.offline,
    )


def _configured(context: NodeContext) -> frozenset[str] | None:
    """A runtime that was started by hand has its desired state in a file of its own, of which the bundle says nothing."""
    status: Mapping[str, Any] = ControlClient(context.paths.control_socket).status() or {}
    if status.get("started_by_hand"):
        return None
    assigned = assigned_artifacts(Path(context.paths.bundle))
    return None if assigned is None else frozenset(assigned)


class _Reporter:
    """Progress under the model's name, and under what was said last of its sources."""

    def __init__(self, context: NodeContext, name: str) -> None:
        self._context = context
        self._name = name
        self._said = name
        self._at: tuple[int, int | None] = (0, None)

    def progress(self, done: int, total: int | None) -> None:
        self._at = done, total
        self._context.report(done, total, self._said)

    def note(self, sentence: str) -> None:
        self._said = f"{self._name}: {sentence}"
        self._context.report(*self._at, self._said)
