"""The content-addressed model cache of one host.

    blobs/sha256/<sha256>           the bytes, 0444
    snapshots/<artifact>/           links to blobs under their paths, and artifact.json
    metadata/<artifact>.json        when it was last used (see `usage`)
    partials/<artifact>/<sha256>*   unfinished downloads
    quarantine/<sha256>.<token>     blobs whose bytes no longer have their digest
    locks/                          kernel locks (see `locks`)

A snapshot appears by one rename and is complete from then on. Looking one up reads its seal, never its bytes; `verify` reads the bytes.
`prepare` must have succeeded before anything is written; reading needs nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sbctl.artifacts.cache_root import check_root
from sbctl.artifacts.disk_space import fetched_bytes, taken_bytes
from sbctl.artifacts.formats.architectures import read_shape
from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.locks import artifact_lock_path, hold, lease_path, mutation_lock_path, require_locks
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.artifacts.seal import MANIFEST, Manifest, broken_seal, digest_of_name, read_manifest, seal_files
from sbctl.artifacts.usage import forget_usage, note_use
from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.digests import canonical_json, sha256_file
from sbctl.base.errors import ArtifactError, RefusedError
from sbctl.base.flock import FileLock
from sbctl.base.ids import is_digest

__all__ = ["ArtifactCache", "CacheEntry", "Removal", "Verification"]

_SWEEP_AFTER_S: Final = 3600.0
_LEASE_ATTEMPTS: Final = 5
_LEASE_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One artifact as it stands: `ready` by its seal, `corrupt` with the reason, `partial` while only part of it was fetched."""

    artifact: str
    state: Literal["ready", "partial", "corrupt"]
    size_bytes: int
    reason: str | None = None
    shape: ModelShape | None = None
    """What the model needs, by the headers of its weights."""
    taken_bytes: int = 0
    """Of a partial one: what it has of the disk, space that is reserved for what has not come included."""


