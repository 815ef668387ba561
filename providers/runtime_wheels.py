"""How the runtime gets onto a host: on which Python, its wheels by digest, and one install from them, offline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from providers.comparison import Blocked, Call, Comparison
from providers.sending import put_files, stop_if_cancelled
from providers.standalone_python import send_standalone, standalone_problem
from sbctl import __version__
from sbctl.base.digests import sha256_file
from sbctl.base.errors import HostError, RefusedError
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.node.messages import Method, RuntimeInstall, WheelFile
from sbctl.node.snapshot import HostFacts, PythonFact, RuntimeState, is_new_enough
from sbctl.provider import PerformContext

__all__ = [
    "choose_python",
    "delivery_problem",
    "install_call",
    "install_runtime",
    "python_problem",
    "runs_on",
]

_VERSION_RE: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_INSTALL_DEADLINE_S: Final = 900.0


def _version(python: PythonFact) -> tuple[int, ...]:
    match = _VERSION_RE.match(python.version)
    return tuple(int(part or 0) for part in match.groups()) if match else (0, 0, 0)


def choose_python(facts: HostFacts, wanted_path: str | None) -> PythonFact:
    """The interpreter for our programs: the one that sb.yml names, else the oldest that is new enough, which locked wheels fit best.

    Raises RefusedError `host.no_python`.
    """
    fit = [python for python in facts.pythons if is_new_enough(python.version)]
    if wanted_path is not None:
        named = next((python for python in fit if python.path == wanted_path), None)
        # A path outside the usual places is not in the facts; the host checks it when it installs.
        return named or PythonFact(path=wanted_path, version=fit[0].version if fit else "3.11")
    if not fit:
        have = ", ".join(python.version for python in facts.pythons) or "none"
        raise RefusedError(
            "host.no_python",
            f"this host has no Python 3.11 or newer (found: {have})",
            next_step="install python3.11 or newer on the host, or send one: fleet.runtime.python: {path, sha256}",
        )
    return min(fit, key=lambda python: (_version(python), python.path))


def python_problem(
    facts: HostFacts, wanted_path: str | None, standalone: Mapping[str, Any] | None = None
) -> Blocked | None:
    """Why our programs cannot be installed on this host; None when they can, or when nothing is known of the host."""
    if not facts.arch:
        return None
    if standalone is not None:
        return standalone_problem(facts, standalone)
    try:
        choose_python(facts, wanted_path)
    except RefusedError as error:
        return Blocked.by(error)
    return None


def runs_on(runtime: RuntimeState, version: str, standalone: Mapping[str, Any] | None) -> bool:
    """Whether a version is installed, on the standalone Python that is wanted or on one of the host."""
    wanted = None if standalone is None else standalone["sha256"]
    return version in runtime.installed_versions and runtime.standalone_used.get(version) == wanted


def delivery_problem(comparison: Comparison, spec: Mapping[str, Any]) -> Blocked | None:
    """What keeps this version of the runtime from being delivered; None where it is there already, or can be."""
    version, standalone = spec["version"], spec.get("standalone")
    if comparison.bootstrapped and runs_on(comparison.snapshot.runtime, version, standalone):
        return None
    if version != __version__:
        return Blocked(
            "runtime.other_version",
            f"sb.yml pins runtime {version}, and this sbctl delivers {__version__}",
            f"use sbctl {version}, or set fleet.runtime.version to {__version__}",
        )
    return python_problem(comparison.snapshot.host, spec["python"], standalone)


def install_call(version: str, spec: Mapping[str, Any]) -> Call:
    """`spec` says on which Python."""
    return Call(
        Method.RUNTIME_INSTALL,
        {"version": version, "python": spec["python"], "standalone": spec.get("standalone")},
        f"install runtime {version}",
        deadline_s=_INSTALL_DEADLINE_S,
    )


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
    standalone, facts = params.get("standalone"), found.host
    if found.bootstrapped and runs_on(found.runtime, version, standalone):
        return {}
    if standalone is None:
        python = choose_python(facts, params["python"])
    else:
        problem = standalone_problem(facts, standalone)
        if problem is not None:
            raise RefusedError(problem.code, problem.message, next_step=problem.next_step)
        python = PythonFact(path="", version=standalone["minor"])
    wheels = context.services.wheelhouse(facts.arch, facts.libc, python.version, context.progress)
    listed = {name: WheelFile(filename=name, sha256=sha256_file(path)) for name, path in sorted(wheels.items())}
    uv = next((wheel for name, wheel in listed.items() if name.startswith("uv-")), None)
    if uv is None:
        raise HostError(
            "runtime.wheelhouse_incomplete",
            "the wheelhouse has no uv to install the runtime with",
            next_step="run the command again; if it stays so, empty the wheelhouse in sbctl's cache on this machine",
        )
    put_files(context, {listed[name].sha256: path for name, path in sorted(wheels.items())}, deadline_s=deadline_s)
    sent = None if standalone is None else send_standalone(context, found, standalone, deadline_s=deadline_s)
    stop_if_cancelled(context)
    request = RuntimeInstall(version=version, python=python.path, standalone=sent, uv=uv, wheels=tuple(listed.values()))
    return context.node.call(
        Method.RUNTIME_INSTALL,
        request.model_dump(mode="json"),
        secrets={},
        deadline_s=deadline_s,
        progress=context.progress,
    )
