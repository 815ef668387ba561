"""llama.cpp's own releases, and its source for CUDA: files by digest, chosen for a machine before anything is fetched.

Digests are those that SBproxy publishes and checks ("Managed engines, llama.cpp"); one that is not known here is never guessed, a user may
name it (`engines.llama_cpp.sha256`). What runs on macOS, Vulkan and CUDA was not tried on hardware.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import EngineError
from sbctl.base.limits import MIB
from sbctl.engines.model import Acceleration

__all__ = [
    "ARCHIVE_MAX_BYTES",
    "LLAMA_CPP_RELEASE_DEFAULT",
    "ArchivePin",
    "Machine",
    "archive_pin",
    "build_name",
    "release_tag",
    "release_versions",
]

ARCHIVE_MAX_BYTES: Final = 512 * MIB
LLAMA_CPP_RELEASE_DEFAULT: Final = "b9905"
_RELEASE: Final = "https://github.com/ggml-org/llama.cpp/releases/download/{tag}/{filename}"
_SOURCE: Final = "https://github.com/ggml-org/llama.cpp/archive/refs/tags/{tag}.tar.gz"
_TAG: Final = re.compile(r"b[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides which file runs on a host. `os_version` is macOS's own; empty elsewhere. `libc` as the host's facts say it."""

    system: str
    arch: str
    libc: str = ""
    os_version: str = ""


@dataclass(frozen=True, slots=True)
class ArchivePin:
    """One archive, by digest. `is_source`: it is built on the host. `installed_bytes` is an upper bound for the disk check."""

    tag: str
    filename: str
    url: str
    sha256: str
    acceleration: Acceleration
    is_source: bool = False
    size_bytes: int | None = None
    installed_bytes: int = 1024 * MIB


@dataclass(frozen=True, slots=True)
class _Asset:
    tag: str
    name: str
    sha256: str
    acceleration: Acceleration
    least_macos: tuple[int, ...] = ()


_ASSETS: Final = (
    _Asset("b9905", "macos-arm64", "0d3deb02fd7912c8ef360fa33b3b4a8c97967a3ac703c0ed7d5edd3680723ea8", "metal", (26, 0)),
    _Asset("b9905", "macos-x64", "5910cec4ce883d0ddef39974a54a5c9569c4c8b3d13b5e79dfcb32ffda19e44e", "cpu", (13, 3)),
    _Asset("b9905", "ubuntu-x64", "69f1496c1eda919097668db49e529819e4eda9e8e3d504f90c680fed3587f5b0", "cpu"),
    _Asset("b9905", "ubuntu-vulkan-x64", "81492d7844bcb40c4c025b826dced6b3faa6e484863482d6bd255c84db53bd55", "vulkan"),
    _Asset("b9415", "macos-arm64", "edf417cd8dd148fd423ea758953caa43376df98d8f027b7748ea0399a9a8023f", "metal", (14, 0)),
    _Asset("b9415", "macos-x64", "7c07ab8bb59e249340ed15afe03d5f164521242942a406661d6c499efc186a84", "cpu", (13, 3)),
)  # fmt: skip
"""Newest first."""
_SOURCES: Final[Mapping[str, str]] = {"b9905": "6324bf83de76623657129265a4fe14fabdf42b93b45d0647af1b8aa723ff08e5"}
"""Tag → digest of its source archive, commit 024c46ae4e375f20cf51bd7dbaed445f1b02675e."""
_NAMES: Final[Mapping[tuple[str, str, str], str]] = {
    ("Linux", "x86_64", "cpu"): "ubuntu-x64",
    ("Linux", "x86_64", "vulkan"): "ubuntu-vulkan-x64",
    ("Darwin", "arm64", "metal"): "macos-arm64",
    ("Darwin", "x86_64", "cpu"): "macos-x64",
}
_OTHERWISE: Final = "use launch: wheel, or install llama-server on this host and name its path"


def release_versions() -> tuple[str, ...]:
    """Tags with a pinned file for some machine, newest first."""
    return tuple(dict.fromkeys(asset.tag for asset in _ASSETS))


