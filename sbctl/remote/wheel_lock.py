"""The lock of the node's libraries, read for one kind of host: which releases, with which digests, and which wheels its Python accepts.

Pure: text and facts in, requirements and tags out. A lock line without a digest, or with a version that is not pinned, is an error of the
build, so it is refused rather than skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags

from sbctl.base.errors import InputError, RefusedError

__all__ = ["LockedRelease", "WheelTarget", "read_lock"]

_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PYTHON: Final = re.compile(r"(\d{1,2})\.(\d{1,3})(?:\.\d{1,3}\S*)?")
_LIBC: Final = re.compile(r"(glibc|musl)-(\d{1,2})\.(\d{1,3})")
_LEGACY_MANYLINUX: Final = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_GLIBC_MINOR: Final = {"x86_64": 5, "i686": 5}
_ARCHES: Final = frozenset({"x86_64", "aarch64"})


@dataclass(frozen=True, slots=True)
class LockedRelease:
    """One pinned release and the digests of its files, of which any may be used."""

    project: str
    version: str
    sha256s: frozenset[str]


@dataclass(frozen=True, slots=True)
class WheelTarget:
    """What decides which wheel fits: machine, C library, Python."""

    arch: str
    libc: str
    """`glibc-2.36` or `musl-1.2`."""
    python_version: str
    """`3.11.2`; the patch level matters to markers."""

    def tags(self) -> list[Tag]:
        """Acceptable wheel tags, best first. Raises RefusedError `runtime.host_unsupported`."""
        python = _PYTHON.fullmatch(self.python_version)
        libc = _LIBC.fullmatch(self.libc)
        if python is None or libc is None or self.arch not in _ARCHES:
            raise RefusedError(
                "runtime.host_unsupported",
                f"there are no wheels for a host with {self.arch or 'an unknown architecture'}, "
                f"{self.libc or 'an unknown C library'} and Python {self.python_version or 'unknown'}",
                next_step="use a Linux host with x86_64 or aarch64, glibc or musl, and CPython 3.11 or newer",
            )
        version = (int(python[1]), int(python[2]))
        interpreter = f"cp{version[0]}{version[1]}"
        platforms = list(_platforms(self.arch, libc[1], int(libc[3])))
        return [
            *cpython_tags(version, abis=[interpreter], platforms=platforms),
            *compatible_tags(version, interpreter=interpreter, platforms=platforms),
        ]

    def marker_environment(self) -> dict[str, str]:
        """What environment markers of the lock are judged by."""
        match = _PYTHON.fullmatch(self.python_version)
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python_version,
            "os_name": "posix",
            "platform_machine": self.arch,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python_version,
            "python_version": f"{match[1]}.{match[2]}" if match else self.python_version,
            "sys_platform": "linux",
        }


def _platforms(arch: str, libc: str, minor: int) -> Iterator[str]:
    if libc == "musl":
        for level in range(minor, -1, -1):
            yield f"musllinux_1_{level}_{arch}"
    else:
        for level in range(minor, _OLDEST_GLIBC_MINOR.get(arch, 17) - 1, -1):
            yield f"manylinux_2_{level}_{arch}"
            if level in _LEGACY_MANYLINUX:
                yield f"{_LEGACY_MANYLINUX[level]}_{arch}"
    yield f"linux_{arch}"


def read_lock(text: str, target: WheelTarget) -> list[LockedRelease]:
    """The releases that `target` needs, in the order of the file. Raises InputError `runtime.lock_invalid`."""
    environment = target.marker_environment()
    releases = []
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.partition(" #")[0].strip()
        if not stripped or stripped.startswith("#"):
            continue
        hashes = frozenset(_HASH.findall(stripped))
        try:
            requirement = Requirement(stripped.partition("--hash")[0].strip())
        except InvalidRequirement as error:
            raise _invalid(stripped, "is not a requirement") from error
        pins = [(pin.operator, pin.version) for pin in requirement.specifier]
        if len(pins) != 1 or pins[0][0] != "==" or not hashes:
            raise _invalid(stripped, "does not pin one version and its digests")
        if requirement.marker is None or requirement.marker.evaluate(environment):
            releases.append(LockedRelease(requirement.name, pins[0][1], hashes))
    return releases


def _invalid(line: str, what: str) -> InputError:
    return InputError(
        "runtime.lock_invalid",
        f"a line of the node's lock {what}: {line[:80]}",
        place="requirements/runtime.txt",
        next_step="install this version of sbctl again: the file comes with it",
    )
