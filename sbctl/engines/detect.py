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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sbctl.base import fs
from sbctl.base.display import display_safe
from sbctl.base.errors import EngineError, InputError
from sbctl.base.ids import DIGEST_RE
from sbctl.engines.build_tools import missing_tools
from sbctl.engines.driver import EngineSite, EngineWish
from sbctl.engines.flag_tables import flag_table, help_digest, help_flags
from sbctl.engines.model import (
    LAUNCHER_NAME,
    LIBRARIES_NAME,
    PROGRAM_PATH,
    Acceleration,
    Availability,
    EngineBuild,
    engine_environment,
)
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_pin
from sbctl.engines.release_pins import LLAMA_CPP_RELEASE_DEFAULT, archive_pin, build_name, release_tag

__all__ = [
    "PROGRAM_NAME",
    "RECORD_NAME",
    "ArchiveRecord",
    "EngineRecord",
    "InstalledRecord",
    "find_engine",
    "find_llama_server",
    "installed_build",
    "installed_engines",
    "listed_devices",
    "probe_llama_server",
]

RECORD_NAME: Final = "engine.json"
PROGRAM_NAME: Final = "llama-server"
"""Of a program of the user's, on PATH."""

_PROBE_DEADLINE_S: Final = 10.0
_RUN_IT: Final = "run it with --version yourself, or use launch: wheel"
_VERSION_MAX_BYTES: Final = 64 * 1024
_HELP_MAX_BYTES: Final = 1024 * 1024
_RECORD_MAX_BYTES: Final = 64 * 1024
_VERSION_RE: Final = re.compile(
    r"^version: (?:[0-9][0-9A-Za-z.+-]{0,32} \(build (?P<new>[0-9]{1,9})[,)]|b?(?P<old>[0-9]{1,9})(?: \([0-9a-zA-Z.-]{1,64}\))?\s*$)",
    re.MULTILINE,
)
"""`version: 9905 (024c46ae4)`, and since the program has a version of its own: `version: 0.6.0-dev (build 11434, commit 3fa1c2)`."""
_DEVICE_RE: Final = re.compile(r"^\s*(?P<kind>CUDA|Vulkan)[0-9]{1,3}: ", re.MULTILINE)
"""`  CUDA0: NVIDIA L4 (23034 MiB, 22500 MiB free)`"""
_SYSTEM_DIRECTORIES: Final = ("/usr/local/bin", "/usr/bin", "/bin")
_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}$"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: Literal[1] = 1
    engine: Literal["llama_cpp"]
    version: str = Field(pattern=_NAME_PATTERN)
    """Also the name of the directory."""
    sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}$")


class EngineRecord(_Record):
    """`engine.json` beside a wheel of ours: what was installed, by digest. Written last, so it means a whole installation."""

    launch: Literal["wheel"]
    wheel: str
    launcher_sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}$")
    python: str


class ArchiveRecord(_Record):
    """`engine.json` beside a release or a source build of ours. `sha256` is the archive's; `flags` are those that the program's help names."""

    launch: Literal["binary"]
    archive: str
    tag: str = Field(pattern=_NAME_PATTERN)
    acceleration: Literal["cpu", "cuda", "vulkan", "metal"]
    is_source: bool
    program_sha256: str = Field(pattern=f"^{DIGEST_RE.pattern}$")
    flags: tuple[str, ...] = Field(max_length=4096)


InstalledRecord = EngineRecord | ArchiveRecord


@lru_cache(maxsize=1)
def _records() -> TypeAdapter[InstalledRecord]:
    return TypeAdapter(InstalledRecord)


def installed_engines(engines: Path) -> tuple[InstalledRecord, ...]:
    """Engines of ours below `<opt>/engines`, by version; a directory without a readable record is no engine."""
    return tuple(_installed(engines))


def _installed(engines: Path) -> Iterator[InstalledRecord]:
    home = engines / "llama_cpp"
    try:
        names = sorted(os.listdir(home))
    except OSError:
        return
    for name in names:
        try:
            text = fs.read_bounded(home / name / RECORD_NAME, max_bytes=_RECORD_MAX_BYTES)
            record = _records().validate_json(text)
        except (InputError, ValidationError):
            continue
        if record.version == name:
            yield record


