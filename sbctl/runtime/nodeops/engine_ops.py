"""`engine.install` and `engine.remove`: the llama.cpp wheel in an environment of its own, below `<opt>/engines/llama_cpp/<version>`.

(Releases and source builds are in `engine_archive`.) Built beside its place by uv from the one wheel, offline and by digest; tried; then given its name by one rename. `engine.json` in it says
what it was made of. The launcher script is a copy of ours, so a newer launcher replaces the installation.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.archive import read_member
from sbctl.artifacts.disk_space import require_space
from sbctl.base import fs
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, EngineError, HostError, RefusedError
from sbctl.base.flock import exclusive
from sbctl.base.limits import MIB
from sbctl.engines import llama_wheel_launcher
from sbctl.engines.detect import RECORD_NAME, EngineRecord, installed_engines
from sbctl.engines.model import LAUNCHER_NAME, LIBRARIES_NAME
from sbctl.node.messages import EngineInstall, EngineRemove, WheelFile
from sbctl.node.standalone import require_python, sweep_pythons
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.engine_archive import install_archive
from sbctl.runtime.nodeops.engine_users import processes_of, restart_users
from sbctl.runtime.nodeops.programs import run_program
from sbctl.runtime.nodeops.wheel_files import WheelOrigin, bring_wheel

__all__ = ["add_libraries", "install_engine", "remove_engine"]

_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}")
_UV_DEADLINE_S: Final = 300.0
_SMOKE_DEADLINE_S: Final = 60.0
_INSTALL_DEADLINE_S: Final = 900.0
_BUILD_DEADLINE_S: Final = 5400.0
_LIBRARY_MAX_BYTES: Final = 16 * MIB
_UNPACKED_FACTOR: Final = 4
"""A wheel's installation takes less than this times its size."""


def _home(context: NodeContext, version: str) -> Path:
    if _VERSION.fullmatch(version) is None:
        raise EngineError(
            "engine.version_invalid",
            f"{version[:64]!r} is not a version",
            place="engines.llama_cpp.version",
            next_step="write the tag of a release, such as b9905, or the version of the wheel",
        )
    return context.paths.engines / "llama_cpp" / version


def _launcher_source() -> bytes:
    return fs.read_bounded(Path(str(llama_wheel_launcher.__file__)), max_bytes=MIB)


def install_engine(context: NodeContext, params: EngineInstall) -> dict[str, Any]:
    """An installation that a lost operator began is waited for, and what a killed one has left is removed. Deployments that run on what was
    replaced are restarted.

    Raises EngineError `engine.install_failed`, HostError `put.missing`, ArtifactError of the fetch, LockedError `host.locked`, SbctlError `disk.*`.
    """
    fs.ensure_directory(context.paths.state)
    deadline_s = _BUILD_DEADLINE_S if params.archive is not None and params.archive.is_source else _INSTALL_DEADLINE_S
    home = _home(context, params.version)
    with exclusive(context.paths.install_lock, deadline_s=deadline_s, check=context.cancellation.check):
        before = _inode(home)
        if params.archive is not None:
            answer = install_archive(context, params.archive, params.delivery, home)
        elif params.wheel is not None:
            answer = _install_wheel(context, params, params.wheel)
        else:
            raise EngineError(
                "engine.install_failed",
                "neither a wheel nor an archive was named",
                place=params.version,
                next_step="run sbctl apply with the version of sbctl that this host has",
            )
        restarted = restart_users(context, home) if _inode(home) != before else []
    return {**answer, "restarted": restarted}


def _inode(home: Path) -> int | None:
    """Which directory stands there now."""
    try:
        return home.stat().st_ino
    except OSError:
        return None


def _install_wheel(context: NodeContext, params: EngineInstall, wheel_file: WheelFile) -> dict[str, Any]:
    home = _home(context, params.version)
    launcher = _launcher_source()
    python = params.python
    if params.standalone is not None:
        python = str(require_python(context.paths, params.standalone.sha256, params.standalone.program))
    record = EngineRecord(
        engine=params.engine,
        launch="wheel",
        version=params.version,
        wheel=wheel_file.filename,
        sha256=wheel_file.sha256,
        launcher_sha256=sha256_bytes(launcher),
        python=python,
    )
    answer = {"path": str(home), "version": params.version, "digest": wheel_file.sha256}
    if record in installed_engines(context.paths.engines) and _smoke(home) is None:
        _forget_blob(context, params)
        return answer
    fs.ensure_directory(home.parent, mode=0o755)
    fs.sweep_temporaries(home.parent, older_than_s=0.0, now_s=context.clock.now().timestamp())
    staged = fs.temporary_path(home.parent)
    fs.ensure_directory(staged, mode=0o755)
    try:
        wheel = bring_wheel(context, WheelOrigin(params.project, params.version, params.delivery), wheel_file, staged)
        require_space(home.parent, _UNPACKED_FACTOR * wheel.stat().st_size)
        context.cancellation.check()
        context.report(0, None, f"installing {params.project} {params.version}")
        environment = _build(record, params.project, wheel, staged)
        fs.write_atomic(environment / LAUNCHER_NAME, launcher, mode=0o644)
        failure = _smoke(environment)
        if failure is not None and params.libraries:
            add_libraries(context, params, environment, staged, failure)
            failure = _smoke(environment)
        if failure is not None:
            raise EngineError(
                "engine.install_failed", f"the installed engine does not start: {failure}", place=str(home),
                next_step="this wheel does not run on this host; use launch: binary",
            )  # fmt: skip
        fs.write_atomic(environment / RECORD_NAME, record.model_dump_json().encode(), mode=0o644)
        os.sync()
        fs.replace_directory(environment, home)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    _forget_blob(context, params)
    return answer


