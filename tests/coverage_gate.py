"""Branch coverage of the packages whose mistakes cost most: measured by the unit-sized tests, at least 95 % each."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.scheduling import HEAVY_MARKERS  # noqa: E402

FLOOR_PERCENT = 95.0
PACKAGES = ("sbctl/state", "sbctl/plan", "sbctl/apply", "sbctl/config", "sbctl/trust")
SUITES = ("tests/unit", "tests/providers", "tests/properties", "tests/attacks", "tests/faults")


def main() -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "-m",
        f"not ({' or '.join(HEAVY_MARKERS)})",
        *(f"--cov={package}" for package in PACKAGES),
        "--cov-report=",
        *SUITES,
    ]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    data = coverage.Coverage(data_file=str(ROOT / ".coverage"), config_file=str(ROOT / "pyproject.toml"))
    data.load()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "coverage.json"
        stdout, sys.stdout = sys.stdout, io.StringIO()
        try:
            data.json_report(outfile=str(report))
        finally:
            sys.stdout = stdout
        files = json.loads(report.read_text())["files"]
    below = 0
    for package in PACKAGES:
        chosen = [entry["summary"] for name, entry in files.items() if name.startswith(package + "/")]
        covered = sum(one["covered_lines"] + one.get("covered_branches", 0) for one in chosen)
        total = sum(one["num_statements"] + one.get("num_branches", 0) for one in chosen)
        percent = 100.0 * covered / total if total else 0.0
        below += percent < FLOOR_PERCENT
        sys.stdout.write(f"{package:<16} {percent:5.1f} % of lines and branches\n")
    if below:
        sys.stdout.write(f"{below} below {FLOOR_PERCENT} %\n")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
