"""Wheels for hosts, on the operator's machine: fetched once from the package index, checked against the lock, kept by digest.

    <cache>/wheels/<sha256>/<filename>     every wheel, ours among them
    <cache>/wheelhouse/<key>.json          which wheels one kind of host gets; the key is a digest of the lock and of the kind

A second call for the same kind touches no network. Nothing from the cache is used before its digest was compared again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.pypi import IndexFile, resolve
from sbctl.base import strict_json
from sbctl.base.digests import fingerprint, sha256_bytes, sha256_file
from sbctl.base.errors import ArtifactError, SbctlError
from sbctl.base.fs import ensure_directory, read_bounded, write_atomic
from sbctl.base.ids import is_digest
from sbctl.base.resources import data_path
from sbctl.remote.own_wheel import build_own_wheel, own_wheel_name
from sbctl.remote.transport import Progress
from sbctl.remote.wheel_lock import LockedRelease, WheelTarget, read_lock

__all__ = ["Wheelhouse"]

_Result = TypeVar("_Result")

_PARALLEL: Final = 4
_LOCK_MAX_BYTES: Final = 4 * 1024 * 1024


class Wheelhouse:
    """Not for several threads at once; several processes may share the cache."""

    def __init__(self, cache: Path, environ: Mapping[str, str], *, lock: Path | None = None) -> None:
        """`environ` configures index, proxies and certificates; `lock` defaults to the one that came with this sbctl."""
        self._wheels = cache / "wheels"
        self._lists = cache / "wheelhouse"
        self._settings = FetchSettings.from_environ(environ)
        self._own: Path | None = None
        self._lock = lock if lock is not None else data_path("requirements", "runtime.txt")

    def ensure(self, arch: str, libc: str, python_version: str, progress: Progress) -> dict[str, Path]:
        """All wheels of the runtime for one kind of host, filename → verified file; `uv` and ours are among them.

        Raises RefusedError `runtime.host_unsupported`, ArtifactError, SbctlError `disk.*`.
        """
        target = WheelTarget(arch, libc, python_version)
        tags = target.tags()
        text = read_bounded(self._lock, max_bytes=_LOCK_MAX_BYTES).decode("utf-8")
        kind = {"lock": sha256_bytes(text.encode()), "tags": [str(tag) for tag in tags], "python": python_version}
        listing = self._lists / f"{fingerprint(kind)}.json"
        wheels = self._complete(listing)
        if wheels is None:
            wheels = asyncio.run(self._fetch(read_lock(text, target), target, progress))
            ensure_directory(self._lists)
            listed = {name: path.parent.name for name, path in wheels.items()}
            write_atomic(listing, json.dumps(listed, sort_keys=True).encode(), mode=0o644)
        return {**wheels, own_wheel_name(): self._own_wheel()}

    def pinned_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        """One wheel by its exact name and digest. Raises ArtifactError, SbctlError `disk.*`."""
        path = self._path(sha256, filename)
        if not self._is_whole(path):
            asyncio.run(self._fetch_pinned(project, version, path, progress))
        return path

    def pinned_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        """One archive by its digest. Raises ArtifactError, SbctlError `disk.*`."""
        path = self._path(sha256, filename)
        if not self._is_whole(path):
            asyncio.run(self._fetch_archive(url, path, progress))
        return path

    def _path(self, sha256: str, filename: str) -> Path:
        return self._wheels / sha256 / filename

    def _is_whole(self, path: Path) -> bool:
        try:
            return path.is_file() and not path.is_symlink() and sha256_file(path) == path.parent.name
        except OSError:
            return False

    def _complete(self, listing: Path) -> dict[str, Path] | None:
        """The wheels that `listing` names, when it can be read and each of them is whole."""
        try:
            named = strict_json.loads(read_bounded(listing, max_bytes=_LOCK_MAX_BYTES), max_bytes=_LOCK_MAX_BYTES)
        except SbctlError:
            return None
        if not isinstance(named, dict) or not all(is_digest(str(digest)) for digest in named.values()):
            return None
        wheels = {name: self._path(str(digest), name) for name, digest in named.items() if Path(name).name == name}
        return wheels if len(wheels) == len(named) and all(map(self._is_whole, wheels.values())) else None

    def _own_wheel(self) -> Path:
        """Built once, so that all hosts of a run get the same one."""
        if self._own is None or not self._is_whole(self._own):
            content = build_own_wheel()
            self._own = self._path(sha256_bytes(content), own_wheel_name())
            ensure_directory(self._own.parent)
            write_atomic(self._own, content, mode=0o644)
        return self._own

    async def _fetch_archive(self, url: str, path: Path, progress: Progress) -> None:
        ensure_directory(path.parent)
        async with Fetcher(self._settings) as fetcher:
            await fetch_file([url], path, sha256=path.parent.name, progress=progress, fetcher=fetcher)

    async def _fetch_pinned(self, project: str, version: str, path: Path, progress: Progress) -> None:
        async with Fetcher(self._settings) as fetcher:
            offered = await resolve(project, version, fetcher=fetcher, filename=path.name, content_is_pinned=True)
            _check(offered, frozenset({path.parent.name}), project, version)
            await self._download(offered, fetcher, progress)

    async def _fetch(
        self, releases: Sequence[LockedRelease], target: WheelTarget, progress: Progress
    ) -> dict[str, Path]:
        tags = target.tags()
        gate = asyncio.Semaphore(_PARALLEL)
        async with Fetcher(self._settings) as fetcher:

            async def find(release: LockedRelease) -> IndexFile:
                async with gate:
                    offered = await resolve(release.project, release.version, fetcher=fetcher, tags=tags)
                    _check(offered, release.sha256s, release.project, release.version)
                    return offered

            offered = await _all([find(release) for release in releases])
            report = _Sum(progress, offered)

            async def get(file: IndexFile) -> Path:
                async with gate:
                    return await self._download(file, fetcher, report.of(file))

            paths = await _all([get(file) for file in offered])
        return {path.name: path for path in paths}

    async def _download(self, file: IndexFile, fetcher: Fetcher, progress: Progress) -> Path:
        path = self._path(file.sha256, file.filename)
        ensure_directory(path.parent)
        await fetch_file(
            [file.url], path, sha256=file.sha256, size_bytes=file.size_bytes, progress=progress, fetcher=fetcher
        )
        return path


async def _all(jobs: Sequence[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """All results in order; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except BaseExceptionGroup as failures:
        # Not `except*`: early releases of Python 3.11 wrap what is raised there in a group again.
        expected, unexpected = failures.split(SbctlError)
        if expected is None or unexpected is not None:
            raise
        raise _first(expected) from None
    return [task.result() for task in tasks]


def _first(failures: BaseExceptionGroup[SbctlError]) -> SbctlError:
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found


def _check(file: IndexFile, sha256s: frozenset[str], project: str, version: str) -> None:
    if file.sha256 not in sha256s:
        raise ArtifactError(
            "artifact.digest_mismatch",
            f"the package index offers {file.filename} with a digest that is not the locked one",
            place=f"{project}=={version}",
            next_step="use an index that mirrors the original files; do not install these",
        )


class _Sum:
    """Bytes of many downloads as one progress."""

    def __init__(self, progress: Progress, files: Sequence[IndexFile]) -> None:
        self._progress = progress
        self._done: dict[str, int] = {}
        sizes = [file.size_bytes for file in files]
        self._total = None if None in sizes else sum(size or 0 for size in sizes)

    def of(self, file: IndexFile) -> Progress:
        def report(done: int, _total: int | None) -> None:
            self._done[file.filename] = done
            self._progress(sum(self._done.values()), self._total)

        return report
