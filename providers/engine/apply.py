"""Perform: send and install a wheel, look at a program of the host, remove."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.comparison import result_of
from providers.engine.programs import find_program
from providers.runtime_wheels import choose_python
from providers.sending import put_files
from providers.standalone_python import send_standalone
from sbctl.base.errors import RefusedError
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Desired
from sbctl.engines.pins import LibraryPin, library_pins, wheel_pin
from sbctl.node.messages import EngineInstall, EngineRemove, LibraryFile, Method, WheelFile
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["library_file", "perform", "record"]


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.ENGINE_INSTALL:
            return _install(step, context)
        case Method.SNAPSHOT:
            return _look(step, context)
        case _:
            remove = EngineRemove(engine=step.params["engine"], version=step.params["version"])
            context.node.call(
                step.method,
                remove.model_dump(mode="json"),
                secrets={},
                deadline_s=step.deadline_s,
                progress=context.progress,
            )
            return {"digests": _known_digests(context)}


def _install(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """What could not be known when the plan was made is read from the host now. Raises EngineError for a host without a wheel."""
    params = step.params
    snapshot = context.node.snapshot(SNAPSHOT_DEADLINE_S)
    wheel = _wheel(params, snapshot)
    libraries = tuple(library_file(pin) for pin in library_pins(snapshot.host.arch))
    if params["delivery"] == "push":
        wanted = [(params["project"], params["version"], wheel)]
        wanted += [(library.project, library.version, library.wheel) for library in libraries]
        files = {
            file.sha256: context.services.engine_wheel(project, version, file.filename, file.sha256, context.progress)
            for project, version, file in wanted
        }
        put_files(context, files, deadline_s=step.deadline_s)
    standalone = params.get("standalone")
    sent = None if standalone is None else send_standalone(context, snapshot, standalone, deadline_s=step.deadline_s)
    request = EngineInstall(
        engine=params["engine"],
        launch="wheel",
        project=params["project"],
        version=params["version"],
        wheel=wheel,
        libraries=libraries,
        python="" if sent is not None else choose_python(snapshot.host, params["python"]).path,
        standalone=sent,
        delivery=params["delivery"],
    )
    answer = context.node.call(
        step.method, request.model_dump(mode="json"), secrets={}, deadline_s=step.deadline_s, progress=context.progress
    )
    return {"digests": {**_known_digests(context), params["version"]: answer.get("digest")}}


def library_file(pin: LibraryPin) -> LibraryFile:
    """A pinned library as the node interface takes it."""
    return LibraryFile(
        name=pin.name,
        project=pin.project,
        version=pin.version,
        wheel=WheelFile(filename=pin.filename, sha256=pin.sha256),
        member=pin.member,
        sha256=pin.member_sha256,
    )


def _known_digests(context: PerformContext) -> Mapping[str, Any]:
    """Of the builds that stay as they were."""
    recorded = context.change.recorded
    return recorded.record.get("digests", {}) if recorded is not None else {}


def _wheel(params: Mapping[str, Any], snapshot: NodeSnapshot) -> WheelFile:
    planned = params["wheel"]
    if planned is not None:
        return WheelFile(filename=planned["filename"], sha256=planned["sha256"])
    pin = wheel_pin(params["version"], snapshot.host.arch, snapshot.host.libc)
    return WheelFile(filename=pin.filename, sha256=pin.sha256)


def _look(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Raises RefusedError `engine.missing`, `engine.other_version`: a fresh host could not be asked when the plan was made."""
    engines = context.node.snapshot(SNAPSHOT_DEADLINE_S).engines
    programs = {
        engine.path: engine.version
        for engine in engines
        if engine.engine == step.params["engine"] and not engine.ours and engine.launch == "binary"
    }
    program = find_program(programs, step.params["path"], step.params["versions"])
    if program.blocked is not None:
        raise RefusedError(program.blocked.code, program.blocked.message, next_step=program.blocked.next_step)
    return {"program": program.found}


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of each wanted build the digest that the host answered, now or when it was installed; of a program, which one was found."""
    if desired.spec["launch"] == "binary":
        return {"program": (result_of(results, Method.SNAPSHOT) or {}).get("program")}
    digests: dict[str, Any] = {}
    for answer in results.values():
        digests |= {version: digest for version, digest in answer.get("digests", {}).items() if digest is not None}
    return {"digests": {version: digests[version] for version in desired.spec["versions"] if version in digests}}
