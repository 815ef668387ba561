"""The node's lock is read for the kind of host that installs it: its wheels, its markers, and nothing that is not pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.resources import data_path
from sbctl.remote.wheel_lock import WheelTarget, read_lock

DEBIAN_12 = WheelTarget("x86_64", "glibc-2.36", "3.11.2")
HASH = "--hash=sha256:" + "a" * 64
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_the_shipped_lock_has_everything_a_node_needs_and_nothing_of_the_command_line() -> None:
    releases = read_lock(data_path("requirements", "runtime.txt").read_text(), DEBIAN_12)
    names = {canonicalize_name(release.project) for release in releases}
    assert {"aiohttp", "pydantic", "cryptography", "uv", "rfc8785", "psutil", "jinja2", "structlog"} <= names
    assert not names & {"typer", "rich", "paramiko", "httpx", "deepdiff", "jsonschema", "platformdirs"}


def test_what_the_lock_is_made_from_is_a_part_of_the_projects_dependencies() -> None:
    declared = {
        canonicalize_name(Requirement(line).name)
        for line in tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    }
    asked = {
        canonicalize_name(line.strip())
        for line in data_path("requirements", "runtime.in").read_text().splitlines()
        if re.fullmatch(r"[a-z].*", line.strip())
    }
    assert asked <= declared


def test_both_locks_agree_on_every_release() -> None:
    def pins(name: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for release in read_lock(data_path("requirements", name).read_text(), DEBIAN_12):
            found.setdefault(canonicalize_name(release.project), set()).add(release.version)
        return found

    node, control = pins("runtime.txt"), pins("control.txt")
    assert {project: versions for project, versions in node.items() if control.get(project) != versions} == {}


@pytest.mark.parametrize(
    ("python_version", "expected"),
    [("3.11.2", ["2.10"]), ("3.11.5", ["4.1"]), ("3.12.1", ["4.1"])],
)
def test_markers_are_judged_by_the_hosts_python_not_by_ours(python_version: str, expected: list[str]) -> None:
    text = (
        f"soupsieve==2.10 ; python_full_version < '3.11.5' \\\n    {HASH}\n    # via x\n"
        f"soupsieve==4.1 ; python_full_version >= '3.11.5' \\\n    {HASH}\n"
        f"colorama==1 ; sys_platform == 'win32' {HASH}\n"
    )
    found = read_lock(text, WheelTarget("x86_64", "glibc-2.36", python_version))
    assert [release.version for release in found] == expected


@pytest.mark.parametrize(
    "line",
    [
        "aiohttp==3.14.5",
        "aiohttp",
        f"aiohttp>=3 {HASH}",
        f"aiohttp==3,<4 {HASH}",
        f"=={HASH}",
        f"-e . {HASH}",
        f"../x.whl {HASH}",
    ],
)
def test_a_line_that_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(InputError) as caught:
        read_lock(line, DEBIAN_12)
    assert caught.value.code == "runtime.lock_invalid"


@pytest.mark.parametrize(
    ("target", "accepted", "refused"),
    [
        (DEBIAN_12, "cp311-cp311-manylinux_2_36_x86_64", "cp311-cp311-manylinux_2_37_x86_64"),
        (DEBIAN_12, "cp311-cp311-manylinux2014_x86_64", "cp312-cp312-manylinux2014_x86_64"),
        (DEBIAN_12, "cp36-abi3-manylinux1_x86_64", "cp312-abi3-manylinux1_x86_64"),
        (DEBIAN_12, "py3-none-any", "py2-none-any"),
        (DEBIAN_12, "py3-none-manylinux_2_17_x86_64", "py3-none-musllinux_1_1_x86_64"),
        (
            WheelTarget("aarch64", "glibc-2.17", "3.12.4"),
            "cp312-cp312-manylinux2014_aarch64",
            "cp312-cp312-manylinux2010_aarch64",
        ),
        (
            WheelTarget("x86_64", "musl-1.2", "3.13.0"),
            "cp313-cp313-musllinux_1_2_x86_64",
            "cp313-cp313-musllinux_1_3_x86_64",
        ),
        (
            WheelTarget("x86_64", "musl-1.2", "3.13.0"),
            "cp311-abi3-musllinux_1_1_x86_64",
            "cp313-cp313-manylinux_2_17_x86_64",
        ),
    ],
)
def test_wheels_fit_by_machine_c_library_and_python(target: WheelTarget, accepted: str, refused: str) -> None:
    tags = {str(tag) for tag in target.tags()}
    assert accepted in tags
    assert refused not in tags


def test_better_wheels_come_first() -> None:
    order = [str(tag) for tag in DEBIAN_12.tags()]
    ranked = [
        "cp311-cp311-manylinux_2_36_x86_64",
        "cp311-cp311-manylinux2014_x86_64",
        "cp311-abi3-manylinux2014_x86_64",
        "py3-none-any",
    ]
    assert sorted(ranked, key=order.index) == ranked


@pytest.mark.parametrize(
    "target",
    [
        WheelTarget("riscv64", "glibc-2.36", "3.11.2"),
        WheelTarget("x86_64", "", "3.11.2"),
        WheelTarget("x86_64", "bionic-1.0", "3.11.2"),
        WheelTarget("x86_64", "glibc-2.36", ""),
        WheelTarget("x86_64", "glibc-2.36", "PyPy"),
        WheelTarget("x86_64", "glibc-2.999999999", "3.11.2"),
    ],
)
def test_a_host_that_no_wheel_fits_is_refused_with_what_would(target: WheelTarget) -> None:
    with pytest.raises(RefusedError) as caught:
        target.tags()
    assert caught.value.code == "runtime.host_unsupported"
    assert caught.value.next_step
