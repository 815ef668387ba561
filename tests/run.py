"""`make test`: everything that can run on this machine, with what was left out and why. Ends with pytest's own summary.

Tests that boot hosts, run commands or drive the real engine take turns on three workers (tests/scheduling.py); as such tests wait for a third
of their time, that keeps two cores busy. Unit-sized ones fill what is left. The bounded soak, which mostly waits, runs beside all of them and is
told before the summary of the others. Skips are listed by pytest with their reasons; SBCTL_REQUIRE_ALL=1
turns them into failures, apart from those marked optional.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 3


def main(arguments: list[str]) -> int:
    if shutil.which("terraform") is None:
        sys.stdout.write("left out: comparison with terraform (no such program here)\n")
    if os.geteuid() != 0:
        sys.stdout.write("left out: SSH hosts and mounts (need root); the tests say so one by one\n")
    sys.stdout.flush()
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not soak"]
    shared = [*pytest, "-n", str(WORKERS), "--dist", "loadscope"]
    if arguments:
        return subprocess.run([*shared, *arguments], cwd=ROOT, check=False).returncode
    with tempfile.TemporaryFile("w+") as said:
        soak = subprocess.Popen([*pytest, "-n", "0", "tests/soak"], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)
        try:
            code, summary = _run([*shared, "--ignore=tests/soak", "tests"])
            code = soak.wait() or code
        finally:
            soak.terminate()
            soak.wait()
        said.seek(0)
        sys.stdout.write(f"beside them, the bounded soak:\n{said.read()}\nall others:\n{summary}")
    return code


def _run(argv: list[str]) -> tuple[int, str]:
    """Show what pytest writes as it comes, but for its last line, which is the summary."""
    last = ""
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, errors="replace") as pytest:
        assert pytest.stdout is not None
        for line in pytest.stdout:
            sys.stdout.write(last)
            sys.stdout.flush()
            last = line
    return pytest.returncode, last


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
