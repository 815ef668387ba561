"""Standalone Pythons that sb.yml names: read and judged before any plan, from a pack where there is one, else from this machine.

The digest is compared every time; what a digest holds is remembered in the operator's cache, since it never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json, sha256_file
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.file_slice import ByteSource
from sbctl.base.fs import ensure_directory, read_bounded, write_atomic
from sbctl.config.compiled import CompiledConfig, StandalonePython
from sbctl.node.python_archive import PythonArchive, inspect_python

__all__ = ["ArchiveSource", "local_archive", "with_pythons"]

ArchiveSource = Callable[[str, str], ByteSource]

_FORM = 1
_FACTS_MAX_BYTES = 64 * 1024


def with_pythons(config: CompiledConfig, cache: Path, source: ArchiveSource) -> CompiledConfig:
    """`config` with what each archive holds. `cache` is the operator's; `source` gives an archive by path and digest, compared.

    Raises InputError `python.archive_refused`, `python.unsupported`, and what `source` raises.
    """
    read: dict[StandalonePython, StandalonePython] = {}
    hosts = dict(config.hosts)
    for name, host in config.hosts.items():
        wanted = host.standalone
        if wanted is None:
            continue
        if wanted not in read:
            read[wanted] = replace(wanted, archive=_facts(wanted, cache, source))
        hosts[name] = replace(host, standalone=read[wanted])
    return replace(config, hosts=hosts) if read else config


def local_archive(path: str, sha256: str) -> ByteSource:
    """The archive on this machine. Raises InputError `file.missing`, `file.unreadable`, `python.digest_mismatch`."""
    file = Path(path)
    if not file.is_file():
        raise InputError(
            "file.missing",
            "the standalone Python that sb.yml names is not there",
            place=path,
            next_step="put the archive there, or correct fleet.runtime.python.path",
        )
    try:
        found = sha256_file(file)
    except OSError as error:
        raise InputError(
            "file.unreadable",
            f"the file cannot be read: {error.strerror}",
            place=path,
            next_step="see whether this user may read the file, and every directory above it",
        ) from error
    if found != sha256:
        raise InputError(
            "python.digest_mismatch",
            f"the standalone Python has the digest {found}, and sb.yml names {sha256}",
            place=path,
            next_step="take the archive whose digest was published, or correct fleet.runtime.python.sha256",
        )
    return file


def _facts(wanted: StandalonePython, cache: Path, source: ArchiveSource) -> PythonArchive:
    archive = source(wanted.path, wanted.sha256)
    remembered = cache / "pythons" / f"{wanted.sha256}.json"
    known = _remembered(remembered)
    if known is not None:
        return known
    with archive.open("rb") as opened:
        found = inspect_python(opened, wanted.path)
    ensure_directory(remembered.parent)
    write_atomic(remembered, canonical_json({"form": _FORM, **asdict(found)}), mode=0o644)
    return found


def _remembered(path: Path) -> PythonArchive | None:
    try:
        document = strict_json.loads(read_bounded(path, max_bytes=_FACTS_MAX_BYTES), max_bytes=_FACTS_MAX_BYTES)
        if isinstance(document, dict) and document.pop("form", None) == _FORM:
            return PythonArchive(**document)
    except (SbctlError, TypeError):
        pass
    return None
