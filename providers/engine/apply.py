"""Perform: send and install a wheel, look at a program of the host, remove."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from providers.comparison import result_of
from providers.engine.builds import builds_to_install, pin_for
from providers.engine.programs import find_program
from providers.runtime_wheels import choose_python
from providers.sending import put_files
from providers.standalone_python import send_standalone
from sbctl.base.errors import RefusedError
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Desired
from sbctl.engines.pins import LibraryPin, library_pins, wheel_pin
from sbctl.engines.release_pins import ArchivePin
from sbctl.node.messages import EngineArchive, EngineInstall, EngineRemove, LibraryFile, Method, WheelFile
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
    """What could not be known when the plan was made is read from the host now. Raises EngineError for a host without a pinned file."""
    params = step.params
    snapshot = context.node.snapshot(SNAPSHOT_DEADLINE_S)
    if "wish" in params:
        request = _archive_request(step, context, snapshot)
        if request is None:
            return {"digests": _known_digests(context), "program": _on_path(params, snapshot)}
    else:
        request = _wheel_request(step, context, snapshot)
    answer = context.node.call(
        step.method, request.model_dump(mode="json"), secrets={}, deadline_s=step.deadline_s, progress=context.progress
    )
    return {"digests": {**_known_digests(context), params["version"]: answer.get("digest")}}


def _archive_request(step: Step, context: PerformContext, snapshot: NodeSnapshot) -> EngineInstall | None:
    """None when a host that could not be asked before turns out to have the program on its PATH."""
    params = step.params
    if _on_path(params, snapshot) is not None:
        return None
    pin = ArchivePin(**params["archive"]) if params["archive"] is not None else None
    found = pin or pin_for(params["wish"], params["version"], snapshot.host)
    assert isinstance(found, ArchivePin)
    if params["delivery"] == "push":
        path = context.services.engine_archive(found.url, found.filename, found.sha256, context.progress)
        put_files(context, {found.sha256: path}, deadline_s=step.deadline_s)
    archive = {name: value for name, value in asdict(found).items() if name != "size_bytes"}
    return EngineInstall(
        engine=params["engine"],
        launch="binary",
        version=params["version"],
        archive=EngineArchive(**archive),
        delivery=params["delivery"],
    )


def _on_path(params: Mapping[str, Any], snapshot: NodeSnapshot) -> str | None:
    programs = _programs(params["engine"], snapshot)
    if not programs or builds_to_install(params["wish"], programs):
        return None
    return find_program(programs, None, params["wish"]["versions"]).found


def _wheel_request(step: Step, context: PerformContext, snapshot: NodeSnapshot) -> EngineInstall:
    params = step.params
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
    return EngineInstall(
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
    programs = _programs(step.params["engine"], context.node.snapshot(SNAPSHOT_DEADLINE_S))
    program = find_program(programs, step.params["path"], step.params["versions"])
    if program.blocked is not None:
        raise RefusedError(program.blocked.code, program.blocked.message, next_step=program.blocked.next_step)
    return {"program": program.found}


def _programs(engine: str, snapshot: NodeSnapshot) -> dict[str, str]:
    """Programs of the host, path → version."""
    return {
        found.path: found.version
        for found in snapshot.engines
        if found.engine == engine and not found.ours and found.launch == "binary"
    }


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of each build the digest that the host answered, now or when it was installed; of a program, which one was found."""
    digests: dict[str, Any] = {}
    for answer in results.values():
        digests |= {version: digest for version, digest in answer.get("digests", {}).items() if digest is not None}
    if desired.spec["launch"] == "binary":
        looked = result_of(results, Method.SNAPSHOT) or result_of(results, Method.ENGINE_INSTALL) or {}
        return {"program": looked.get("program"), **({"digests": digests} if digests else {})}
    return {"digests": {version: digests[version] for version in desired.spec["versions"] if version in digests}}
