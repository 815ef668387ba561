"""What a model hub says about a repository at one revision: its commit, its files with sizes and digests, its licence.

The hub's model information with file metadata (`/api/models/<repository>/revision/<revision>?blobs=true`). A file kept in large-file
storage comes with its SHA-256; of a small one the hub knows only git's own digest, so it is fetched once and hashed here. All text of the
hub is foreign: shapes and lengths are checked before anything is believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from yarl import URL

from sbctl.artifacts.fetch_policy import parse_url, shown
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.member_path import is_safe_member
from sbctl.base import strict_json
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.limits import JSON_INT_MAX, MIB

__all__ = [
    "HUB_SMALL_FILE_MAX_BYTES",
    "HubFile",
    "HubRepository",
    "file_url",
    "hashed_files",
    "read_repository",
    "read_small_file",
]

HUB_SMALL_FILE_MAX_BYTES: Final = 64 * MIB
"""Largest file that is fetched only to learn its digest."""

_ANSWER_MAX_BYTES: Final = 4 * MIB
_FILES_MAX: Final = 20_000
_COMMIT_RE: Final = re.compile("[0-9a-f]{40}")
_DIGEST_RE: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository. `sha256` is None for a small file that was not hashed yet."""

    path: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository at one commit. Facts that the hub does not tell are None or empty."""

    repository: str
    commit: str
    files: Mapping[str, HubFile]
    license: str
    gated: bool
    architecture: str
    context_length: int | None
    parameters: int | None
    task: str


async def read_repository(fetcher: Fetcher, repository: str, revision: str) -> HubRepository:
    """Ask the configured hub. Raises ArtifactError `hub.*` or of the transport; a missing repository or revision is named."""
    base = str(fetcher.settings.hf_endpoint).rstrip("/")
    url = parse_url(f"{base}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true")
    try:
        body, _kind, _final = await fetcher.page(url, accept="application/json", max_bytes=_ANSWER_MAX_BYTES)
    except ArtifactError as error:
        raise _explained(error, repository, revision) from error
    try:
        return _repository(repository, strict_json.loads(body, max_bytes=_ANSWER_MAX_BYTES))
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            "hub.answer_invalid",
            "the hub's answer about the repository is not one that can be read",
            place=shown(url),
            next_step="check HF_ENDPOINT: it must be a hub, not a mirror of files alone",
        ) from error


async def hashed_files(fetcher: Fetcher, found: HubRepository, paths: list[str]) -> tuple[HubFile, ...]:
    """The files at `paths`, each with its digest; small ones are fetched for it. Raises ArtifactError."""
    hashed = []
    for path in paths:
        file = found.files[path]
        if file.sha256 is None:
            content = await read_small_file(fetcher, found, path)
            file = replace(file, sha256=sha256_bytes(content))
        hashed.append(file)
    return tuple(hashed)


async def read_small_file(fetcher: Fetcher, found: HubRepository, path: str) -> bytes:
    """The whole of one small file at the repository's commit. Raises ArtifactError `hub.file_unhashed` above the cap."""
    file = found.files[path]
    url = file_url(fetcher, found.repository, found.commit, path)
    if file.size_bytes > HUB_SMALL_FILE_MAX_BYTES:
        raise ArtifactError(
            "hub.file_unhashed",
            f"the hub tells no SHA-256 of a file of {file.size_bytes} bytes, and that is too much to fetch only to learn it",
            place=shown(url),
            next_step="leave the file out, or write its digest into the catalog by hand",
        )
    content, _kind, _final = await fetcher.page(url, accept="*/*", max_bytes=HUB_SMALL_FILE_MAX_BYTES)
    if len(content) != file.size_bytes:
        raise ArtifactError(
            "artifact.size_mismatch",
            f"the source has {len(content)} bytes where {file.size_bytes} are expected",
            place=shown(url),
            next_step="run it again; if it stays so, what stands between here and the hub changes its files (HTTPS_PROXY, HF_ENDPOINT)",
        )
    return content


def file_url(fetcher: Fetcher, repository: str, revision: str, path: str) -> URL:
    """Where the hub serves a file."""
    base = str(fetcher.settings.hf_endpoint).rstrip("/")
    return parse_url(f"{base}/{repository}/resolve/{quote(revision, safe='')}/{quote(path)}")


def _explained(error: ArtifactError, repository: str, revision: str) -> ArtifactError:
    status = error.detail.get("status")
    if status == 404:
        return ArtifactError(
            "hub.unknown",
            f'the hub has no model repository "{repository}" with a revision "{revision}", or hides it',
            place=error.place,
            next_step="check the spelling; a private one needs a token (HF_TOKEN)",
        )
    if status in (401, 403):
        # A hub says 401 of what it does not have too, so that nobody learns which names are private.
        doubt = ": it has no such repository, or it is private or gated" if status == 401 else ""
        check = "check the spelling; if it is right, " if status == 401 else ""
        return ArtifactError(
            "hub.refused",
            f'the hub does not show "{repository}" to this caller{doubt}',
            place=error.place,
            next_step=f"{check}accept its terms on the hub with your account, then give that account's token (HF_TOKEN)",
        )
    return error


def _repository(repository: str, told: Any) -> HubRepository:
    commit = told["sha"]
    if _COMMIT_RE.fullmatch(commit) is None or len(told["siblings"]) > _FILES_MAX:
        raise ValueError
    files = [_file(one) for one in told["siblings"]]
    card = told.get("cardData") or {}
    gguf = told.get("gguf") or {}
    tensors = told.get("safetensors") or {}
    return HubRepository(
        repository=repository,
        commit=commit,
        files={file.path: file for file in files if file is not None},
        license=_license(card, told.get("tags") or ()),
        gated=bool(told.get("gated")),
        architecture=_text(gguf.get("architecture")) or _text((told.get("config") or {}).get("model_type")),
        context_length=_count(gguf.get("context_length")),
        parameters=_count(gguf.get("total")) or _count(tensors.get("total")),
        task=_text(told.get("pipeline_tag")),
    )


def _file(told: Any) -> HubFile | None:
    """None for a path that no artifact could have, or a file without a size."""
    path, size, large = told["rfilename"], told.get("size"), told.get("lfs") or {}
    if not is_safe_member(path) or not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= JSON_INT_MAX:
        return None
    digest = large.get("sha256")
    if digest is not None and _DIGEST_RE.fullmatch(digest) is None:
        raise ValueError
    return HubFile(path, size, digest)


def _license(card: Mapping[str, Any], tags: Any) -> str:
    """The card's own word; `other` by its name, where one is written. Lists of licences become one text."""
    told = card.get("license")
    if told == "other" and _text(card.get("license_name")):
        return _text(card["license_name"])
    if isinstance(told, list):
        told = " AND ".join(_text(one) for one in told if _text(one))
    if not _text(told):
        told = next((tag.removeprefix("license:") for tag in tags if _text(tag).startswith("license:")), "")
    return _text(told)


def _text(told: Any) -> str:
    return told if isinstance(told, str) and len(told) <= 128 and told.isprintable() else ""


def _count(told: Any) -> int | None:
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= JSON_INT_MAX else None
