"""A Python that the operator sends: planned by name, judged against the host, sent once, and another archive is another program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from providers.runtime_wheels import python_problem, runs_on
from providers.standalone_python import standalone_label, standalone_problem
from sbctl.config.compiled import CompiledConfig, StandalonePython
from sbctl.node.python_archive import PythonArchive
from sbctl.node.snapshot import HostFacts, PythonFact, RuntimeState
from sbctl.plan.model import BlastRadius
from tests.simulators.provider_world import QUICKSTART, ProviderWorld

ARCHIVE = PythonArchive("3.12", "3.12.7", "x86_64", "glibc", "bin/python3.12")
SHA = "ab" * 32
OLD = (PythonFact(path="/usr/bin/python3.9", version="3.9.2"),)
SPEC = {"path": "/a/python.tar.gz", "sha256": SHA, "version": "3.12.7", "minor": "3.12", "arch": "x86_64"} | {
    "libc": "glibc",
    "program": "bin/python3.12",
}


def _with_python(config: CompiledConfig, wanted: StandalonePython | None) -> CompiledConfig:
    return replace(config, hosts={name: replace(host, standalone=wanted) for name, host in config.hosts.items()})


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (HostFacts(arch="x86_64", libc="glibc-2.31", pythons=OLD), None),
        (HostFacts(), None),
        (HostFacts(arch="aarch64", libc="glibc-2.31", pythons=OLD), "python.other_machine"),
        (HostFacts(arch="x86_64", libc="musl-1.2", pythons=OLD), "python.other_machine"),
        (HostFacts(arch="x86_64", libc="glibc-2.31"), "host.no_python"),
    ],
)
def test_it_is_judged_against_the_host(facts: HostFacts, code: str | None) -> None:
    problem = standalone_problem(facts, SPEC)
    assert (problem.code if problem else None) == code
    assert python_problem(facts, None, SPEC) == problem


def test_a_host_with_an_old_python_only_needs_one_that_is_sent() -> None:
    problem = python_problem(HostFacts(arch="x86_64", libc="glibc-2.31", pythons=OLD), None)
    assert problem is not None
    assert (problem.code, "found: 3.9.2" in problem.message) == ("host.no_python", True)
    assert "fleet.runtime.python" in problem.next_step


def test_a_version_on_another_python_is_not_the_one_that_is_wanted() -> None:
    runtime = RuntimeState(installed_versions=("0.1.0",), standalone_used={"0.1.0": SHA})
    assert runs_on(runtime, "0.1.0", SPEC)
    assert not runs_on(runtime, "0.1.0", None)
    assert not runs_on(runtime, "0.1.0", {**SPEC, "sha256": "cd" * 32})
    assert not runs_on(runtime, "0.2.0", SPEC)
    assert runs_on(RuntimeState(installed_versions=("0.1.0",)), "0.1.0", None)


def test_the_label_tells_version_and_archive_and_what_was_not_read_is_left_out() -> None:
    assert standalone_label(None) is None
    assert standalone_label(SPEC) == "3.12.7, standalone (abababababab)"
    assert standalone_label({**SPEC, "version": ""}) == "standalone (abababababab)"


def test_another_archive_installs_anew_and_restarts_and_so_does_going_back(tmp_path: Path) -> None:
    world = ProviderWorld(tmp_path, "local")
    config = world.configure(QUICKSTART)
    first, second = (StandalonePython("/a/python.tar.gz", sha, ARCHIVE) for sha in (SHA, "cd" * 32))
    for wanted, labels in (
        (first, None),
        (first, ()),
        (second, ("3.12.7, standalone (abababababab)", "3.12.7, standalone (cdcdcdcdcdcd)")),
        (None, ("3.12.7, standalone (cdcdcdcdcdcd)", None)),
    ):
        world.config = _with_python(config, wanted)
        plan = world.plan()
        change = next(each for each in plan.changes if each.address.kind == "runtime")
        if labels is None:
            assert change.notes[0] == "python 3.12.7, standalone (abababababab), sent to the host"
        elif not labels:
            assert change.action == "no-op"
        else:
            assert [(leaf.before, leaf.after) for leaf in change.leaves if leaf.path == "python"] == [labels]
            assert [step.method for step in change.steps] == ["runtime.install", "runtime.activate"]
            assert change.blast_radius is BlastRadius.RESTART
        assert world.apply().status == "applied"
        host = world.host("local")
        assert list(host.pythons.values()) == ([] if wanted is None else [wanted.sha256])
