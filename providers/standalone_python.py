"""A Python that the operator sends to a host: as a part of a spec, as a line for the reader, judged against the host, and on its way there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from providers.comparison import Blocked
from providers.sending import put_files
from sbctl.config.compiled import CompiledHost
from sbctl.node.messages import StandalonePython
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.provider import PerformContext

__all__ = ["send_standalone", "standalone_label", "standalone_problem", "standalone_spec"]


def standalone_spec(host: CompiledHost) -> dict[str, Any] | None:
    """None where the host's own Python serves. What the archive holds is empty where two files are compared and none is read."""
    wanted = host.standalone
    if wanted is None:
        return None
    archive = wanted.archive
    return {
        "path": wanted.path,
        "sha256": wanted.sha256,
        "version": archive.version if archive is not None else "",
        "minor": archive.minor if archive is not None else "",
        "arch": archive.arch if archive is not None else "",
        "libc": archive.libc if archive is not None else "",
        "program": archive.program if archive is not None else "",
    }


def standalone_label(spec: Mapping[str, Any] | None) -> str | None:
    """`3.12.7, standalone (0f3c…)`, by which two are compared too."""
    if spec is None:
        return None
    return ", ".join(part for part in (spec["version"], f"standalone ({spec['sha256'][:12]})") if part)


def standalone_problem(facts: HostFacts, spec: Mapping[str, Any]) -> Blocked | None:
    """Why this Python cannot serve on this host; None when it can, or when nothing is known of the host."""
    if not facts.arch:
        return None
    other = "name one for this host: python: {path, sha256} of the host or of its group"
    if spec["arch"] != facts.arch:
        message = f"the standalone Python is built for {spec['arch']}, and this host is {facts.arch}"
        return Blocked("python.other_machine", message, other)
    if spec["libc"] and facts.libc and not facts.libc.startswith(spec["libc"]):
        message = f"the standalone Python is built for {spec['libc']}, and this host has {facts.libc}"
        return Blocked("python.other_machine", message, other)
    if not facts.pythons:
        return Blocked(
            "host.no_python",
            "this host has no Python at all, and one from 3.8 on is needed to receive the standalone one",
            "install the python3 of its distribution",
        )
    return None


def send_standalone(
    context: PerformContext, snapshot: NodeSnapshot, spec: Mapping[str, Any], *, deadline_s: float
) -> StandalonePython:
    """The archive is on the host, unpacked or as a blob. Raises InputError when the operator's file is not what was planned."""
    if spec["sha256"] not in snapshot.runtime.standalone_pythons:
        source = context.services.python_archive(spec["path"], spec["sha256"])
        put_files(context, {spec["sha256"]: source}, deadline_s=deadline_s)
    return StandalonePython(sha256=spec["sha256"], program=spec["program"])