def installed_build(engines: Path, record: InstalledRecord) -> EngineBuild:
    """How an engine of ours is started. A wheel: isolated from its user's environment, leaving no bytecode behind."""
    home = engines / "llama_cpp" / record.version
    if isinstance(record, ArchiveRecord):
        program = home / PROGRAM_PATH
        table = flag_table(record.tag)
        return EngineBuild(
            "llama_cpp", "binary", record.version, (str(program),), home,
            known_flags=frozenset(record.flags),
            libraries=program.parent, acceleration=record.acceleration,
            has_unix_sockets=table is not None and table.has_unix_sockets,
        )  # fmt: skip
    argv = (str(home / "bin" / "python"), "-I", "-B", str(home / LAUNCHER_NAME))
    libraries = home / LIBRARIES_NAME
    return EngineBuild(
        "llama_cpp", "wheel", record.version, argv, home,
        libraries=libraries if libraries.is_dir() else None, has_unix_sockets=True,
    )  # fmt: skip


def find_llama_server(search_path: str) -> Path | None:
    """The first executable `llama-server` in the absolute directories of a PATH and the system's own; never a relative one."""
    directories = [part for part in search_path.split(os.pathsep) if os.path.isabs(part)]
    for directory in dict.fromkeys((*directories, *_SYSTEM_DIRECTORIES)):
        program = Path(directory, PROGRAM_NAME)
        if program.is_file() and os.access(program, os.X_OK):
            return program
    return None


def probe_llama_server(program: Path, *, with_flags: bool = True, libraries: Path | None = None) -> EngineBuild:
    """Ask a program for its version and its flags. Raises EngineError `engine.probe_failed` when it does not answer as llama-server does.

    `libraries` is a directory where the loader looks first.

    `notes` of the build say when its version was never tried, or its help is not that of its version.
    """
    said = _ask((str(program), "--version"), _VERSION_MAX_BYTES, libraries)
    match = _VERSION_RE.search(said)
    if match is None:
        first_line = said.strip().partition("\n")[0]
        raise EngineError(
            "engine.probe_failed",
            f"{program} does not say a version as llama-server does: {display_safe(first_line[:200]) or 'it said nothing'}",
            place=str(program),
            next_step=_RUN_IT,
        )
    version = f"b{match['new'] or match['old']}"
    if not with_flags:
        return EngineBuild("llama_cpp", "binary", version, (str(program),), program, ours=False)
    flags = help_flags(_ask((str(program), "--help"), _HELP_MAX_BYTES, libraries))
    table = flag_table(version)
    as_tried = table is not None and table.help_digest == help_digest(flags)
    notes: tuple[str, ...] = ()
    if table is None:
        notes = (f"{version} was never tried with sbctl: it is started with the flags that its own help names",)
    elif not as_tried:
        notes = (
            f"{program} says it is {version} and does not help like it: only flags that its own help names are used",
        )
    return EngineBuild(
        "llama_cpp", "binary", version, (str(program),), program,
        known_flags=flags, ours=False, notes=notes, has_unix_sockets=as_tried,
    )  # fmt: skip


def listed_devices(program: Path, acceleration: Acceleration) -> int:
    """How many devices of a kind a llama-server says that it computes on. Raises EngineError `engine.probe_failed`."""
    said = _ask((str(program), "--list-devices"), _VERSION_MAX_BYTES, None)
    return sum(match["kind"].lower() == acceleration for match in _DEVICE_RE.finditer(said))


