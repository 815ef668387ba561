"""How files get onto a host: any by digest; the runtime's wheels by digest and then one install from them, offline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from providers.comparison import Blocked, Call, Comparison
from sbctl import __version__
from sbctl.base.digests import sha256_file
from sbctl.base.errors import HostError, InterruptedBySignal, RefusedError
from sbctl.base.file_slice import ByteSource
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.node.messages import Method, RuntimeInstall, WheelFile
from sbctl.node.snapshot import HostFacts, PythonFact
from sbctl.provider import PerformContext, Progress

__all__ = [
    "choose_python",
    "delivery_problem",
    "install_call",
    "install_runtime",
    "put_files",
    "python_problem",
    "stop_if_cancelled",
]

_OLDEST_PYTHON: Final = (3, 11)
_VERSION_RE: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_INSTALL_DEADLINE_S: Final = 900.0


def _version(python: PythonFact) -> tuple[int, ...]:
    match = _VERSION_RE.match(python.version)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)


def choose_python(facts: HostFacts, wanted_path: str | None) -> PythonFact:
    """The interpreter for our programs: the one that sb.yml names, else the oldest that is new enough, which locked wheels fit best.

    Raises RefusedError `host.no_python`.
    """
    fit = [python for python in facts.pythons if _version(python) >= _OLDEST_PYTHON]
    if wanted_path is not None:
        named = next((python for python in fit if python.path == wanted_path), None)
        # A path outside the usual places is not in the facts; the host checks it when it installs.
        return named or PythonFact(path=wanted_path, version=fit[0].version if fit else "3.11")
    if not fit:
        have = ", ".join(python.version for python in facts.pythons) or "none"
        raise RefusedError(
            "host.no_python",
            f"this host has no Python 3.11 or newer (found: {have})",
            next_step="install python3.11 or newer on the host",
        )
    return min(fit, key=lambda python: (_version(python), python.path))


def python_problem(facts: HostFacts, wanted_path: str | None) -> Blocked | None:
    """Why our programs cannot be installed on this host; None when they can, or when nothing is known of the host."""
    if not facts.arch:
        return None
    try:
        choose_python(facts, wanted_path)
    except RefusedError as error:
        return Blocked.by(error)
    return None


def delivery_problem(comparison: Comparison, version: str, python: str | None) -> Blocked | None:
    """What keeps this version of the runtime from being delivered; None where it is there already, or can be."""
    if comparison.bootstrapped and version in comparison.snapshot.runtime.installed_versions:
        return None
    if version != __version__:
        return Blocked(
            "runtime.other_version",
            f"sb.yml pins runtime {version}, and this sbctl delivers {__version__}",
            f"use sbctl {version}, or set fleet.runtime.version to {__version__}",
        )
    return python_problem(comparison.snapshot.host, python)


def install_call(version: str, python: str | None) -> Call:
    return Call(
        Method.RUNTIME_INSTALL,
        {"version": version, "python": python},
        f"install runtime {version}",
        deadline_s=_INSTALL_DEADLINE_S,
    )


def stop_if_cancelled(context: PerformContext) -> None:
    """Between two pieces of work: what is on the host stays and is found again. Raises InterruptedBySignal."""
    if context.cancelled():
        raise InterruptedBySignal("apply.interrupted", "stopped between two files", next_step="run apply again")


def put_files(context: PerformContext, files: Mapping[str, ByteSource], *, deadline_s: float) -> None:
    """Leave files on the host under their digests (`files`: digest → source); progress is over all of them together."""
    sizes = {digest: path.stat().st_size for digest, path in files.items()}
    total = sum(sizes.values())
    done = 0
    for digest, path in files.items():
        stop_if_cancelled(context)
        context.node.put(digest, path, deadline_s=deadline_s, progress=_within(context.progress, done, total))
        done += sizes[digest]
        context.progress(done, total)


def _within(progress: Progress, before: int, total: int) -> Progress:
    def report(done: int, _: int | None) -> None:
        progress(before + done, total)

    return report


def install_runtime(params: Mapping[str, Any], context: PerformContext, *, deadline_s: float) -> Mapping[str, Any]:
    """Deliver the wheels of this sbctl and have the host install them. Raises RefusedError `runtime.other_version`, `host.no_python`."""
    version = str(params["version"])
    if version != __version__:
        raise RefusedError(
            "runtime.other_version",
            f"this sbctl delivers runtime {__version__}, not {version}",
            next_step=f"use sbctl {version}, or set fleet.runtime.version to {__version__}",
        )
    found = context.node.snapshot(SNAPSHOT_DEADLINE_S)
    if found.bootstrapped and version in found.runtime.installed_versions:
        return {}
    facts = found.host
    python = choose_python(facts, params["python"])
    wheels = context.services.wheelhouse(facts.arch, facts.libc, python.version, context.progress)
    listed = {name: WheelFile(filename=name, sha256=sha256_file(path)) for name, path in sorted(wheels.items())}
    uv = next((wheel for name, wheel in listed.items() if name.startswith("uv-")), None)
    if uv is None:
        raise HostError("runtime.wheelhouse_incomplete", "the wheelhouse has no uv to install the runtime with")
    put_files(context, {listed[name].sha256: path for name, path in sorted(wheels.items())}, deadline_s=deadline_s)
    stop_if_cancelled(context)
    request = RuntimeInstall(version=version, python=python.path, uv=uv, wheels=tuple(listed.values()))
    return context.node.call(
        Method.RUNTIME_INSTALL,
        request.model_dump(mode="json"),
        secrets={},
        deadline_s=deadline_s,
        progress=context.progress,
    )
