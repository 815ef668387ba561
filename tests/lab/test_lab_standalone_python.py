"""A Python that the operator sends: made of this machine's own as a relocatable tree, it runs the runtime of a lab host and goes with it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.digests import sha256_file
from sbctl.node.python_archive import inspect_python
from sbctl.remote.session import open_session
from tests.lab.fixture import Lab
from tests.lab.runtime_host import DEADLINE_S, LINEAGE, activation, await_healthy, call, install, no_progress

pytestmark = pytest.mark.lab

_LEFT_OUT = ("__pycache__", "test", "idlelib", "tkinter", "lib2to3")


def _system_python(directory: Path) -> Path:
    """The layout of an install_only build, of the system's Python."""
    program = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / program.name

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = member.name.split("/")
        return None if any(part in _LEFT_OUT or part.startswith("config-") for part in parts) else member

    archive = directory / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1, dereference=True) as opened:
        opened.add(program, f"python/bin/{program.name}")
        opened.inodes = {}  # type: ignore[attr-defined]  # a second name is a second file, not a hard link
        for path in sorted(library.rglob("*")):
            if path.is_file():
                opened.inodes = {}  # type: ignore[attr-defined]
                opened.add(path, f"python/lib/{path.relative_to(library.parent)}", filter=plain)
    return archive


def test_the_runtime_runs_from_the_python_that_was_sent_and_takes_it_along(lab: Lab, tmp_path: Path) -> None:
    host = lab.hosts[0]
    lab.pristine(host)
    archive = _system_python(tmp_path)
    sent = {"sha256": sha256_file(archive)}
    with archive.open("rb") as opened:
        sent["program"] = inspect_python(opened, str(archive)).program
    session = open_session("h", host.connection(), clock=SYSTEM_CLOCK)
    try:
        session.put(sent["sha256"], archive, deadline_s=DEADLINE_S, progress=no_progress)
        install(session, tmp_path, standalone=sent)
        call(session, "runtime.activate", activation())
        await_healthy(session, __version__)
        told = session.snapshot(DEADLINE_S)
        assert told.runtime.standalone_used == {__version__: sent["sha256"]}
        own = f"/opt/sbctl/python/{sent['sha256'][:12]}/{sent['program']}"
        assert host.ssh("readlink -f /proc/$(systemctl show -p MainPID --value sbctl-runtime)/exe").strip() == own
        assert own not in [python.path for python in told.host.pythons]
        call(session, "runtime.remove", {"lineage": LINEAGE})
        call(session, "host.unmark", {"lineage": LINEAGE})
        assert host.ssh("ls -d /opt/sbctl", check=False) == ""
    finally:
        session.close()
        lab.pristine(host)