def _ask(argv: Sequence[str], max_bytes: int, libraries: Path | None) -> str:
    """Both streams of a short command, cut at `max_bytes`; its whole process group is gone afterwards."""
    env = engine_environment(os.environ, library_path=True)
    if libraries is not None:
        env["LD_LIBRARY_PATH"] = str(libraries)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(
            "engine.probe_failed",
            f"{argv[0]} cannot be started: {error.strerror}",
            place=argv[0],
            next_step=_RUN_IT,
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
                        "engine.probe_failed",
                        f"{argv[0]} gave no answer in {_PROBE_DEADLINE_S:.0f} s",
                        place=argv[0],
                        next_step=_RUN_IT,
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


def find_engine(wish: EngineWish, site: EngineSite) -> Availability:
    """Whether a wish can be had here, with its build, or what to do about it. Never raises; a program that misbehaves is `blocked`.

    A named path comes first, then what we installed, then PATH (unless a build for CUDA is asked for), then the pin.
    """
    if wish.launch == "wheel":
        return _find_wheel(wish.version or LLAMA_CPP_WHEEL_DEFAULT, site)
    if wish.path is not None:
        program = Path(wish.path)
        if not (program.is_absolute() and program.is_file() and os.access(program, os.X_OK)):
            return Availability("blocked", f"{program} is not an executable file", "correct engines.llama_cpp.path")
        return _probed(program, wish)
    name = build_name(wish.version or LLAMA_CPP_RELEASE_DEFAULT, wish.acceleration)
    record = next((known for known in installed_engines(site.engines) if known.version == name), None)
    if isinstance(record, ArchiveRecord):
        return Availability("available", build=installed_build(site.engines, record))
    on_path = None if wish.acceleration == "cuda" else find_llama_server(site.search_path)
    if on_path is not None:
        found = _probed(on_path, wish)
        if found.state == "available":
            return found
    return _acquirable(wish, site)


def _find_wheel(version: str, site: EngineSite) -> Availability:
    record = next((known for known in installed_engines(site.engines) if known.version == version), None)
    if isinstance(record, EngineRecord):
        return Availability("available", build=installed_build(site.engines, record))
    try:
        wheel_pin(version, site.machine.arch, site.machine.libc)
    except EngineError as error:
        return _refused(error)
    return Availability("acquirable", f"llama.cpp {version} is not installed here", "run sbctl apply to install it")


def _acquirable(wish: EngineWish, site: EngineSite) -> Availability:
    try:
        pin = archive_pin(wish.version, site.machine, wish.acceleration, sha256=wish.sha256)
    except EngineError as error:
        if find_llama_server(site.search_path) is None and wish.version is None:
            return Availability(
                "blocked", "there is no llama-server on PATH", "install it, name its path, or use launch: wheel"
            )
        return _refused(error)
    if pin.is_source and (lacking := missing_tools()):
        return Availability(
            "blocked",
            f"llama.cpp {pin.tag} is not here, and cannot be built for CUDA: {', '.join(lacking)} missing",
            "install what is missing on this host, or use acceleration: cpu",
        )
    what = "built from its source" if pin.is_source else f"installed from {pin.filename}"
    return Availability(
        "acquirable", f"llama.cpp {pin.tag} is not here; it can be {what}", "run sbctl apply to install it"
    )


def _refused(error: EngineError) -> Availability:
    state: Literal["incompatible", "blocked"] = "incompatible" if error.code == "engine.incompatible" else "blocked"
    return Availability(state, error.message, error.next_step or "use launch: wheel")


def _probed(program: Path, wish: EngineWish) -> Availability:
    """What nobody of us built is believed to be made for devices only when it lists one."""
    version = wish.version
    try:
        build = probe_llama_server(program)
        has_device = wish.acceleration == "cpu" or (
            "--list-devices" in (build.known_flags or ()) and listed_devices(program, wish.acceleration) > 0
        )
    except EngineError as error:
        return Availability("blocked", error.message, error.next_step or "use launch: wheel")
    if not has_device:
        return Availability(
            "blocked", f"{program} lists no device that it computes on by {wish.acceleration}",
            f"look at what {program} --list-devices says here; name a build made for {wish.acceleration}, or set acceleration: cpu",
        )  # fmt: skip
    build = replace(build, acceleration=wish.acceleration)
    if version is not None and build.version != release_tag(version):
        return Availability(
            "blocked", f"{program} is llama.cpp {build.version}, and {version} was asked for",
            "install that build, or name the version that is there",
        )  # fmt: skip
    return Availability("available", build=build)