@dataclass(frozen=True, slots=True)
class Removal:
    removed: bool
    reclaimed_bytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What reading all bytes found; `quarantined` are the paths where bad blobs lie now."""

    is_good: bool
    reasons: tuple[str, ...] = ()
    quarantined: tuple[Path, ...] = ()


class ArtifactCache:
    """One cache root. Several processes may use it at once."""

    def __init__(self, root: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self.root = root
        self.clock = clock
        self.blobs = root / "blobs" / "sha256"
        self.snapshots = root / "snapshots"
        self.partials = root / "partials"
        self.quarantine = root / "quarantine"

    def prepare(self) -> None:
        """Create what is missing, refuse an unsafe root. Raises RefusedError `cache.unsafe_permissions`, SbctlError `disk.*`."""
        check_root(self.root)
        fs.ensure_directory(self.root, mode=0o755)
        check_root(self.root)
        for directory in (self.blobs, self.snapshots, self.partials, self.root / "metadata", self.root / "locks"):
            fs.ensure_directory(directory, mode=0o755)
            fs.sweep_temporaries(directory, older_than_s=_SWEEP_AFTER_S, now_s=self.clock.now().timestamp())

    def blob_path(self, sha256: str) -> Path:
        return self.blobs / digest_of_name(sha256)

    def has_blob(self, file: ArtifactFile) -> bool:
        """Whether a regular file of the right size is there; its digest is checked when it is published."""
        try:
            status = os.lstat(self.blob_path(file.sha256))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes

    def snapshot_path(self, artifact: str) -> Path:
        """Where a ready artifact's files are; whether it is there says `entry`."""
        return self.snapshots / digest_of_name(artifact)

    def partials_path(self, artifact: str) -> Path:
        return self.partials / digest_of_name(artifact)

    def entry(self, artifact: str) -> CacheEntry | None:
        """Cheap: names, sizes, times and inodes, no bytes. None: nothing of it is here."""
        snapshot = self.snapshot_path(artifact)
        if snapshot.is_dir() and not snapshot.is_symlink():
            try:
                manifest = read_manifest(snapshot)
            except ArtifactError as error:
                return CacheEntry(artifact, "corrupt", 0, error.message)
            reason = broken_seal(snapshot, manifest)
            state: Literal["ready", "corrupt"] = "corrupt" if reason else "ready"
            return CacheEntry(artifact, state, manifest.facts.total_bytes, reason, manifest.shape)
        partials = self.partials_path(artifact)
        fetched, taken = fetched_bytes(partials), taken_bytes(partials)
        return CacheEntry(artifact, "partial", fetched, taken_bytes=taken) if fetched or taken else None

    def entries(self) -> tuple[CacheEntry, ...]:
        """Every artifact of which something is here, by name."""
        names = {name for parent in (self.snapshots, self.partials) for name in _names(parent) if is_digest(name)}
        found = (self.entry(name) for name in sorted(names))
        return tuple(entry for entry in found if entry is not None)

    def facts(self, artifact: str) -> ArtifactFacts:
        """What a published artifact is. Raises ArtifactError `artifact.manifest_damaged`, also when it is not here."""
        return read_manifest(self.snapshot_path(artifact)).facts

    def require(self, artifact: str) -> Path:
        """The snapshot of an artifact that may be launched. A broken seal is settled by reading the bytes.

        Raises ArtifactError `artifact.missing`, or `artifact.digest_mismatch` naming what was quarantined.
        """
        entry = self.entry(artifact)
        if entry is None or entry.state == "partial":
            raise ArtifactError(
                "artifact.missing",
                "the artifact is not in the cache",
                place=artifact,
                next_step="run sbctl apply to fetch it",
            )
        if entry.state == "corrupt":
            verification = self.verify(artifact)
            if not verification.is_good:
                raise ArtifactError(
                    "artifact.digest_mismatch",
                    f"the artifact was changed after it was published: {'; '.join(verification.reasons)}",
                    place=artifact,
                    next_step="run sbctl apply to fetch it again; the bad bytes were set aside",
                    detail={"quarantined": [str(path) for path in verification.quarantined]},
                )
        self.note_use(artifact)
        return self.snapshot_path(artifact)

    def note_use(self, artifact: str) -> None:
        """It is wanted now, so a collection takes others first. Never fails."""
        note_use(self.root, digest_of_name(artifact), int(self.clock.now().timestamp() * 1000))

    def lease(self, artifact: str) -> FileLock:
        """Keep an artifact from being removed until `.release()` or the end of this process. Raises RefusedError `artifact.in_use`
        while a removal runs. Whoever only asks whether it is leased holds the lock for a moment too, so it is tried more than once."""
        lock = FileLock(lease_path(self.root, digest_of_name(artifact)))
        for _ in range(_LEASE_ATTEMPTS):
            if lock.try_acquire(shared=True):
                break
            self.clock.sleep_s(_LEASE_PAUSE_S)
        else:
            raise RefusedError(
                "artifact.in_use",
                "the artifact is being removed",
                place=artifact,
                next_step="run the command again: what was removed is fetched anew",
                retryable=True,
            )
        return lock

    def verify(self, artifact: str) -> Verification:
        """Read every byte of a published artifact. Good bytes with a broken seal are sealed anew; bad ones are quarantined and the
        snapshot is withdrawn, as is every other snapshot that shares them."""
        with hold(artifact_lock_path(self.root, digest_of_name(artifact)), self.clock):
            return self.verify_locked(artifact)

    def verify_locked(self, artifact: str) -> Verification:
        """`verify` for a caller that holds the artifact's lock."""
        snapshot = self.snapshot_path(artifact)
        try:
            manifest = read_manifest(snapshot)
        except ArtifactError as error:
            fs.remove_tree(snapshot)
            return Verification(False, (error.message,))
        # Read twice before it counts: a wrong reading is not a wrong file.
        doubted = [file for file in manifest.facts.files if not _has_digest(snapshot / file.path, file)]
        bad = [file for file in doubted if not _has_digest(snapshot / file.path, file)]
        if not bad:
            if broken_seal(snapshot, manifest) is not None:
                self.write_manifest(snapshot, manifest.facts)
            return Verification(True)
        with hold(mutation_lock_path(self.root), self.clock):
            quarantined = [path for file in bad for path in self._set_aside(file.sha256)]
            fs.remove_tree(snapshot)
            for name, other in self.manifests():
                if any(file.sha256 in {known.sha256 for known in bad} for file in other.facts.files):
                    fs.remove_tree(self.snapshots / name)
        reasons = tuple(f"{file.path} no longer has SHA-256 {file.sha256}" for file in bad)
        return Verification(False, reasons, tuple(quarantined))

    def write_manifest(self, snapshot: Path, facts: ArtifactFacts) -> None:
        """Seal files that were verified this moment."""
        weights = sorted(snapshot / file.path for file in facts.files if file.path.endswith(".gguf"))
        manifest = Manifest(facts=facts, seals=seal_files(snapshot, facts), shape=read_shape(weights))
        fs.write_atomic(snapshot / MANIFEST, canonical_json(manifest.model_dump(mode="json")), mode=0o444)

    def _set_aside(self, sha256: str) -> Iterator[Path]:
        blob = self.blob_path(sha256)
        if blob.is_file() and not blob.is_symlink() and sha256_file(blob) == sha256:
            return
        if os.path.lexists(blob):
            fs.ensure_directory(self.quarantine, mode=0o755)
            target = self.quarantine / f"{sha256}.{secrets.token_hex(4)}"
            try:
                fs.OPS.rename(str(blob), str(target))
            except OSError as error:
                raise fs.disk_error(error, blob) from error
            fs.fsync_directory(self.blobs)
            yield target

    def manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Of every published artifact whose manifest can be read, by name."""
        for name in _names(self.snapshots):
            if is_digest(name):
                try:
                    yield name, read_manifest(self.snapshots / name)
                except ArtifactError:
                    continue

    def remove(self, artifact: str) -> Removal:
        """Remove an artifact; blobs that another one shares stay. Missing is a success.

        Raises RefusedError `artifact.in_use` while it is leased, or while another process works on it (`detail["reason"]`: leased, locked);
        `cache.locks_unreliable`.
        """
        name = digest_of_name(artifact)
        if not self.root.is_dir():
            return Removal(False, 0)
        self.prepare()
        require_locks(self.root)
        lease, work = FileLock(lease_path(self.root, name)), FileLock(artifact_lock_path(self.root, name))
        try:
            if not work.try_acquire():
                raise RefusedError(
                    "artifact.in_use",
                    "the artifact is being fetched or verified",
                    place=name,
                    next_step="wait until that ends, then run the command again",
                    retryable=True,
                    detail={"reason": "locked"},
                )
            if not lease.try_acquire():
                raise RefusedError(
                    "artifact.in_use",
                    "the artifact is in use by a deployment",
                    place=name,
                    next_step="remove or stop the deployment first",
                    detail={"reason": "leased"},
                )
            with hold(mutation_lock_path(self.root), self.clock):
                return self._remove_locked(name)
        finally:
            lease.release()
            work.release()

    def dismantle_if_empty(self) -> bool:
        """Remove the directories of a cache that holds no artifact any more, with what was set aside; True when the root is gone."""
        if any(_names(directory) for directory in (self.blobs, self.snapshots, self.partials)):
            return False
        parts = (self.blobs.parent, self.snapshots, self.partials, self.quarantine)
        for directory in (*parts, self.root / "metadata", self.root / "locks"):
            if directory.is_dir() and not directory.is_symlink():
                fs.remove_tree(directory)
        with contextlib.suppress(OSError):
            self.root.rmdir()
        return not self.root.exists()

    def _remove_locked(self, name: str) -> Removal:
        snapshot = self.snapshots / name
        try:
            candidates = {file.sha256 for file in read_manifest(snapshot).facts.files}
        except ArtifactError:
            candidates = {blob for blob in _names(self.blobs) if is_digest(blob)} if snapshot.exists() else set()
        reclaimed = _tree_bytes(self.partials / name)
        removed = fs.remove_tree(snapshot)
        removed = fs.remove_tree(self.partials / name) or removed
        shared = {file.sha256 for _, manifest in self.manifests() for file in manifest.facts.files}
        unread = any(is_digest(other) for other in _names(self.snapshots)) and self._some_unreadable()
        for sha256 in sorted(candidates - shared):
            blob = self.blobs / sha256
            try:
                status = os.lstat(blob)
            except OSError:
                continue
            if unread and status.st_nlink > 1:
                continue
            if fs.remove_file(blob):
                reclaimed += status.st_size
                removed = True
        forget_usage(self.root, name)
        return Removal(removed, reclaimed)

    def _some_unreadable(self) -> bool:
        readable = {name for name, _ in self.manifests()}
        return any(is_digest(name) and name not in readable for name in _names(self.snapshots))


def _has_digest(path: Path, file: ArtifactFile) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == file.size_bytes and sha256_file(path) == file.sha256
    except OSError:
        return False


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _tree_bytes(directory: Path) -> int:
    total = 0
    for name in _names(directory):
        try:
            total += os.lstat(directory / name).st_size
        except OSError:
            continue
    return total
