"""The driver's library is a stand-in, compiled here, in a process of its own: the loader reads LD_LIBRARY_PATH once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

STAND_IN = Path(__file__).resolve().parents[2] / "simulators" / "nvml_stand_in.c"
SHOW = (
    "import json, sys; from dataclasses import asdict; from sbctl.node.devices import nvidia_devices;"
    "print(json.dumps({**asdict(nvidia_devices()), 'asked': 'pynvml' in sys.modules}))"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("optional: no C compiler for the stand-in of the driver's library")
    directory = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(directory / "libnvidia-ml.so.1"), str(STAND_IN)],
        check=True,
        timeout=60,
    )
    return directory


def told(**env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": os.environ["PATH"], **env},
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_devices_tell_what_they_are(library: Path) -> None:
    found = told(LD_LIBRARY_PATH=str(library), STAND_IN_DEVICES="2")
    assert (found["driver"], found["cuda"], found["problem"]) == ("580.65.06", "13.0", None)
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    first = found["gpus"][0]
    assert first["name"] == "Stand-in device"
    assert first["memory_total_bytes"] - first["memory_free_bytes"] == 1 << 30
    assert first["compute_capability"] == "9.0"
    assert found["holders"] == {gpu["uuid"]: {str(4001 + gpu["index"]): 1 << 30} for gpu in found["gpus"]}


def test_what_a_device_does_not_tell_is_left_out(library: Path) -> None:
    found = told(LD_LIBRARY_PATH=str(library), STAND_IN_DEVICES="1", STAND_IN_SILENT="1")
    assert found["gpus"] == [{"index": 0, "name": "Stand-in device"}]


@pytest.mark.parametrize(
    ("fault", "told_of_the_first"),
    [
        ({}, None),
        ({"STAND_IN_RECOVERY": "1"}, "needs_reset"),
        ({"STAND_IN_RECOVERY": "4"}, "needs_reset"),
        ({"STAND_IN_RECOVERY": "2"}, "needs_reboot"),
        ({"STAND_IN_ROWS": "1"}, "rows_not_remapped"),
    ],
)
def test_a_device_that_needs_help_says_so_and_no_other(
    library: Path, fault: dict[str, str], told_of_the_first: str | None
) -> None:
    found = told(LD_LIBRARY_PATH=str(library), STAND_IN_DEVICES="2", **fault)
    assert [gpu.get("fault") for gpu in found["gpus"]] == [told_of_the_first, None]


def test_a_device_that_fell_off_its_bus_takes_no_other_with_it(library: Path) -> None:
    found = told(LD_LIBRARY_PATH=str(library), STAND_IN_DEVICES="2", STAND_IN_LOST="1")
    assert found["problem"] is None
    assert [gpu["index"] for gpu in found["gpus"]] == [1]
    assert found["holders"].keys() == {found["gpus"][0]["uuid"]}


@pytest.mark.parametrize(("code", "why"), [("9", "Driver Not Loaded"), ("18", "version mismatch")])
def test_a_driver_that_cannot_be_used_says_why(library: Path, code: str, why: str) -> None:
    found = told(LD_LIBRARY_PATH=str(library), STAND_IN_FAILS=code)
    assert why.lower() in found["problem"].lower()
    assert found["gpus"] == []


def test_without_a_driver_nothing_is_asked_and_nothing_is_loaded() -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("optional: this machine has a driver")
    found = told()
    assert found == {"driver": None, "cuda": None, "gpus": [], "holders": {}, "problem": None, "asked": False}