def add_libraries(context: NodeContext, params: EngineInstall, environment: Path, staged: Path, failure: str) -> None:
    """Put the libraries beside the engine whose names the loader missed. Raises ArtifactError when a wheel does not hold what was pinned."""
    for library in params.libraries:
        if library.name not in failure:
            continue
        wheel = bring_wheel(
            context, WheelOrigin(library.project, library.version, params.delivery), library.wheel, staged
        )
        fs.ensure_directory(environment / LIBRARIES_NAME, mode=0o755)
        target = environment / LIBRARIES_NAME / library.name
        content = b"".join(read_member(wheel, library.member, max_bytes=_LIBRARY_MAX_BYTES))
        if sha256_bytes(content) != library.sha256:
            raise ArtifactError(
                "artifact.digest_mismatch",
                f"{library.member} has other bytes than were pinned",
                place=wheel.name,
                next_step=f"install {library.name} on this host (Debian, Ubuntu: apt-get install libgomp1), then apply again",
            )
        fs.write_atomic(target, content, mode=0o755)


def _build(record: EngineRecord, project: str, wheel: Path, staged: Path) -> Path:
    from uv import find_uv_bin

    uv, environment = find_uv_bin(), staged / "environment"
    requirements = staged / "requirements.txt"
    pinned = f"{project}=={record.version} --hash=sha256:{record.sha256}\n"
    fs.write_atomic(requirements, pinned.encode())
    common = ("--no-config", "--offline", "--quiet", "--no-python-downloads", "--cache-dir", str(staged / "cache"))
    _uv((uv, "venv", *common, "--relocatable", "--python", record.python, str(environment)), staged)
    exactly = ("--no-index", "--no-deps", "--require-hashes", "--no-build", "--find-links", str(wheel.parent))
    into = ("--python", str(environment / "bin" / "python"), "--requirements", str(requirements))
    _uv((uv, "pip", "install", *common, *exactly, *into), staged)
    fs.remove_file(environment / ".lock")  # uv leaves it writable by everybody
    return environment


def _uv(argv: tuple[str, ...], staged: Path) -> None:
    environ = {"HOME": str(staged), "TMPDIR": str(staged)}
    done = run_program(argv, deadline_s=_UV_DEADLINE_S, environ=environ, cwd=staged)
    if done.returncode:
        raise EngineError(
            "engine.install_failed",
            f"uv {argv[1]} failed: {done.tail() or f'status {done.returncode}'}",
            next_step="check the named Python on this host and the free space, then run sbctl apply again",
        )


def _smoke(environment: Path) -> str | None:
    """Why the engine cannot start here; None when its library loads."""
    argv = (str(environment / "bin" / "python"), "-I", "-B", "-c", "import xllamacpp; xllamacpp.CommonParams()")
    libraries = environment / LIBRARIES_NAME
    environ = {"LD_LIBRARY_PATH": str(libraries)} if libraries.is_dir() else {}
    try:
        done = run_program(argv, deadline_s=_SMOKE_DEADLINE_S, environ=environ)
    except HostError as error:
        return error.message
    return None if done.returncode == 0 else done.tail(2) or f"status {done.returncode}"


def _forget_blob(context: NodeContext, params: EngineInstall) -> None:
    if context.paths.blobs.is_dir():
        wheels = [library.wheel for library in params.libraries]
        for wheel in wheels if params.wheel is None else [params.wheel, *wheels]:
            fs.remove_file(context.paths.blobs / wheel.sha256)


def remove_engine(context: NodeContext, params: EngineRemove) -> dict[str, Any]:
    """Raises RefusedError `engine.in_use` while a process of it runs."""
    home = _home(context, params.version)
    if not home.is_dir():
        return {"removed": False}
    running = processes_of(home)
    if running:
        raise RefusedError(
            "engine.in_use",
            f"llama.cpp {params.version} is running (pid {', '.join(map(str, running[:5]))})",
            place=str(home),
            next_step="remove or stop the deployments that use it first",
        )
    removed = fs.remove_tree(home)
    sweep_pythons(context.paths)
    for empty in (home.parent, home.parent.parent):
        try:
            empty.rmdir()
        except OSError:
            break
    return {"removed": removed}
