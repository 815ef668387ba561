"""A llama.cpp release, or its source for CUDA, as an engine of ours: `<opt>/engines/llama_cpp/<build>/bin/llama-server`.

By digest from the first byte; unpacked by our own policy; asked for its version and its flags before it gets its name by one rename. A program
that does not say the version that was pinned, or does not help as that version was seen to, is refused: it is not what was tried.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.disk_space import require_space
from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import Delivery
from sbctl.artifacts.tar_archive import unpack_tar
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import EngineError, HostError
from sbctl.engines.detect import RECORD_NAME, ArchiveRecord, installed_engines, probe_llama_server
from sbctl.engines.flag_tables import flag_table, help_digest
from sbctl.engines.model import PROGRAM_PATH
from sbctl.engines.release_pins import ARCHIVE_MAX_BYTES
from sbctl.node.messages import EngineArchive
from sbctl.runtime.egress import host_fetch_settings
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.engine_build import build_server
from sbctl.runtime.nodeops.snapshot import stored_config
from sbctl.runtime.nodeops.wheel_files import SEND_AGAIN

__all__ = ["install_archive"]

_PROGRAM: Final = Path(PROGRAM_PATH).name


def install_archive(context: NodeContext, pin: EngineArchive, delivery: Delivery, home: Path) -> dict[str, Any]:
    """As `engine_ops.install_engine`, whose lock is held."""
    answer = {"path": str(home), "version": home.name, "digest": pin.sha256}
    if _is_installed(context, pin, home):
        fs.remove_file(context.paths.blobs / pin.sha256)
        return answer
    fs.ensure_directory(home.parent, mode=0o755)
    fs.sweep_temporaries(home.parent, older_than_s=0.0, now_s=context.clock.now().timestamp())
    staged = fs.temporary_path(home.parent)
    fs.ensure_directory(staged, mode=0o755)
    try:
        require_space(home.parent, pin.installed_bytes)
        archive = _archive(context, pin, delivery, staged)
        unpacked = staged / "unpacked"
        fs.ensure_directory(unpacked, mode=0o755)
        context.report(0, None, f"unpacking {pin.filename}")
        unpack_tar(archive, unpacked, max_bytes=pin.installed_bytes)
        fs.remove_file(archive)
        environment = staged / "environment"
        fs.ensure_directory(environment, mode=0o755)
        if pin.is_source:
            build_server(context, unpacked, environment / "bin", tag=pin.tag)
        else:
            _take_programs(unpacked, environment / "bin", pin)
        record = _record(environment, pin, home.name)
        fs.write_atomic(environment / RECORD_NAME, record.model_dump_json().encode(), mode=0o644)
        os.sync()
        fs.replace_directory(environment, home)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    fs.remove_file(context.paths.blobs / pin.sha256)
    return answer


def _is_installed(context: NodeContext, pin: EngineArchive, home: Path) -> bool:
    for record in installed_engines(context.paths.engines):
        if isinstance(record, ArchiveRecord) and record.version == home.name and record.sha256 == pin.sha256:
            program = home / PROGRAM_PATH
            return program.is_file() and sha256_file(program) == record.program_sha256
    return False


def _archive(context: NodeContext, pin: EngineArchive, delivery: Delivery, staged: Path) -> Path:
    """The archive under its own name in a directory of ours: from what was put, or fetched."""
    target = staged / pin.filename
    blob = context.paths.blobs / pin.sha256
    if delivery == "pull":
        run_cancellable(context, _fetch(context, pin, target))
    elif not blob.is_file():
        raise HostError(
            "put.missing",
            f"{pin.filename} was not sent to this host",
            place=str(blob),
            next_step=SEND_AGAIN,
            retryable=True,
        )
    else:
        fs.link_or_copy(blob, target)
        if sha256_file(target) != pin.sha256:
            raise HostError(
                "put.digest_mismatch",
                "the archive has other bytes than its name says",
                place=str(blob),
                next_step=SEND_AGAIN,
            )
    if target.stat().st_size > ARCHIVE_MAX_BYTES:
        raise EngineError(
            "engine.install_failed",
            f"{pin.filename} is larger than any release of llama.cpp",
            place=pin.filename,
            next_step="correct engines.llama_cpp.version and its sha256, or use launch: wheel",
        )
    return target


async def _fetch(context: NodeContext, pin: EngineArchive, target: Path) -> None:
    config, _ = stored_config(context.paths)
    async with Fetcher(host_fetch_settings(config, context.paths, context.environ)) as fetcher:
        await fetch_file(
            [pin.url],
            target,
            sha256=pin.sha256,
            progress=lambda done, total: context.report(done, total, pin.filename),
            fetcher=fetcher,
        )


def _take_programs(unpacked: Path, target: Path, pin: EngineArchive) -> None:
    """The directory of the archive that holds the server: the program finds its libraries beside it."""
    found = [path for path in (unpacked, unpacked / "bin", unpacked / "build" / "bin") if (path / _PROGRAM).is_file()]
    if not found:
        raise EngineError(
            "engine.install_failed", f"there is no {_PROGRAM} in {pin.filename}", place=pin.filename,
            next_step="give the digest of a release for this machine, or use launch: wheel",
        )  # fmt: skip
    os.rename(found[0], target)
    (target / _PROGRAM).chmod(0o755)


def _record(environment: Path, pin: EngineArchive, name: str) -> ArchiveRecord:
    """What was installed, once it answered as what was pinned. Raises EngineError `engine.install_failed`, `engine.other_version`,
    `engine.help_differs`."""
    program = environment / PROGRAM_PATH
    try:
        build = probe_llama_server(program, libraries=program.parent)
    except EngineError as error:
        raise EngineError(
            "engine.install_failed", f"the installed engine does not start: {error.message}", place=str(program),
            next_step="a library may be missing on this host (libgomp1, libvulkan1, the NVIDIA driver); or use launch: wheel",
        ) from error  # fmt: skip
    if build.version != pin.tag:
        raise EngineError(
            "engine.other_version", f"{pin.filename} holds llama.cpp {build.version}, not {pin.tag}", place=pin.filename,
            next_step="correct engines.llama_cpp.version or sha256",
        )  # fmt: skip
    flags = build.known_flags or frozenset()
    table = flag_table(pin.tag)
    if table is not None and table.help_digest != help_digest(flags):
        raise EngineError(
            "engine.help_differs",
            f"{pin.filename} does not take the flags that llama.cpp {pin.tag} was seen to take",
            place=pin.filename,
            next_step="it is not the build that was tried: correct its digest, or use launch: wheel",
        )
    return ArchiveRecord(
        engine="llama_cpp",
        launch="binary",
        version=name,
        sha256=pin.sha256,
        archive=pin.filename,
        tag=pin.tag,
        acceleration=pin.acceleration,
        is_source=pin.is_source,
        program_sha256=sha256_file(program),
        flags=tuple(sorted(flags)),
    )
