"""Control groups of engines in both hierarchies, and what a SIGKILL that was not ours is put down to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbctl.runtime import engine_exit
from sbctl.runtime.engine_cgroup import EngineCgroup, effort_of_unit, make_cgroup, open_cgroup
from sbctl.runtime.engine_exit import EngineExit, OomEvidence

TOKEN = "0123456789abcdef"


@pytest.fixture
def group(tmp_path: Path) -> EngineCgroup:
    path = tmp_path / f"sbctl-engine-{TOKEN}"
    path.mkdir()
    (path / "cgroup.procs").write_text("12\n34\n")
    return EngineCgroup(path)


def test_a_group_is_made_below_our_own_where_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "4:memory:/a\n1:name=systemd:/s\n0::/b\n"
    assert make_cgroup(TOKEN, root=tmp_path, own=own) is None, "no hierarchy is there"
    made: list[Path] = []
    real = Path.mkdir

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        real(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.name.startswith("sbctl-engine-"):
            (self / "cgroup.procs").write_text("")
            made.append(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    (tmp_path / "unified" / "b").mkdir(parents=True)
    assert make_cgroup(TOKEN, root=tmp_path, own=own) == EngineCgroup(tmp_path / "unified/b" / f"sbctl-engine-{TOKEN}")
    (tmp_path / "memory" / "a").mkdir(parents=True)
    found = make_cgroup(TOKEN, root=tmp_path, own=own)
    assert found is not None
    assert found.path == tmp_path / "memory/a" / f"sbctl-engine-{TOKEN}", (
        "the hierarchy that knows of memory comes first"
    )
    assert make_cgroup(TOKEN, root=tmp_path, own=own) is None, "a group that is there is nobody's to take"


@pytest.mark.parametrize(
    ("there", "written"),
    [
        ((), None),
        (("memory.max",), {"memory.max": "5"}),
        (("memory.max", "memory.swap.max"), {"memory.max": "5", "memory.swap.max": "0"}),
        (
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            {"memory.limit_in_bytes": "5", "memory.memsw.limit_in_bytes": "5"},
        ),
    ],
)
def test_a_group_has_a_ceiling_where_its_hierarchy_knows_of_memory(
    group: EngineCgroup, there: tuple[str, ...], written: dict[str, str] | None
) -> None:
    for name in there:
        (group.path / name).write_text("max")
    assert group.limit_memory(5) is (written is not None)
    assert {name: (group.path / name).read_text().strip() for name in there} == (written or {})


@pytest.mark.parametrize(
    ("files", "effort"),
    [
        ({}, None),
        (
            {
                "system.slice/u/cpu.stat": "usage_usec 50000\nuser_usec 1\n",
                "system.slice/u/memory.current": "3145728\n",
            },
            8,
        ),
        ({"cpuacct/system.slice/u/cpuacct.usage": "70000000\n", "memory/system.slice/u/memory.usage_in_bytes": "x"}, 7),
    ],
)
def test_fault_51_a_unit_s_effort_is_read_from_its_group(
    tmp_path: Path, files: dict[str, str], effort: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert effort_of_unit("u", root=tmp_path) == effort


def test_a_record_names_its_own_group_only(group: EngineCgroup) -> None:
    assert open_cgroup(str(group.path), TOKEN) == group
    assert open_cgroup(str(group.path), "f" * 16) is None
    assert open_cgroup("/sys/fs/cgroup", TOKEN) is None
    assert group.pids() == {12, 34}
    assert EngineCgroup(Path("/gone")).pids() == frozenset()
    EngineCgroup(Path("/gone")).remove()


@pytest.mark.parametrize(
    ("in_group", "in_kernel", "cause"),
    [((0, 1), (0, 1), "oom"), ((1, 1), (0, 1), "signal"), ((None, None), (4, 5), "oom_likely"), ((None, None), (4, 4), "signal")],
)  # fmt: skip
def test_fault_81_a_sigkill_is_the_kernel_s_only_with_evidence(
    group: EngineCgroup,
    monkeypatch: pytest.MonkeyPatch,
    in_group: tuple[int | None, int | None],
    in_kernel: tuple[int, int],
    cause: str,
) -> None:
    def now(number: int) -> None:
        if in_group[number] is not None:
            (group.path / "memory.oom_control").write_text(
                f"oom_kill_disable 0\nunder_oom 0\noom_kill {in_group[number]}\n"
            )
        monkeypatch.setattr(engine_exit, "oom_kills_of_kernel", lambda: in_kernel[number])

    now(0)
    evidence = OomEvidence.before(group)
    now(1)
    assert EngineExit.told(-9, evidence).cause == cause
    assert EngineExit.told(-9, evidence, by_us=True).cause == "signal"
    assert EngineExit.told(0, evidence).cause == "exit"


@pytest.mark.skipif(os.geteuid() != 0, reason="making a control group needs root or a delegated one")
def test_the_kernel_s_own_groups() -> None:
    made = make_cgroup(TOKEN)
    if made is None:
        pytest.skip("this kernel lets us make no control group here")
    try:
        assert made.pids() == frozenset()
        assert made.oom_kills() in (0, None)
    finally:
        made.remove()
    assert not made.path.exists()
