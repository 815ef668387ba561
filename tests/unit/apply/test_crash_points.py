"""Crash points kill only where a test asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from sbctl.apply.crash_points import CrashPoints


@pytest.mark.parametrize(
    ("environ", "kills_at"),
    [
        ({}, None),
        ({"SBCTL_CRASH_AT": "1"}, None),
        ({"SBCTL_CRASH_AT": "1", "SBCTL_TESTING": "0"}, None),
        ({"SBCTL_CRASH_AT": "0", "SBCTL_TESTING": "1"}, None),
        ({"SBCTL_CRASH_AT": "-1", "SBCTL_TESTING": "1"}, None),
        ({"SBCTL_CRASH_AT": "٣", "SBCTL_TESTING": "1"}, None),
        ({"SBCTL_CRASH_AT": "3", "SBCTL_TESTING": "1"}, 3),
    ],
)
def test_only_a_positive_number_beside_the_testing_switch_counts(environ: dict[str, str], kills_at: int | None) -> None:
    assert CrashPoints.from_environ(environ)._crash_at == kills_at


def test_the_nth_boundary_crashes_once() -> None:
    crashed: list[int] = []
    points = CrashPoints(2, crash=lambda: crashed.append(points.reached_count))
    for _ in range(4):
        points.reached("after_act")
    assert crashed == [2]


def test_the_default_crash_is_sigkill() -> None:
    program = (
        "import os; from sbctl.apply.crash_points import CrashPoints;"
        "CrashPoints.from_environ(os.environ).reached('before_intent'); print('alive')"
    )
    environ = {**os.environ, "SBCTL_TESTING": "1", "SBCTL_CRASH_AT": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
