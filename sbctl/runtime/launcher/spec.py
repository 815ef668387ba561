"""What the runtime asks to be started, read with suspicion: exact keys, exact types, plain words, a program that root vouches for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sbctl.base.display import display_safe
from sbctl.base.errors import RefusedError
from sbctl.base.ids import ID_RE
from sbctl.engines.model import LAUNCHER_NAME, LIBRARIES_NAME, PROGRAM_PATH
from sbctl.runtime.launcher.llama_arguments import Bound, refused_argument
from sbctl.runtime.launcher.site import ENGINE_SOCKETS, Site, engine_socket
from sbctl.runtime.launcher.trusted_path import why_untrusted

__all__ = ["TOKEN_RE", "UNIT_RE", "EngineSpec", "machine_bytes", "read_spec", "token_of", "unit_of", "unit_pattern"]

TOKEN_RE: Final = re.compile(r"[0-9a-f]{16}")
UNIT_RE: Final = re.compile(
    r"sbctl-engine-(?P<deployment>[A-Za-z0-9._-]{1,64})-g[0-9]{1,10}-r(?P<replica>[0-9]{1,10})-(?P<token>[0-9a-f]{16})\.service"
)

_WORD: Final = re.compile(r"[A-Za-z0-9_./@:+,=-]{1,4096}")
"""Nothing that systemd, a shell or a line of a unit reads as anything but itself: no space, %, $, quote, backslash or control character."""
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63}")
_DEVICE: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,100}")
_KEYS: Final = frozenset(
    {"deployment", "generation", "replica", "token", "argv", "env", "unix_path", "port", "memory_bytes"}
)
_MAX_ARGUMENTS: Final = 256
_SHOWN_CHARS: Final = 64
_PASSED: Final = frozenset({"LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"})
_FIXED: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - its own, by PrivateTmp
    "TMPDIR": "/tmp",  # noqa: S108
}
_FIRST_PORT: Final = 1024
_MEMORY_LEAST_BYTES: Final = 2**26
_MEMORY_OF_MACHINE: Final = 0.9
"""Whoever says no ceiling gets this part of the machine: no engine may have all of it."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine that may be started as it is. `env` is its whole environment."""

    deployment: str
    generation: int
    replica: int
    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unix_path: Path | None
    port: int | None
    memory_bytes: int
    """Beyond it the kernel ends the engine, and it alone."""
    weights: tuple[Path, ...]
    kind: Literal["wheel", "binary"]

    @property
    def unit(self) -> str:
        return unit_of(self.deployment, self.generation, self.replica, self.token)


def unit_of(deployment: str, generation: int, replica: int, token: str) -> str:
    """The unit's name: readable, and unique by its token, which is drawn anew for every start."""
    return f"sbctl-engine-{deployment[:_SHOWN_CHARS]}-g{generation}-r{replica}-{token}.service"


def token_of(unit: str) -> str:
    """The token in a unit's name. Raises RefusedError `launcher.refused` for a unit that is no engine of ours."""
    found = UNIT_RE.fullmatch(unit)
    if found is None:
        raise _refused("unit", f"{display_safe(unit, max_chars=128)} is no engine of ours")
    return found["token"]


def unit_pattern(deployment: str | None) -> str:
    """For systemd: every engine unit, or those of one deployment; of a long name only the beginning tells."""
    return "sbctl-engine-*" if deployment is None else f"sbctl-engine-{deployment[:_SHOWN_CHARS]}-g*"


def read_spec(document: object, site: Site, *, sockets: Path = ENGINE_SOCKETS, owner: int = 0) -> EngineSpec:
    """Raises RefusedError `launcher.refused`, its place the field. `owner` may own programs beside root (tests)."""
    if not isinstance(document, dict) or set(document) != _KEYS:
        raise _refused("spec", "it does not have exactly the fields of a start")
    deployment = _word(document, "deployment", ID_RE)
    token = _word(document, "token", TOKEN_RE)
    unix_path, port = _address(document, token, sockets)
    argv = _words(document["argv"], "argv")
    home, flags = _program(argv, site, owner)
    bound = Bound(deployment, unix_path, port, site.weights)
    if (problem := refused_argument(flags, bound)) is not None:
        raise _refused("argv", problem)
    env = _environment(document["env"], home, owner)
    _check_devices(env.get("CUDA_VISIBLE_DEVICES"), flags)
    return EngineSpec(
        deployment,
        _whole(document, "generation", 0, 10**10 - 1),
        _whole(document, "replica", 0, 10**6),
        token,
        argv,
        env,
        unix_path,
        port,
        _ceiling(document, machine_bytes()),
        site.weights,
        "wheel" if home is not None and argv[1:3] == ("-I", "-B") else "binary",
    )


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _ceiling(document: Mapping[str, Any], of_machine: int) -> int:
    if document["memory_bytes"] is None:
        return int(of_machine * _MEMORY_OF_MACHINE)
    return _whole(document, "memory_bytes", _MEMORY_LEAST_BYTES, of_machine)


