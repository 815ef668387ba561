"""From verified files to a snapshot that everybody sees: blobs by rename, a staging directory of links with its manifest, one rename.

The artifact's lock is held by the caller. A kill at any point leaves no snapshot or a whole one; a power cut too, since every name is made
durable before the one that leads to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.formats.content import check_file
from sbctl.artifacts.locks import hold, locks_work, mutation_lock_path
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import ArtifactError, RefusedError

__all__ = ["distinct", "publish"]


def distinct(files: Sequence[ArtifactFile]) -> list[ArtifactFile]:
    """One of each content."""
    return list({file.sha256: file for file in files}.values())


def publish(cache: ArtifactCache, facts: ArtifactFacts) -> bool:
    """Publish what was fetched into the artifact's partials. False: a blob that was there before has gone meanwhile.

    What the files hold is looked at first: the right digest of something that must not be loaded does not make it loadable. Raises RefusedError
    `artifact.unsafe_content`; ArtifactError `artifact.header_damaged`, `artifact.wrong_format`, `artifact.digest_mismatch` when a fetched file
    changed under us; SbctlError `disk.*`.
    """
    partials = cache.partials_path(facts.artifact)
    _check_contents(cache, facts, partials)
    snapshot = cache.snapshot_path(facts.artifact)
    alone = locks_work(cache.root)
    with hold(mutation_lock_path(cache.root), cache.clock, shared=True):
        for file in distinct(facts.files):
            if not _promote(cache, partials / file.sha256, file, alone=alone):
                return False
        for name in _stagings(cache, facts.artifact):
            fs.remove_tree(name)
        staging = cache.snapshots / f".staging-{facts.artifact}-{secrets.token_hex(4)}"
        fs.ensure_directory(staging, mode=0o755)
        for file in facts.files:
            target = staging / file.path
            fs.ensure_directory(target.parent, mode=0o755)
            fs.link_or_copy(cache.blob_path(file.sha256), target)
        cache.write_manifest(staging, facts)
        for directory in sorted({(staging / file.path).parent for file in facts.files}, reverse=True):
            fs.fsync_directory(directory)
        fs.install_file(staging, snapshot, mode=0o755)
    fs.remove_tree(partials)
    cache.note_use(facts.artifact)
    return True


def _check_contents(cache: ArtifactCache, facts: ArtifactFacts, partials: Path) -> None:
    """What is refused is not kept: it will not become better."""
    for file in facts.files:
        fetched = partials / file.sha256
        path = fetched if fetched.is_file() else cache.blob_path(file.sha256)
        try:
            check_file(path, file.path, facts.format)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise fs.disk_error(error, path) from error
        except (RefusedError, ArtifactError):
            fs.remove_tree(partials)
            raise


def _promote(cache: ArtifactCache, fetched: Path, file: ArtifactFile, *, alone: bool) -> bool:
    """`alone`: locks kept everybody else from the fetched file since its bytes were checked."""
    blob = cache.blob_path(file.sha256)
    if blob.is_file() and not blob.is_symlink():
        if blob.stat().st_size == file.size_bytes and sha256_file(blob) == file.sha256:
            return True
        fs.remove_file(blob)
    if not fetched.is_file():
        return False
    fs.install_file(fetched, blob, mode=0o444)
    if not alone and sha256_file(blob) != file.sha256:
        fs.remove_file(blob)
        raise ArtifactError(
            "artifact.digest_mismatch",
            f"{file.path} changed after it was fetched: two writers share the cache, and its filesystem has no locks",
            place=str(blob),
            next_step="run again, or give each host a cache of its own",
            retryable=True,
        )
    return True


def _stagings(cache: ArtifactCache, artifact: str) -> list[Path]:
    """What a killed run of ours left; the artifact's lock keeps living ones away."""
    return list(cache.snapshots.glob(f".staging-{artifact}-*"))