def release_tag(version: str) -> str:
    """llama.cpp's tag of a build that is named by its tag or by its number alone: `b9905` for `9905`."""
    return f"b{version}" if version.isascii() and version.isdigit() else version


def build_name(version: str, acceleration: Acceleration) -> str:
    """What an installed build is called: two of one tag for different devices stand beside each other."""
    tag = release_tag(version)
    return tag if acceleration in ("cpu", "metal") else f"{tag}+{acceleration}"


def archive_pin(
    version: str | None, machine: Machine, acceleration: Acceleration = "cpu", *, sha256: str | None = None
) -> ArchivePin:
    """The file for a machine; without a version the newest that it can load. Decided before anything is fetched.

    `sha256` is the user's own digest for a tag that has no pin. Raises EngineError `engine.not_pinned`, `engine.incompatible`.
    """
    version = None if version is None else release_tag(version)
    if version is not None and _TAG.fullmatch(version) is None:
        raise _not_pinned(
            f"{version[:64]!r} is not the tag of a llama.cpp release, such as {LLAMA_CPP_RELEASE_DEFAULT}"
        )
    if acceleration == "cuda":
        return _source(version or LLAMA_CPP_RELEASE_DEFAULT, machine, sha256)
    name = _NAMES.get((machine.system, machine.arch, acceleration))
    if name is None or (machine.system == "Linux" and machine.libc and not machine.libc.startswith("glibc")):
        what = f"{machine.system} on {machine.arch}" + (f" with {machine.libc}" if machine.libc else "")
        raise EngineError(
            "engine.incompatible", f"llama.cpp has no pinned release for {acceleration} on {what}", next_step=_OTHERWISE
        )
    own = _version(machine.os_version)
    fitting = [asset for asset in _ASSETS if asset.name == name and version in (None, asset.tag)]
    loadable = [asset for asset in fitting if not asset.least_macos or not own or own >= asset.least_macos]
    # A tag that the user names wins over what the system is known to load.
    chosen = next(iter(fitting if version is not None else loadable), None)
    if sha256 is not None and version is not None:
        return _release(version, name, sha256, acceleration)
    if chosen is not None:
        return _release(chosen.tag, name, chosen.sha256, acceleration)
    if fitting:
        least = ".".join(map(str, min(asset.least_macos for asset in fitting)))
        raise EngineError(
            "engine.incompatible",
            f"the pinned releases of llama.cpp need macOS {least}, and this is {machine.os_version}",
            next_step=_OTHERWISE,
        )
    raise _not_pinned(f"llama.cpp {version} has no pinned release for {name}")


def _release(tag: str, name: str, sha256: str, acceleration: Acceleration) -> ArchivePin:
    filename = f"llama-{tag}-bin-{name}.tar.gz"
    return ArchivePin(tag, filename, _RELEASE.format(tag=tag, filename=filename), sha256, acceleration)


def _source(tag: str, machine: Machine, sha256: str | None) -> ArchivePin:
    if (machine.system, machine.arch) != ("Linux", "x86_64"):
        raise EngineError(
            "engine.incompatible",
            f"llama.cpp is built for CUDA on Linux x86_64 only, and this is {machine.system} on {machine.arch}",
            next_step=_OTHERWISE,
        )
    digest = sha256 or _SOURCES.get(tag)
    if digest is None:
        raise _not_pinned(f"the source of llama.cpp {tag} has no pinned digest")
    url = _SOURCE.format(tag=tag)
    return ArchivePin(tag, f"llama.cpp-{tag}.tar.gz", url, digest, "cuda", is_source=True, installed_bytes=6144 * MIB)


def _version(text: str) -> tuple[int, ...]:
    numbers = re.findall(r"[0-9]+", text)
    return tuple(int(number) for number in numbers[:3])


def _not_pinned(message: str) -> EngineError:
    return EngineError(
        "engine.not_pinned",
        message,
        next_step=f"use one of {', '.join(release_versions())}, give its digest as engines.llama_cpp.sha256, or use launch: wheel",
    )