def _program(argv: tuple[str, ...], site: Site, owner: int) -> tuple[Path | None, tuple[str, ...]]:
    """The home of an engine of ours (None for a program that root listed) and the engine's own arguments."""
    program = Path(argv[0])
    files: tuple[Path, ...]
    home: Path | None
    if str(program) != argv[0]:
        raise _refused("argv", f"{argv[0][:128]} is not a plain path")
    if program in site.programs:
        files, home, flags = (program,), None, argv[1:]
    else:
        home = _home(program, site)
        if program == home / PROGRAM_PATH:
            files, flags = (program,), argv[1:]
        elif argv[1:4] == ("-I", "-B", str(home / LAUNCHER_NAME)):
            files, flags = (program, home / LAUNCHER_NAME), argv[4:]
        else:
            raise _refused("argv", "a wheel of ours is started by its own launcher script")
    for file in files:
        if (problem := why_untrusted(file, owner=owner)) is not None:
            raise _refused("argv", f"the program is not safe to start: {problem}")
    return home, flags


def _home(program: Path, site: Site) -> Path:
    """`<engines>/llama_cpp/<version>` of its `bin/python` (a wheel) or `bin/llama-server` (a release)."""
    home = program.parent.parent
    ours = program in (home / "bin" / "python", home / PROGRAM_PATH)
    exact = ours and home.parent == site.engines / "llama_cpp"
    if not exact or _VERSION.fullmatch(home.name) is None:
        raise _refused("argv", f"{str(program)[:128]} is no engine of ours, and root has not listed it")
    return home


def _address(document: Mapping[str, Any], token: str, sockets: Path) -> tuple[Path | None, int | None]:
    path, port = document["unix_path"], document["port"]
    if (path is None) == (port is None):
        raise _refused("unix_path", "an engine listens on a UNIX socket or on a loopback port")
    if path is None:
        return None, _whole(document, "port", _FIRST_PORT, 65_535)
    expected = engine_socket(token, sockets)
    if path != str(expected):
        raise _refused("unix_path", f"an engine's socket is {expected}")
    return expected, None


def _environment(value: object, home: Path | None, owner: int) -> dict[str, str]:
    if not isinstance(value, dict) or not set(value) <= _PASSED:
        raise _refused("env", f"only {', '.join(sorted(_PASSED))} may be set")
    given = dict(zip(value, _words(list(value.values()), "env", least=0), strict=True))
    libraries = given.get("LD_LIBRARY_PATH")
    if libraries is not None and home is not None and libraries not in (str(home / LIBRARIES_NAME), str(home / "bin")):
        raise _refused("env", "LD_LIBRARY_PATH names another directory than the engine's own")
    if libraries is not None and home is None:
        for directory in libraries.split(":"):
            if not directory.startswith("/") or why_untrusted(Path(directory), owner=owner, is_directory=True):
                raise _refused("env", f"{directory[:128]} of LD_LIBRARY_PATH can be written by others")
    return {**given, **_FIXED}


def _check_devices(given: str | None, flags: tuple[str, ...]) -> None:
    """By their ids alone, each once; as many as the model is split over."""
    if given is None:
        return
    devices = given.split(",")
    if not all(_DEVICE.fullmatch(device) for device in devices) or len(set(devices)) != len(devices):
        raise _refused("env", "CUDA_VISIBLE_DEVICES lists devices by their ids (GPU-…), each once")
    parts = flags[flags.index("--tensor-split") + 1].count(",") + 1 if "--tensor-split" in flags else 1
    if parts != len(devices):
        raise _refused("env", f"CUDA_VISIBLE_DEVICES lists {len(devices)} devices, and the model is split over {parts}")


def _words(value: object, field: str, *, least: int = 1) -> tuple[str, ...]:
    if not isinstance(value, list) or not least <= len(value) <= _MAX_ARGUMENTS:
        raise _refused(field, "it is not a list of words")
    for word in value:
        if not isinstance(word, str) or _WORD.fullmatch(word) is None:
            raise _refused(field, f"{display_safe(str(word), max_chars=64)!r} is not a plain word")
    return tuple(value)


def _word(document: Mapping[str, Any], field: str, pattern: re.Pattern[str]) -> str:
    value = document[field]
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise _refused(field, f"{display_safe(str(value), max_chars=64)!r} does not have its form")
    return value


def _whole(document: Mapping[str, Any], field: str, low: int, high: int) -> int:
    value = document[field]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _refused(field, f"it is not a whole number from {low} to {high}")
    return value


def _refused(field: str, why: str) -> RefusedError:
    return RefusedError(
        "launcher.refused",
        f"the engine launcher refuses this: {why}",
        place=field,
        next_step="run sbctl apply, which lists what may be started; if it stays, this is a fault of the runtime",
    )
