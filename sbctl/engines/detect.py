"""Which engines a host has: those we installed, by their record, and a `llama-server` on PATH or at a path, by asking it.

A foreign program is asked with an empty environment, a deadline and a cap on what it may say; its answer decides only which flags are
written, never what is executed.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs
from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError
from sbctl.base.ids import DIGEST_RE
from sbctl.engines.model import LAUNCHER_NAME, LIBRARIES_NAME, Availability, EngineBuild, engine_environment
from sbctl.engines.pins import wheel_versions

__all__ = [
    "RECORD_NAME",
    "EngineRecord",
    "find_engine",
    "find_llama_server",
    "installed_wheels",
    "probe_llama_server",
    "wheel_build",
]

RECORD_NAME: Final = "engine.json"

_PROBE_DEADLINE_S: Final = 10.0
_VERSION_MAX_BYTES: Final = 64 * 1024
_HELP_MAX_BYTES: Final = 1024 * 1024
_RECORD_MAX_BYTES: Final = 64 * 1024
_VERSION_RE: Final = re.compile(r"^version: b?([0-9]{1,9})(?: \(([0-9a-zA-Z.-]{1,64})\))?", re.MULTILINE)
_FLAG_RE: Final = re.compile(r"(?<![A-Za-z0-9-])--[a-z][a-z0-9-]*")
_SYSTEM_DIRECTORIES: Final = ("/usr/local/bin", "/usr/bin", "/bin")


class EngineRecord(BaseModel):
    """`engine.json` beside an engine of ours: what was installed, by digest. Written last, so it means a whole installation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: Literal[1] = 1
    engine: Literal["llama_cpp"]
    launch: Literal["wheel"]
    version: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$")
    wheel: str
    sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}$")
    launcher_sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}$")
    python: str


def installed_wheels(engines: Path) -> tuple[EngineRecord, ...]:
    """Engines of ours below `<opt>/engines`, by version; a directory without a readable record is no engine."""
    home = engines / "llama_cpp"
    try:
        names = sorted(os.listdir(home))
    except OSError:
        return ()
    found = []
    for name in names:
        try:
            text = fs.read_bounded(home / name / RECORD_NAME, max_bytes=_RECORD_MAX_BYTES)
            record = EngineRecord.model_validate_json(text)
        except (InputError, ValidationError):
            continue
        if record.version == name:
            found.append(record)
    return tuple(found)


def wheel_build(engines: Path, record: EngineRecord) -> EngineBuild:
    """How an installed wheel is started: isolated from its user's environment, leaving no bytecode behind."""
    home = engines / "llama_cpp" / record.version
    argv = (str(home / "bin" / "python"), "-I", "-B", str(home / LAUNCHER_NAME))
    libraries = home / LIBRARIES_NAME
    return EngineBuild(
        "llama_cpp", "wheel", record.version, argv, home, libraries=libraries if libraries.is_dir() else None
    )


def find_llama_server(search_path: str) -> Path | None:
    """The first executable `llama-server` in the absolute directories of a PATH and the system's own; never a relative one."""
    directories = [part for part in search_path.split(os.pathsep) if os.path.isabs(part)]
    for directory in dict.fromkeys((*directories, *_SYSTEM_DIRECTORIES)):
        program = Path(directory, "llama-server")
        if program.is_file() and os.access(program, os.X_OK):
            return program
    return None


def probe_llama_server(program: Path, *, with_flags: bool = True) -> EngineBuild:
    """Ask a program for its version and its flags. Raises EngineError `engine.probe_failed` when it does not answer as llama-server does."""
    said = _ask((str(program), "--version"), _VERSION_MAX_BYTES)
    match = _VERSION_RE.search(said)
    if match is None:
        raise EngineError(
            "engine.probe_failed",
            f"{program} does not say a version as llama-server does: {display_safe(said.strip()[:200]) or 'it said nothing'}",
            place=str(program),
            next_step="run it with --version yourself, or use launch: wheel",
        )
    flags = frozenset(_FLAG_RE.findall(_ask((str(program), "--help"), _HELP_MAX_BYTES))) if with_flags else None
    return EngineBuild("llama_cpp", "binary", f"b{match[1]}", (str(program),), program, known_flags=flags, ours=False)


def _ask(argv: Sequence[str], max_bytes: int) -> str:
    """Both streams of a short command, cut at `max_bytes`; its whole process group is gone afterwards."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=engine_environment(os.environ, library_path=True),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(
            "engine.probe_failed", f"{argv[0]} cannot be started: {error.strerror}", place=argv[0]
        ) from error
    deadline = time.monotonic() + _PROBE_DEADLINE_S
    collected = bytearray()
    assert process.stdout is not None
    with process, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while len(collected) < max_bytes:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise EngineError(
                        "engine.probe_failed", f"{argv[0]} gave no answer in {_PROBE_DEADLINE_S:.0f} s", place=argv[0]
                    )
                chunk = os.read(process.stdout.fileno(), min(65536, max_bytes - len(collected)))
                if not chunk:
                    break
                collected += chunk
        finally:
            _end_group(process)
    return collected.decode("utf-8", "replace")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def find_engine(
    *, launch: Literal["wheel", "binary"], version: str | None, path: str | None, engines: Path, search_path: str
) -> Availability:
    """Whether a policy's engine is there, with its build, or what to do about it. Never raises; a program that misbehaves is `blocked`."""
    if launch == "wheel":
        record = next((known for known in installed_wheels(engines) if known.version == version), None)
        if record is not None:
            return Availability("available", build=wheel_build(engines, record))
        if version in wheel_versions():
            return Availability(
                "acquirable", f"llama.cpp {version} is not installed here", "run sbctl apply to install it"
            )
        return Availability(
            "blocked", f"llama.cpp {version} has no pinned wheel", f"use one of {', '.join(wheel_versions())}"
        )
    program = Path(path) if path is not None else find_llama_server(search_path)
    if program is None:
        return Availability(
            "blocked", "there is no llama-server on PATH", "install it, name its path, or use launch: wheel"
        )
    if not (program.is_absolute() and program.is_file() and os.access(program, os.X_OK)):
        return Availability("blocked", f"{program} is not an executable file", "correct engines.llama_cpp.path")
    try:
        return Availability("available", build=probe_llama_server(program))
    except EngineError as error:
        return Availability("blocked", error.message, error.next_step or "use launch: wheel")
