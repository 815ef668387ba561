"""The kill loop of benchmarks/bench_kill.py, small: ours loses nothing, and theirs is counted by the same program."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench_kill import Sbctl, Terraform, kill_rounds

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_B1_killed_in_a_first_apply_of_many_resources_nothing_that_was_said_to_be_done_is_forgotten() -> None:
    tally = kill_rounds(Sbctl(100), kills=3, draw=random.Random(1))
    assert tally.killed == 3
    assert (tally.absent, tally.empty, tally.unreadable, tally.forgotten, tally.adds_all, tally.plan_failed) == (0,) * 6


def test_the_same_loop_counts_the_other_program() -> None:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("optional: terraform is not on PATH")
    tally = kill_rounds(Terraform(program, 100), kills=2, draw=random.Random(1))
    assert tally.killed == 2
    assert tally.absent + tally.empty + tally.unreadable <= tally.killed


def test_the_comparison_prints_a_table_and_says_what_is_left_out(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        str(ROOT / "benchmarks" / "bench_kill.py"),
        "--kills",
        "1",
        "--resources",
        "30",
        "--seed",
        "1",
    ]
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(argv, capture_output=True, check=True, text=True, timeout=120, env=environ)
    head, names, ours, *rest = done.stdout.splitlines()
    assert (head, ours.split()[:2]) == ("1 kills in a first apply of 30 resources, seed 1", ["sbctl", "1"])
    assert "forgotten" in names
    assert rest == ["terraform is not on PATH: the comparison is left out"]
