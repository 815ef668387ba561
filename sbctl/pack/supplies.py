"""What apply takes from a pack and from nowhere else: wheels copied into the operator's cache, weights where they are in the pack.

Nothing here can reach a network. What the pack lacks is an error that says so and how to make one that has it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sbctl import __version__
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import InputError
from sbctl.base.file_slice import ByteSource
from sbctl.pack.manifest import PackEntry, PackTarget
from sbctl.pack.reader import Pack

__all__ = ["PackSupplies"]

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")

Progress = Callable[[int, int | None], None]


class PackSupplies:
    """Serves all hosts of a run, which ask from threads of their own."""

    def __init__(self, pack: Pack, cache: Path, config_file: Path) -> None:
        """`cache` is the operator's; `config_file` is named in what to run when something is missing."""
        self._pack = pack
        self._wheels = cache / "wheels"
        self._config_file = config_file
        self._verified: set[str] = set()
        self._lock = threading.Lock()

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        """Raises InputError `pack.lacks`, `pack.damaged`, SbctlError `disk.*`."""
        target = self._target(arch, libc, python_version)
        entries = [entry for digest in target.wheels if (entry := self._pack.entry(digest)) is not None]
        total = sum(entry.size_bytes for entry in entries)
        wheels: dict[str, Path] = {}
        done = 0
        with self._lock:
            for entry in entries:
                wheels[entry.name] = self._unpacked(entry)
                done += entry.size_bytes
                progress(done, total)
        return wheels

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        """Raises InputError `pack.lacks`, `pack.damaged`, SbctlError `disk.*`."""
        return self._engine_file(f"{project} {version} ({filename})", filename, sha256, progress)

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:  # noqa: ARG002 - nothing is fetched
        """As `engine_wheel`."""
        return self._engine_file(filename, filename, sha256, progress)

    def _engine_file(self, what: str, filename: str, sha256: str, progress: Progress) -> Path:
        entry = self._pack.entry(sha256)
        if entry is None or entry.name != filename:
            raise self._lacks(what)
        with self._lock:
            path = self._unpacked(entry)
        progress(entry.size_bytes, entry.size_bytes)
        return path

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, ByteSource]:
        """Read and compared once a run, and sent from where they are. Raises InputError `pack.lacks`, `pack.damaged`."""
        files = {str(file["sha256"]): int(file["size_bytes"]) for file in facts["files"]}
        total, done = sum(files.values()), 0
        found: dict[str, ByteSource] = {}
        with self._lock:
            for digest, size in files.items():
                entry = self._pack.entry(digest)
                if entry is None or entry.size_bytes != size:
                    raise self._lacks(f"the weights {facts['model']}:{facts['variant']}", weights=True)
                if digest not in self._verified:
                    before = done
                    self._pack.verify_entry(entry, lambda count, before=before: progress(before + count, total))  # type: ignore[misc]
                    self._verified.add(digest)
                done += size
                found[digest] = self._pack.slice_of(entry)
        return found

    def python_archive(self, path: str, sha256: str) -> ByteSource:
        """Compared now. Raises InputError `pack.lacks`, `pack.damaged`."""
        entry = self._pack.entry(sha256)
        if entry is None or entry.role != "python":
            raise self._lacks(f"the standalone Python {Path(path).name}")
        with self._lock:
            if sha256 not in self._verified:
                self._pack.verify_entry(entry, lambda _done: None)
                self._verified.add(sha256)
        return self._pack.slice_of(entry)

    def lacking(
        self,
        hosts: Iterable[tuple[str, str, str]],
        engine_wheels: Mapping[str, str],
        artifacts: Iterable[Mapping[str, Any]],
    ) -> None:
        """Raises InputError `pack.lacks` for the first of what a plan will need that is not there.

        `hosts`: machine, C library and Python of each host to install on; `engine_wheels`: digest → what it is; `artifacts`: their facts.
        """
        for arch, libc, python in hosts:
            self._target(arch, libc, python)
        for digest, what in engine_wheels.items():
            if self._pack.entry(digest) is None:
                raise self._lacks(what)
        for facts in artifacts:
            if any(self._pack.entry(str(file["sha256"])) is None for file in facts["files"]):
                raise self._lacks(f"the weights {facts['model']}:{facts['variant']}", weights=True)

    def _target(self, arch: str, libc: str, python_version: str) -> PackTarget:
        manifest = self._pack.manifest
        if manifest.sbctl_version != __version__:
            what = f"runtime {__version__}: it was made with sbctl {manifest.sbctl_version}"
            raise self._lacks(what)
        match = _VERSION.match(python_version)
        minor = f"{match[1]}.{match[2]}" if match else python_version
        family, own = _libc(libc)
        fit = [
            target
            for target in manifest.targets
            if target.arch == arch
            and target.python == minor
            and _libc(target.libc)[0] == family
            and _libc(target.libc)[1] <= own
        ]
        if not fit:
            raise self._lacks(
                f"wheels for {arch}, {libc or 'an unknown C library'}, Python {minor}",
                options=f" --arch {arch} --libc {libc} --python {minor}",
            )
        return max(fit, key=lambda target: _libc(target.libc))

    def _unpacked(self, entry: PackEntry) -> Path:
        """A wheel by digest in the cache, copied once and compared before it is used."""
        path = self._wheels / entry.sha256 / _file_name(entry)
        if path.is_file() and not path.is_symlink() and sha256_file(path) == entry.sha256:
            return path
        fs.ensure_directory(path.parent)
        copy = fs.temporary_path(path.parent)
        try:
            with self._pack.slice_of(entry).open() as reader:
                fs.copy_stream(reader, copy)
            if sha256_file(copy) != entry.sha256:
                raise InputError(
                    "pack.damaged",
                    f"the pack is damaged: {entry.name} has other bytes than its digest says",
                    place=str(self._pack.path),
                    next_step="copy it again, or make it again",
                )
            fs.install_file(copy, path, mode=0o644)
        finally:
            copy.unlink(missing_ok=True)
        return path

    def _lacks(self, what: str, *, options: str = "", weights: bool = False) -> InputError:
        left_out = weights and "weights" in self._pack.manifest.left_out
        return InputError(
            "pack.lacks",
            f"the pack does not have {what}{' (it was made with --exclude weights)' if left_out else ''}",
            place=str(self._pack.path),
            next_step=f"where there is a network: sbctl pack -f {self._config_file} --out FILE{options}; nothing is fetched here",
        )


def _libc(text: str) -> tuple[str, tuple[int, ...]]:
    family, _, version = text.partition("-")
    return family, tuple(int(part) for part in version.split(".") if part.isdigit())


def _file_name(entry: PackEntry) -> str:
    """A plain name whatever the manifest says."""
    name = os.path.basename(entry.name)
    if name != entry.name or name in ("", ".", "..") or not name.endswith(".whl"):
        raise InputError(
            "pack.invalid", f"{entry.name} is no file name of a wheel", next_step="make the pack anew with sbctl pack"
        )
    return name
