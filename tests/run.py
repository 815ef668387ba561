"""`make test`: everything that can run on this machine, with what was left out and why. Ends with pytest's own summary.

Unit-sized tests share the cores; tests that boot hosts, bind ports or drive the real engine take turns on one worker. Skips are listed by
pytest with their reasons; SBCTL_REQUIRE_ALL=1 turns them into failures, apart from those marked optional.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    if shutil.which("terraform") is None:
        sys.stdout.write("left out: comparison with terraform (no such program here)\n")
    if os.geteuid() != 0:
        sys.stdout.write("left out: SSH hosts and mounts (need root); the tests say so one by one\n")
    sys.stdout.flush()
    command = [
        sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "-m", "not soak", *(arguments or ["tests"]),
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
