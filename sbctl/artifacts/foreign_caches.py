"""Weights that other programs keep on this machine: Ollama, LM Studio and the Hugging Face hub's cache. They are read, never changed.

A file is found by its name where that is its digest (Ollama; the hub, for large files), else by its exact size; what it holds is decided by
hashing it. Bounded: directories down to 4 levels, 10,000 entries in all. What cannot be read is passed over: it was only a chance.

A candidate comes over as a copy that shares blocks where the filesystem can, else as a second name of the same file when the file is ours,
else as a copy. A second name makes the file read-only for the other program too, which never writes finished weights.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.artifacts.sources import HfSource, parse_source
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.reflink import reflink

__all__ = ["Candidate", "ForeignCache", "bring_over", "candidates", "foreign_caches", "measured"]

ForeignKind = Literal["ollama", "lm-studio", "huggingface"]

_MAX_DEPTH: Final = 4
_MAX_ENTRIES: Final = 10_000
_SYSTEM_OLLAMA: Final = "/usr/share/ollama/.ollama/models"
"""Where the service that Ollama's installer sets up keeps its models."""


@dataclass(frozen=True, slots=True)
class ForeignCache:
    kind: ForeignKind
    root: Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be the wanted one. `by_digest`: its name says so; else only its size does."""

    kind: ForeignKind
    path: Path
    by_digest: bool


def foreign_caches(environ: Mapping[str, str]) -> tuple[ForeignCache, ...]:
    """Those of the user whose environment this is, and of a system-wide Ollama; each once, only what is there."""
    home = environ.get("HOME") or ""
    cache = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    hub_home = environ.get("HF_HOME") or (f"{cache}/huggingface" if cache else "")
    places: list[tuple[ForeignKind, str]] = [
        ("ollama", environ.get("OLLAMA_MODELS") or (f"{home}/.ollama/models" if home else "")),
        ("ollama", _SYSTEM_OLLAMA),
        ("lm-studio", f"{home}/.lmstudio/models" if home else ""),
        ("lm-studio", f"{cache}/lm-studio/models" if cache else ""),
        ("huggingface", environ.get("HF_HUB_CACHE") or (f"{hub_home}/hub" if hub_home else "")),
    ]
    found: dict[Path, ForeignCache] = {}
    for kind, text in places:
        if os.path.isabs(text) and os.path.isdir(text):
            found.setdefault(Path(os.path.realpath(text)), ForeignCache(kind, Path(text)))
    return tuple(found.values())


def measured(cache: ForeignCache) -> tuple[int, int]:
    """How many files it has, and their bytes; as far as the bounds of a search reach."""
    sizes = [size for path in _walk(cache.root) if (size := _size_of(path)) is not None]
    return len(sizes), sum(sizes)


def candidates(
    caches: Iterable[ForeignCache], facts: ArtifactFacts, files: Iterable[ArtifactFile]
) -> dict[str, tuple[Candidate, ...]]:
    """By digest, for each of `files` of which some cache may have the bytes; those that are named by their digest first."""
    wanted = list(files)
    finders: dict[ForeignKind, Callable[[Path, ArtifactFacts, list[ArtifactFile]], Iterator[tuple[str, Candidate]]]] = {
        "ollama": _in_ollama,
        "lm-studio": _in_lm_studio,
        "huggingface": _in_hub,
    }
    found: dict[str, list[Candidate]] = {}
    for cache in caches:
        for digest, candidate in finders[cache.kind](cache.root, facts, wanted):
            found.setdefault(digest, []).append(candidate)
    return {digest: tuple(sorted(each, key=lambda one: not one.by_digest)) for digest, each in found.items()}


def _in_ollama(root: Path, _facts: ArtifactFacts, files: list[ArtifactFile]) -> Iterator[tuple[str, Candidate]]:
    for file in files:
        path = root / "blobs" / f"sha256-{file.sha256}"
        if _size_of(path) == file.size_bytes:
            yield file.sha256, Candidate("ollama", path, by_digest=True)


def _in_hub(root: Path, facts: ArtifactFacts, files: list[ArtifactFile]) -> Iterator[tuple[str, Candidate]]:
    """Large files are named by their SHA-256 in whichever repository has them; small ones by another digest, so only the source's are looked at."""
    own = _hub_directory(facts)
    for name in _names(root):
        if not name.startswith("models--"):
            continue
        blobs = root / name / "blobs"
        for file in files:
            if _size_of(blobs / file.sha256) == file.size_bytes:
                yield file.sha256, Candidate("huggingface", blobs / file.sha256, by_digest=True)
        if name == own:
            yield from _by_size("huggingface", ((blobs / each) for each in _names(blobs)), files)


def _hub_directory(facts: ArtifactFacts) -> str | None:
    with contextlib.suppress(InputError):
        source = parse_source(facts.source)
        if isinstance(source, HfSource):
            return f"models--{source.repository.replace('/', '--')}"
    return None


def _in_lm_studio(root: Path, _facts: ArtifactFacts, files: list[ArtifactFile]) -> Iterator[tuple[str, Candidate]]:
    yield from _by_size("lm-studio", _walk(root), files)


def _by_size(kind: ForeignKind, paths: Iterable[Path], files: list[ArtifactFile]) -> Iterator[tuple[str, Candidate]]:
    sizes: dict[int, list[ArtifactFile]] = {}
    for file in files:
        sizes.setdefault(file.size_bytes, []).append(file)
    for path in paths:
        for file in sizes.get(_size_of(path) or -1, ()):
            if path.name != file.sha256:
                yield file.sha256, Candidate(kind, path, by_digest=False)


def _walk(root: Path) -> Iterator[Path]:
    """Entries below `root`; links are not followed."""
    left = _MAX_ENTRIES
    pending = [(root, 1)]
    while pending:
        directory, depth = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if not entry.is_dir(follow_symlinks=False):
                        yield Path(entry.path)
                    elif depth < _MAX_DEPTH:
                        pending.append((Path(entry.path), depth + 1))
        except OSError:
            continue


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:_MAX_ENTRIES]
    except OSError:
        return []


def _size_of(path: Path) -> int | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def bring_over(candidate: Candidate, target: Path, file: ArtifactFile) -> bool:
    """Leave the bytes of `file` at `target`, which must not exist. False, and no target, when the candidate has others or cannot be read.

    Raises SbctlError `disk.full` and its like about our own side.
    """
    if os.path.lexists(target):
        return False
    try:
        if not os.access(candidate.path, os.R_OK) or _size_of(candidate.path) != file.size_bytes:
            return False
        if not reflink(candidate.path, target):
            fs.link_or_copy(candidate.path, target)
        if not target.is_symlink() and sha256_file(target) == file.sha256:
            return True
    except FileNotFoundError:
        pass
    except SbctlError as error:
        fs.remove_file(target)
        if error.code not in ("disk.permission", "disk.missing", "disk.symlink_refused"):
            raise
    except OSError:
        pass
    fs.remove_file(target)
    return False
