"""`artifact.pull`, `artifact.import`, `artifact.remove`: the host's model cache, by the calls of the node interface.

Root's node interface works on the cache as the account that owns it, the runtime's: both use the same files and locks.
"""

from __future__ import annotations

from typing import Any

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.pull import PullResult, import_files, pull
from sbctl.base import fs
from sbctl.node.messages import ArtifactImport, ArtifactPull, ArtifactRemove
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.snapshot import cache_root
from sbctl.runtime.nodeops.users import acting_as_owner, hand_over, own_cache

__all__ = ["import_artifact", "pull_artifact", "remove_artifact"]


def pull_artifact(context: NodeContext, params: ArtifactPull) -> dict[str, Any]:
    """Raises what `artifacts.pull.pull` raises."""
    facts, cache = params.artifact, _cache(context)

    async def run() -> PullResult:
        async with Fetcher(FetchSettings.from_environ(context.environ)) as fetcher:
            return await pull(cache, facts, progress=_reporter(context, facts.model), fetcher=fetcher)

    own_cache(cache.root, context.paths.state)
    with acting_as_owner(cache.root):
        result = run_cancellable(context, run())
    return {"artifact": result.artifact, "downloaded_bytes": result.downloaded_bytes, **_replaced(result)}


def import_artifact(context: NodeContext, params: ArtifactImport) -> dict[str, Any]:
    """Raises ArtifactError `artifact.file_missing` when a file was not put, and what publishing raises. Put files go once they are published."""
    facts = params.artifact
    put = {file.sha256: context.paths.blobs / file.sha256 for file in facts.files}
    there = {digest: path for digest, path in put.items() if path.is_file()}
    cache = _cache(context)
    own_cache(cache.root, context.paths.state)
    for path in there.values():
        hand_over(path, cache.root)
    with acting_as_owner(cache.root):
        work = import_files(cache, facts, there, progress=_reporter(context, facts.model))
        result = run_cancellable(context, work)
    for path in there.values():
        fs.remove_file(path)
    imported = 0 if result.was_present else facts.total_bytes
    return {"artifact": result.artifact, "imported_bytes": imported, **_replaced(result)}


def remove_artifact(context: NodeContext, params: ArtifactRemove) -> dict[str, Any]:
    """Raises RefusedError `artifact.in_use` while it is leased."""
    cache = _cache(context)
    with acting_as_owner(cache.root):
        removal = cache.remove(params.artifact)
    return {"removed": removal.removed, "reclaimed_bytes": removal.reclaimed_bytes}


def _cache(context: NodeContext) -> ArtifactCache:
    return ArtifactCache(cache_root(context.paths), context.clock)


def _reporter(context: NodeContext, note: str) -> Any:
    return lambda done, total: context.report(done, total, note)


def _replaced(result: PullResult) -> dict[str, Any]:
    return {"quarantined": [str(path) for path in result.quarantined]} if result.quarantined else {}
